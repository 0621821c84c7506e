"""Who gets in: bearer, session, sign-in, CSRF; and that the token shows up nowhere."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from pathlib import Path

import pytest
from flask.testing import FlaskClient

from aeo.config import Config
from aeo.core.errors import InputError
from aeo.layout import Shared
from aeo.site import Site
from aeo.store.connection import Db
from webapp import create_app
from webapp.attempts import Attempts

TOKEN = "s3cret-token-of-this-test"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def web_site(tmp_path: Path, fake_db: Db) -> Site:
    return Site(config=Config(auth_token=TOKEN), shared=Shared(tmp_path, tmp_path / "jobs"), db=fake_db)


@pytest.fixture
def client(web_site: Site) -> FlaskClient:
    return create_app(web_site).test_client()


@pytest.fixture
def signed_in(client: FlaskClient) -> FlaskClient:
    assert client.get(f"/?token={TOKEN}").status_code == 303
    return client


def csrf(client: FlaskClient, path: str = "/") -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path).text)
    assert found
    return found[1]


def test_no_token_no_application(web_site: Site) -> None:
    with pytest.raises(InputError, match="--auth-token"):
        create_app(replace(web_site, config=replace(web_site.config, auth_token="")))


@pytest.mark.parametrize(
    "header",
    [
        None,
        "Bearer",
        "Bearer ",
        "Bearer wrong",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "é",
    ],
)
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/workers"),
        ("POST", "/api/workers"),
        ("PUT", "/api/workers/a/weight"),
        ("GET", "/api/dashboard/tasks"),
        ("GET", "/api/evaluations"),
        ("POST", "/api/evaluations"),
        ("GET", "/api/evaluations/x"),
        ("GET", "/api/evaluations/x/trials"),
        ("GET", "/api/evaluations/x/trials/y"),
        ("POST", "/api/evaluations/x/cancel"),
    ],
)
def test_the_api_refuses_without_the_token(client: FlaskClient, method: str, path: str, header: str | None) -> None:
    answer = client.open(path, method=method, headers={"Authorization": header} if header is not None else {})
    assert answer.status_code == 401
    assert answer.content_type == "application/problem+json"
    assert answer.headers["WWW-Authenticate"] == 'Bearer realm="aeo"'
    assert answer.json["problems"][0]["fix"]


def test_every_endpoint_that_is_not_listed_as_open_is_guarded(web_site: Site) -> None:
    app = create_app(web_site)
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<[^>]+>", "x", rule.rule)
        for method in rule.methods & {"GET", "POST", "PUT", "DELETE", "PATCH"}:
            status = app.test_client().open(path, method=method).status_code
            refused = status == (401 if path.startswith(("/api/", "/metrics")) else 303)
            assert refused == (rule.endpoint not in ("health.show", "openapi.spec", "static", "auth.sign_in")), rule


@pytest.mark.parametrize("header", [f"Bearer {TOKEN}", f"bearer {TOKEN}", f"Bearer  {TOKEN} "])
def test_the_bearer_token_opens_the_api_and_leaves_no_cookie(client: FlaskClient, header: str) -> None:
    answer = client.get("/api/workers", headers={"Authorization": header})
    assert answer.status_code == 200
    assert "Set-Cookie" not in answer.headers


def test_the_token_in_an_api_address_does_not_count(client: FlaskClient) -> None:
    assert client.get(f"/api/workers?token={TOKEN}").status_code == 401


def test_health_and_document_are_open(client: FlaskClient) -> None:
    assert client.get("/api/health").status_code == 200
    assert client.get("/api/openapi.json").status_code == 200


@pytest.mark.parametrize(
    ("address", "target"),
    [
        ("/?token={}", "/"),
        ("/?offset=25&token={}", "/?offset=25"),
        ("/?token={}&token=other&a=b%20c", "/?a=b+c"),
        ("/?token=wrong&token={}", None),
    ],
)
def test_a_token_in_the_address_signs_in_and_goes_away(client: FlaskClient, address: str, target: str | None) -> None:
    answer = client.get(address.format(TOKEN))
    assert answer.status_code == 303
    assert TOKEN not in answer.headers["Location"]
    if target is None:
        assert answer.headers["Location"].startswith("/sign-in")
    else:
        assert answer.headers["Location"] == target
        assert client.get(target).status_code == 200


def test_the_session_cookie_is_guarded(client: FlaskClient) -> None:
    plain = client.get(f"/?token={TOKEN}").headers["Set-Cookie"]
    assert "HttpOnly" in plain
    assert "SameSite=Lax" in plain
    assert "Secure" not in plain
    secure = client.get(f"/?token={TOKEN}", base_url="https://localhost").headers["Set-Cookie"]
    assert "Secure" in secure
    assert TOKEN not in plain + secure


@pytest.mark.parametrize(
    "path", ["//evil.example/", "/\\evil.example", "/nowhere", "/sign-in/", "/api", "/api//health"]
)
def test_an_unknown_address_with_a_token_redirects_nowhere(client: FlaskClient, path: str) -> None:
    answer = client.get("/", query_string=f"x=1&token={TOKEN}", environ_overrides={"PATH_INFO": path})
    assert answer.status_code == 404
    assert "Location" not in answer.headers
    assert TOKEN not in answer.text


def test_slashes_before_a_known_address_name_no_other_host(client: FlaskClient) -> None:
    answer = client.get("/", query_string=f"x=1&token={TOKEN}", environ_overrides={"PATH_INFO": "//"})
    assert answer.headers["Location"] == "/?x=1"


@pytest.mark.parametrize(
    ("wanted", "target"),
    [
        ("/?offset=25", "/?offset=25"),
        (f"/?token={TOKEN}&offset=3", "/?offset=3"),
        ("/a%20b", "/a%20b"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\t/evil.example", "/"),
        ("/\\evil.example", "/evil.example"),
        ("javascript:alert(1)", "/"),
        ("http://[", "/"),
        ("/sign-in", "/"),
        ("", "/"),
    ],
)
def test_signing_in_goes_on_to_this_site_only(client: FlaskClient, wanted: str, target: str) -> None:
    form = {"csrf_token": csrf(client, "/sign-in"), "token": TOKEN, "next": wanted}
    answer = client.post("/sign-in", data=form)
    assert (answer.status_code, answer.headers["Location"]) == (303, target)


def test_a_page_asks_to_sign_in_and_comes_back(client: FlaskClient) -> None:
    answer = client.get("/?offset=2")
    assert answer.status_code == 303
    form_page = client.get(answer.headers["Location"])
    assert 'value="/?offset=2"' in form_page.text


def test_a_wrong_token_in_the_form_is_told(client: FlaskClient) -> None:
    answer = client.post("/sign-in", data={"csrf_token": csrf(client, "/sign-in"), "token": "wrong"})
    assert answer.status_code == 401
    assert "The token is wrong." in answer.text
    assert client.get("/").status_code == 303


def test_the_form_needs_its_csrf_token(client: FlaskClient) -> None:
    assert client.post("/sign-in", data={"token": TOKEN}).status_code == 403
    assert client.post("/sign-in", data={"token": TOKEN, "csrf_token": ""}).status_code == 403
    assert client.get("/").status_code == 303


def test_signing_out_ends_the_session(signed_in: FlaskClient) -> None:
    assert signed_in.post("/sign-out").status_code == 403
    assert signed_in.get("/").status_code == 200
    assert signed_in.post("/sign-out", data={"csrf_token": csrf(signed_in)}).status_code == 303
    assert signed_in.get("/").status_code == 303
    assert signed_in.get("/api/workers").status_code == 401


def test_a_new_token_ends_every_session(web_site: Site, signed_in: FlaskClient) -> None:
    changed = create_app(replace(web_site, config=replace(web_site.config, auth_token="another"))).test_client()
    name = "aeo_session_7380"
    cookie = signed_in.get_cookie(name)
    assert cookie
    changed.set_cookie(name, cookie.value)
    assert changed.get("/api/workers").status_code == 401


def test_a_session_survives_a_restart(web_site: Site, signed_in: FlaskClient) -> None:
    again = create_app(web_site).test_client()
    cookie = signed_in.get_cookie("aeo_session_7380")
    assert cookie
    again.set_cookie("aeo_session_7380", cookie.value)
    assert again.get("/").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 403),
        ({"X-CSRF-Token": "wrong"}, 403),
        ({"X-CSRF-Token": "right"}, 422),
        ({"X-CSRF-Token": "right", "Origin": "http://localhost"}, 422),
        ({"X-CSRF-Token": "right", "Origin": "http://evil.example"}, 403),
        ({"X-CSRF-Token": "right", "Origin": "null"}, 403),
        ({"X-CSRF-Token": "right", "Sec-Fetch-Site": "same-origin"}, 422),
        ({"X-CSRF-Token": "right", "Sec-Fetch-Site": "cross-site"}, 403),
        ({"X-CSRF-Token": "right", "Sec-Fetch-Site": "same-site", "Origin": "http://localhost"}, 403),
        ({"Authorization": f"Bearer {TOKEN}", "Sec-Fetch-Site": "cross-site"}, 422),
        ({"Authorization": "Bearer wrong", "X-CSRF-Token": "right"}, 401),
    ],
)
def test_changes_by_session_need_proof_of_the_page(
    signed_in: FlaskClient, headers: dict[str, str], status: int
) -> None:
    assert signed_in.get("/api/workers").status_code == 200
    if headers.get("X-CSRF-Token") == "right":
        headers = {**headers, "X-CSRF-Token": csrf(signed_in)}
    # 422: let in, and then the empty object is no worker.
    assert signed_in.post("/api/workers", json={}, headers=headers).status_code == status


def test_too_many_wrong_tokens_are_refused_for_a_while(client: FlaskClient) -> None:
    for _ in range(10):
        assert client.get("/?token=wrong").status_code == 303
    form = {"csrf_token": csrf(client, "/sign-in"), "token": TOKEN}
    answer = client.post("/sign-in", data=form)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) > 0
    assert client.get(f"/?token={TOKEN}").headers["Location"].startswith("/sign-in")
    # Programs go on.
    assert client.get("/api/workers", headers=BEARER).status_code == 200
    other = client.post("/sign-in", data=form, environ_base={"REMOTE_ADDR": "192.0.2.7"})
    assert other.status_code == 303


def test_attempts_expire_and_stay_bounded() -> None:
    clock = iter([0.0, 1.0, 2.0, 11.5]).__next__
    attempts = Attempts(limit=2, seconds=10, clock=clock)
    assert attempts.wait("a") == 0
    attempts.failed("a")
    attempts.failed("a")
    assert attempts.wait("a") == 8.0
    assert attempts.wait("a") == 0
    many = Attempts(limit=1, addresses=3, clock=lambda: 0.0)
    for number in range(10):
        many.failed(str(number))
    assert [n for n in range(10) if many.wait(str(n)) > 0] == [7, 8, 9]


def test_the_token_is_in_no_log_and_no_answer(client: FlaskClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    texts = []
    for path in (f"/?token={TOKEN}", f"/nowhere?token={TOKEN}", f"/static/nothing?token={TOKEN}", "/api/openapi.json"):
        answer = client.get(path)
        texts += [answer.text, str(answer.headers)]
    texts += [client.get("/").text, client.post("/sign-in", data={"token": TOKEN}).text]
    assert TOKEN not in "\n".join(texts) + caplog.text
