"""Parts of a trial's files by HTTP ranges, and tails of what is not there; why a cancelled evaluation ended."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import closed, register, running, submit
from flask.testing import FlaskClient
from waiting import eventually

from aeo import evaluations, jobs
from aeo.config import Config
from aeo.core.model import Evaluation, EvaluationState
from aeo.site import Site, open_site
from aeo.store import evaluations as store
from webapp import create_app

TOKEN = "token-of-this-test"
KEY = "sk-0123456789abcdef"
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 4000


@pytest.fixture
def web_site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    made = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    register(made, "a")
    yield made
    made.db.close()


@pytest.fixture
def ended(web_site: Site, tmp_path: Path) -> Evaluation:
    with running(web_site, tmp_path, "a"):
        made = submit(web_site, {"name": "ended", "tasks": 1})
        closed(web_site, made.id)
    return made


class Files:
    """The files of the one trial."""

    def __init__(self, site: Site, evaluation: Evaluation):
        (trial,) = evaluation.plan.trials
        self.folder = Path(evaluation.job_dir) / trial.name
        self.root = f"/evaluations/{evaluation.id}/trials"
        self.address = f"{self.root}/{trial.name}"
        self.client: FlaskClient = create_app(site).test_client()
        self.client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"

    def get(self, name: str, part: str = "", *, kind: str = "files", **headers: str) -> Any:
        asked = {**({"Range": part} if part else {}), **headers}
        return self.client.get(f"{self.address}/{kind}/{name}", headers=asked, buffered=True)


@pytest.fixture
def files(web_site: Site, ended: Evaluation) -> Files:
    return Files(web_site, ended)


def test_a_part_of_a_file_is_sent_alone(files: Files) -> None:
    (files.folder / "picture.png").write_bytes(PNG)
    whole = files.get("picture.png")
    assert (whole.status_code, whole.data, whole.headers["Accept-Ranges"]) == (200, PNG, "bytes")
    assert int(whole.headers["Content-Length"]) == len(PNG)
    size = len(PNG)
    for part, start, stop in (
        ("bytes=0-9", 0, 10),
        ("bytes=300000-700000", 300_000, 700_001),
        ("bytes=1000000-", 1_000_000, size),
        ("bytes=-5", size - 5, size),
        (f"bytes=10-{size * 2}", 10, size),
    ):
        answer = files.get("picture.png", part)
        assert (answer.status_code, answer.data) == (206, PNG[start:stop])
        assert answer.headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
        assert int(answer.headers["Content-Length"]) == stop - start
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
    beyond = files.get("picture.png", f"bytes={size}-")
    assert (beyond.status_code, beyond.headers["Content-Range"]) == (416, f"bytes */{size}")
    for odd in ("bytes=5-2", "lines=1-2", "bytes=0-1,5-6", "nonsense"):
        assert files.get("picture.png", odd).data == PNG
    attached = files.get("picture.png", "bytes=8-15", kind="download")
    assert attached.data == PNG[8:16]
    assert "attachment" in attached.headers["Content-Disposition"]


def test_a_part_is_of_the_same_file_or_the_whole_is_sent(files: Files) -> None:
    path = files.folder / "picture.png"
    path.write_bytes(PNG)
    tag = files.get("picture.png").headers["ETag"]
    assert files.get("picture.png", "bytes=0-1", **{"If-Range": tag}).status_code == 206
    path.write_bytes(PNG[:-1] + b"x")
    changed = files.get("picture.png", "bytes=0-1", **{"If-Range": tag})
    assert (changed.status_code, len(changed.data)) == (200, len(PNG))
    assert changed.headers["ETag"] != tag


def test_parts_of_a_text_have_no_secret_and_count_in_what_is_shown(
    files: Files, ended: Evaluation, web_site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MODEL_KEY", KEY)
    hiding = replace(web_site, config=replace(web_site.config, secret_names=("MODEL_KEY",)))
    (files.folder / "a.log").write_bytes(b"one " + KEY.encode() + b" two \xff three\n")
    files = Files(hiding, ended)
    whole = files.get("a.log").data
    assert KEY.encode() not in whole
    assert "two \ufffd three" in whole.decode()
    pieces = [files.get("a.log", f"bytes={at}-{at + 4}") for at in range(0, len(whole), 5)]
    assert {piece.status_code for piece in pieces} == {206}
    assert b"".join(piece.data for piece in pieces) == whole
    assert pieces[0].headers["Content-Range"] == f"bytes 0-4/{len(whole)}"


def test_the_tail_of_what_is_not_there(files: Files) -> None:
    (files.folder / "a.log").write_text("one\n")
    assert files.client.get(f"{files.address}/tail?file=a.log", buffered=True).status_code == 200
    for address in (
        f"{files.address}/tail?file=missing.log",
        f"{files.root}/nobody__abc/tail?file=a.log",
        "/evaluations/nothing/trials/x/tail?file=a.log",
    ):
        assert files.client.get(address, buffered=True).status_code == 404
    # Who followed the run that became this result hears of its end.
    followed = files.client.get(f"{files.address}/tail?file=missing.log&at=token:0:12", buffered=True)
    assert "event: end" in followed.text


def test_a_cancelled_evaluation_says_by_whom_at_its_end(
    web_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = submit(web_site, {"name": "long", "tasks": 3, "seconds": 30}).id
    with running(web_site, tmp_path, "a"):
        eventually(lambda: store.get(web_site.db, id).running)
        evaluations.cancel(web_site, id, by="ada")
        assert store.get(web_site.db, id).reason == "cancelled by ada"
        eventually(lambda: store.get(web_site.db, id).done == 3, 30)
    # A merge that fails once must not make it forgotten.
    with monkeypatch.context() as patch:
        patch.setattr(jobs, "_close", lambda *_: (_ for _ in ()).throw(OSError("no space")))
        if not store.get(web_site.db, id).state.final:
            jobs.merge(web_site, id)
            assert store.get(web_site.db, id).reason == "cancelled by ada; merge failed: OSError: no space"
    status = closed(web_site, id)
    assert (status.state, status.reason) == (
        EvaluationState.CANCELLED,
        "cancelled by ada; 3 trials not run to their end",
    )
