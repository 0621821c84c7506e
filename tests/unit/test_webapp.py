"""What every answer obeys: errors as problems, headers, limits."""

from __future__ import annotations

import logging
import re
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from apiflask import APIFlask
from flask.testing import FlaskClient
from redis import ConnectionPool

from aeo import evaluations, workers
from aeo.config import Config
from aeo.core.errors import (
    AeoError,
    Conflict,
    ExecutorFailed,
    InputError,
    NotFound,
    Problem,
    Refused,
    TransferFailed,
    Unavailable,
)
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import health
from aeo.store.connection import open_pool
from aeo.submission import Submission
from webapp import create_app
from webapp.pages import words
from webapp.security import HideTokens, web_secret

TOKEN = "s3cret-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
LIMIT = 64 * 1024


@pytest.fixture
def server() -> fakeredis.FakeServer:
    return fakeredis.FakeServer()


@pytest.fixture
def web_site(tmp_path: Path, server: fakeredis.FakeServer) -> Iterator[Site]:
    pool = ConnectionPool(connection_class=fakeredis.FakeRedisConnection, server=server, decode_responses=True)
    db = open_pool(pool)
    yield Site(config=Config(auth_token=TOKEN, max_body=LIMIT), shared=Shared(tmp_path, tmp_path / "jobs"), db=db)
    db.close()


@pytest.fixture
def app(web_site: Site) -> APIFlask:
    return create_app(web_site)


@pytest.fixture
def client(app: APIFlask) -> FlaskClient:
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = BEARER["Authorization"]
    return client


def problems(answer: Any, status: int) -> list[dict[str, str]]:
    """The problems of an error answer, which must be whole."""
    assert answer.status_code == status, answer.text
    assert answer.content_type == "application/problem+json"
    assert set(answer.json) == {"type", "title", "status", "detail", "problems"}
    assert answer.json["status"] == status
    assert answer.json["detail"]
    found: list[dict[str, str]] = answer.json["problems"]
    assert found
    assert all(set(item) == {"message", "field", "fix"} for item in found)
    return found


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("bad.", field="a.b", fix="Do this."), 422),
        (InputError(problems=(Problem(message="one."), Problem(message="two.", field="f"))), 422),
        (Conflict("taken."), 409),
        (NotFound("gone."), 404),
        (Refused("no."), 401),
        (Unavailable("away."), 503),
        (ExecutorFailed("died."), 503),
        (TransferFailed("cut."), 503),
        (AeoError("odd."), 500),
        (ValueError("secret inside"), 500),
    ],
)
def test_every_error_of_the_engine_is_a_problem(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(workers, "views", fail)
    found = problems(client.get("/api/workers"), status)
    if isinstance(error, InputError):
        assert [item["message"] for item in found] == [item.message for item in error.problems]
        assert [item["field"] for item in found] == [item.field for item in error.problems]
    if status in (401, 503):
        assert found[0]["fix"]


def test_a_surprise_is_logged_under_an_id_and_not_shown(
    client: FlaskClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("inner detail")

    monkeypatch.setattr(workers, "views", fail)
    answer = client.get("/api/workers")
    shown = problems(answer, 500)[0]
    assert "inner detail" not in answer.text
    id = shown["fix"].rpartition(" ")[2].rstrip(".")
    assert re.fullmatch(r"[0-9a-f]{8}", id)
    assert f"error {id}: GET /api/workers" in caplog.text
    assert "inner detail" in caplog.text


def test_pages_show_errors_as_pages(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise Unavailable("<b>away</b>.")

    monkeypatch.setattr(workers, "views", fail)
    answer = client.get("/")
    assert answer.status_code == 503
    assert answer.content_type == "text/html; charset=utf-8"
    assert "&lt;b&gt;away&lt;/b&gt;." in answer.text
    assert client.get("/nowhere").status_code == 404


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/api", 404),
        ("GET", "/api/nothing", 404),
        ("GET", "/api/workers/", 404),
        ("DELETE", "/api/workers", 405),
        ("GET", "/api/evaluations/x/cancel", 405),
    ],
)
def test_unknown_addresses_and_methods(client: FlaskClient, method: str, path: str, status: int) -> None:
    answer = client.open(path, method=method)
    assert "openapi.json" in problems(answer, status)[0]["fix"]
    assert ("Allow" in answer.headers) == (status == 405)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"no json",
        b"\xff\xfe",
        b'{"text": NaN}',
        b'{"text": "\\ud800"}',
        b"[" * 30_000,
        b'{"config": ' + b'{"a":' * 10_000 + b"1" + b"}" * 10_001,
        b'{"config": ' + b'{"a":' * 100 + b"1" + b"}" * 101,
    ],
)
def test_a_body_that_is_no_json(client: FlaskClient, body: bytes) -> None:
    found = problems(client.post("/api/evaluations", data=body, content_type="application/json"), 422)
    assert found[0]["field"] == "body"


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/api/evaluations", [], "body"),
        ("/api/evaluations", None, "body"),
        ("/api/evaluations", {"txt": "a"}, "txt"),
        ("/api/evaluations", {"text": 1}, "text"),
        ("/api/evaluations", {"config": []}, "config"),
        ("/api/evaluations", {"text": "a", "config": {}}, "body"),
        ("/api/evaluations", {"options": "x"}, "options"),
        ("/api/evaluations", {"file_name": "x" * 5000}, "file_name"),
        ("/api/workers", {"capacity": {"slots": 0, "cpus": 1, "memory_mb": 1}}, "capacity.slots"),
        ("/api/workers", {"capacity": {"slots": "2", "cpus": 1, "memory_mb": 1}}, "capacity.slots"),
        ("/api/workers", {"capacity": {"slots": 1, "cpus": 1e999, "memory_mb": 1}}, "body"),
        ("/api/workers", {"capacity": {"slots": True, "cpus": 1, "memory_mb": 1}}, "capacity.slots"),
        ("/api/workers", {"executors": {"harbor": 1}}, "executors.harbor"),
        ("/api/workers", {"id": ""}, "id"),
        ("/api/workers", {"extra": 1}, "extra"),
    ],
)
def test_a_body_of_the_wrong_shape_names_the_field(client: FlaskClient, path: str, body: Any, field: str) -> None:
    assert field in [item["field"] for item in problems(client.post(path, json=body), 422)]


@pytest.mark.parametrize("id", ["..", "a/b", "", " ", "a b", "x" * 201, "../../etc", "a\x00b", "a..b", "ä"])
def test_a_worker_with_an_odd_id_is_refused(client: FlaskClient, id: str) -> None:
    body = {
        "id": id,
        "display_name": "",
        "host": "h",
        "capacity": {"slots": 1, "cpus": 1, "memory_mb": 1},
        "boot": "b",
        "instance": "i",
    }
    assert problems(client.post("/api/workers", json=body), 422)[0]["field"] == "id"


@pytest.mark.parametrize("weight", [-1, "1", True, 1e7, {}])
def test_a_weight_is_a_number_of_at_least_0(client: FlaskClient, weight: Any) -> None:
    assert problems(client.put("/api/workers/w/weight", json={"weight": weight}), 422)[0]["field"] == "weight"
    assert problems(client.put("/api/workers/w/weight", json={}), 422)[0]["field"] == "weight"


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=x", "limit"),
        ("offset=-1", "offset"),
        ("offset=1e3", "offset"),
        ("state=sleeping", "state"),
        ("colour=red", "colour"),
    ],
)
@pytest.mark.parametrize("path", ["/api/evaluations", "/api/evaluations/x/trials"])
def test_a_query_names_the_parameter(client: FlaskClient, path: str, query: str, field: str) -> None:
    assert problems(client.get(f"{path}?{query}"), 422)[0]["field"] == field


def test_an_outcome_error_lists_what_there_is(client: FlaskClient) -> None:
    found = problems(client.get("/api/evaluations/x/trials?outcome=passed"), 422)[0]
    assert found["field"] == "outcome"
    assert "'scored', 'infra_error', 'invalid' or 'cancelled'" in found["message"]


def test_empty_parameters_count_as_not_given(client: FlaskClient) -> None:
    assert client.get("/api/evaluations?state=&limit=").json == {"evaluations": [], "total": 0}


@pytest.mark.parametrize("path", ["/api/evaluations", "/api/workers", "/api/evaluations/x/cancel", "/sign-in"])
def test_a_large_body_is_refused_unread(client: FlaskClient, path: str) -> None:
    class Unread:
        def read(self, *_: object) -> bytes:
            raise AssertionError("read")

        readline = readinto = read

    answer = client.post(
        path,
        content_type="application/json",
        environ_overrides={"CONTENT_LENGTH": str(100_000_000), "wsgi.input": Unread()},
    )
    assert answer.status_code == 413
    assert str(LIMIT) in answer.text


def test_a_body_without_a_length_is_read_up_to_the_limit(client: FlaskClient) -> None:
    class Endless:
        given = 0

        def read(self, count: int = -1) -> bytes:
            assert 0 <= count <= 2 * LIMIT, "asked for everything"
            self.given += count
            assert self.given <= 2 * LIMIT, "read beyond the limit"
            return b" " * count

    answer = client.post(
        "/api/evaluations",
        content_type="application/json",
        environ_overrides={"wsgi.input_terminated": True, "wsgi.input": Endless()},
    )
    assert problems(answer, 413)[0]["field"] == "body"


@pytest.mark.parametrize("path", ["/", "/sign-in", "/api/health", "/api/workers", "/api/nothing", "/nothing"])
def test_every_answer_has_the_security_headers(client: FlaskClient, path: str) -> None:
    headers = client.get(path).headers
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert "unsafe" not in headers["Content-Security-Policy"]
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["X-Frame-Options"] == "DENY"
    assert headers["Referrer-Policy"] == "same-origin"
    assert headers["Cache-Control"] == "no-store"


def test_pages_bring_nothing_from_elsewhere_and_their_static_files_exist(client: FlaskClient) -> None:
    for path in ("/", "/sign-in", "/nothing"):
        page = client.get(path).text
        assert not re.search(r"(?:src|href|action)=\"(?:https?:)?//", page)
        assert " style=" not in page
        assert not re.search(r"<script(?![^>]* src=)", page)
        links = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)
        assert links
        for link in links:
            answer = client.get(link)
            assert answer.status_code == 200
            assert "immutable" in answer.headers["Cache-Control"]


def test_health_tells_of_a_store_that_is_away(client: FlaskClient, server: fakeredis.FakeServer) -> None:
    answer = client.get("/api/health", headers={"Authorization": ""})
    assert (answer.status_code, answer.json["status"], answer.json["redis"]) == (200, "ok", True)
    server.connected = False
    answer = client.get("/api/health")
    assert (answer.status_code, answer.json["status"], answer.json["redis"]) == (503, "unavailable", False)
    problems(client.get("/api/workers"), 503)
    server.connected = True
    assert client.get("/api/health").status_code == 200


def test_health_answers_in_time_when_the_store_hangs(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    release = threading.Event()

    def hang(_: object) -> bool:
        return release.wait(30)

    monkeypatch.setattr(health, "ping", hang)
    monkeypatch.setattr("webapp.api.health.PATIENCE", 0.2)
    started = time.monotonic()
    try:
        assert [client.get("/api/health").status_code for _ in range(4)] == [503] * 4
    finally:
        release.set()
    assert time.monotonic() - started < 5


def test_a_submission_reaches_the_engine_as_it_is(client: FlaskClient, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def take(_: Site, request: Submission, *, owner: str) -> None:
        seen.append((request, owner))
        raise InputError("enough seen.")

    monkeypatch.setattr(evaluations, "submit", take)
    body = {"text": "executor: sleep\n", "file_name": "job.yaml", "working_dir": "/x", "options": {"workers": ["a"]}}
    problems(client.post("/api/evaluations", json=body), 422)
    assert seen == [(Submission(**body), "operator")]


def test_the_secret_of_sessions_is_made_once_and_kept_private(tmp_path: Path) -> None:
    path = tmp_path / "web-secret"
    first = web_secret(path)
    assert len(first) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert web_secret(path) == first
    assert [item.name for item in tmp_path.iterdir()] == ["web-secret"]
    path.write_bytes(b"short")
    with pytest.raises(InputError, match="cut off"):
        web_secret(path)


def test_log_records_lose_their_tokens() -> None:
    def shown(message: str, *args: object, error: bool = False) -> str:
        info = None
        if error:
            try:
                raise ValueError(f"about {TOKEN}")
            except ValueError as caught:
                info = (type(caught), caught, caught.__traceback__)
        record = logging.LogRecord("x", logging.ERROR, "f", 1, message, args, info)
        assert HideTokens(TOKEN).filter(record)
        return logging.Formatter().format(record)

    assert shown("GET %s", "/?a=1&token=abc&b=2") == "GET /?a=1&token=[hidden]&b=2"
    assert shown(f"it is {TOKEN}") == "it is [hidden]"
    assert TOKEN not in shown("failed", error=True)
    assert "ValueError: about [hidden]" in shown("failed", error=True)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (words.span(None), "–"),
        (words.span(59.9), "59 s"),
        (words.span(61), "1 min 1 s"),
        (words.span(3725), "1 h 2 min"),
        (words.span(90000), "1 d 1 h"),
        (words.percent(999, 1000), "99 %"),
        (words.percent(0, 0), "–"),
        (words.size(512), "512 B"),
        (words.size(3 * 1024**3), "3 GiB"),
        (words.size(2 * 1024**4), "2.0 TiB"),
        (words.when(None), ""),
    ],
)
def test_words_of_pages(text: str, expected: str) -> None:
    assert text == expected
