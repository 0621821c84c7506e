"""Adding a worker by ssh from a page: the form, the steps while they run, what can be done then, and for whom."""

from __future__ import annotations

import html
import re
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import browsing
import pytest
from flask.testing import FlaskClient
from needs import require
from waiting import eventually

from aeo import folders, users
from aeo.codec import encode
from aeo.config import Config
from aeo.core.model import Capacity, WorkerInfo
from aeo.provision import entrance, record
from aeo.provision.record import Machine
from aeo.provision.steps import Event, StepState
from aeo.site import Site, open_site
from aeo.users import Role
from webapp import create_app

TOKEN = "token-of-this-test"
POLL = {"HX-Request": "true"}
#: A machine that answers at once that nobody is there.
NOBODY = {"target": "root@127.0.0.1", "ssh_port": "1", "id": "gpu-1", "slots": "3"}


@pytest.fixture
def site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    require(shutil.which("ssh"), "ssh is installed")
    transfer = "rsync://aeo@127.0.0.1:8873/aeo"
    made = open_site(
        Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN, transfer_url=transfer)
    )
    yield made
    made.db.close()


def browser(site: Site, token: str = TOKEN) -> FlaskClient:
    return browsing.browser(site, token)


def send(client: FlaskClient, path: str, **form: str) -> Any:
    return browsing.post(client, path, **form)


def words_of(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))


def ended(site: Site, id: str) -> record.Progress:
    def look() -> record.Progress:
        found = record.progress(site.shared, id)
        assert found is not None
        assert not found.running
        return found

    return eventually(look, 60)


def test_the_form_starts_the_steps_and_the_page_shows_the_failure_with_its_fix(site: Site) -> None:
    client = browser(site)
    assert "Add a worker by SSH" in words_of(client.get("/workers"))
    answer = send(client, "/workers", **NOBODY)
    assert (answer.status_code, answer.location) == (303, "/workers/gpu-1/machine")
    found = ended(site, "gpu-1")
    assert (found.what, found.by) == ("provision", "operator")
    assert found.failed is not None
    assert found.failed.step == "reach"
    page = words_of(client.get("/workers/gpu-1/machine"))
    assert "Connection refused" in page
    assert "ssh -o BatchMode=yes -p 1 root@127.0.0.1 true" in page
    assert "Go on" in page
    assert "stopped halfway" in words_of(client.get("/workers"))
    kept = record.get(site.shared, "gpu-1")
    assert (kept.target, kept.ssh_port, kept.slots, kept.tunnel_port) == ("root@127.0.0.1", 1, 3, 17380)

    before = found.started_at
    assert send(client, "/workers/gpu-1/machine", do="again").status_code == 303
    assert ended(site, "gpu-1").started_at > before


def test_steps_are_shown_live_until_they_end(site: Site) -> None:
    client = browser(site)
    record.keep(site.shared, Machine(id="gpu-1", target="gpu-1", version="1"))
    with record.working(site.shared, "gpu-1", "upgrade", by="mona") as write:
        write(Event(step="reach", state=StepState.DONE, text="answers in 0.1 s", seconds=0.1))
        write(Event(step="aeo", state=StepState.RUNNING, text="install AEO"))
        live = client.get("/workers/gpu-1/machine?part=steps", headers=POLL)
        assert 'hx-trigger="every 1s"' in live.text
        assert "<html" not in live.text
        said = words_of(live)
        assert "by mona" in said
        assert "answers in 0.1 s" in said
        # Nobody else may begin meanwhile.
        refused = send(client, "/workers/gpu-1/machine", do="upgrade")
        assert "somebody is at gpu-1 already" in words_of(refused, 409)
    over = client.get("/workers/gpu-1/machine?part=steps", headers=POLL)
    assert over.status_code == 286
    assert "hx-trigger" not in over.text
    assert over.headers["HX-Refresh"] == "true"
    page = words_of(client.get("/workers/gpu-1/machine"))
    assert "Upgrade" in page
    assert "Take leave of it" in page


def test_the_next_page_is_there_however_slowly_it_begins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    real = folders.write

    def slow(path: Path, text: str) -> None:
        threading.Event().wait(0.3)
        real(path, text)

    monkeypatch.setattr("aeo.folders.write", slow)
    client = browser(site)
    next_page = send(client, "/workers", **NOBODY).headers["Location"]
    assert client.get(next_page).status_code == 200
    ended(site, next_page.split("/")[2])


def test_a_machine_that_is_gone_is_forgotten(site: Site) -> None:
    client = browser(site)
    record.keep(site.shared, Machine(id="gpu-1", target="gpu-1"))
    next_page = send(client, "/workers/gpu-1/machine", do="decommission", gone="1").headers["Location"]
    eventually(lambda: not site.shared.machine("gpu-1").exists(), 60)
    # It may be gone before that page is asked for.
    answer = client.get(next_page)
    assert (answer.status_code, answer.headers["Location"]) == (303, "/workers")
    assert client.get("/workers/gpu-1/machine").status_code == 404
    assert client.get("/workers/gpu-1/machine?part=steps", headers=POLL).headers["HX-Redirect"] == "/workers"


@pytest.mark.parametrize(
    ("form", "said"),
    [
        ({"target": "-oProxyCommand=x"}, "target '-oProxyCommand=x' is not [USER@]HOST"),
        ({"target": "a b"}, "is not [USER@]HOST"),
        ({**NOBODY, "ssh_port": "70000"}, "ssh_port '70000' is no number"),
        ({**NOBODY, "direct": "gopher://x"}, "direct must begin with http"),
        ({**NOBODY, "id": "control"}, "is the platform's own"),
        ({**NOBODY, "id": "../x"}, "id"),
    ],
)
def test_what_is_wrong_is_said_at_the_form_which_keeps_what_was_typed(
    site: Site, form: dict[str, str], said: str
) -> None:
    answer = send(browser(site), "/workers", **form)
    assert said in words_of(answer, 422)
    assert f'value="{html.escape(form["target"])}"' in answer.text
    assert record.machines(site.shared) == []


def test_a_workers_own_token_lets_in_that_worker_and_does_nothing_else(site: Site) -> None:
    record.keep(site.shared, Machine(id="gpu-1", target="gpu-1"))
    token = entrance.make(site.shared, "gpu-1")
    client = create_app(site).test_client()
    bearer = {"Authorization": f"Bearer {token}"}
    for id, status in (("gpu-1", 200), ("gpu-2", 403)):
        capacity = Capacity(slots=1, cpus=1, memory_mb=1024, disk_mb=1024)
        info = WorkerInfo(id=id, display_name=id, host="h", capacity=capacity, boot="b", instance="i", executors={})
        answer = client.post("/api/workers", json=encode(info), headers=bearer)
        assert answer.status_code == status, answer.text
    assert "gpu-1, not gpu-2" in answer.json["detail"]
    for method, path in (
        ("GET", "/api/workers"),
        ("GET", "/api/evaluations"),
        ("POST", "/api/evaluations"),
        ("POST", "/api/workers/gpu-2/drain"),
        ("POST", "/api/workers/gpu-1/allow"),
        ("GET", "/api/users"),
    ):
        assert client.open(path, method=method, headers=bearer, json={}).status_code == 403, path
    assert "good for nothing else" in client.get("/api/workers", headers=bearer).json["detail"]
    # Nobody signs in with it.
    client.get(f"/?token={token}")
    assert client.get("/workers").status_code == 303
    record.forget(site.shared, "gpu-1")
    assert client.get("/api/workers", headers=bearer).status_code == 401


def test_only_administrators_may(site: Site) -> None:
    record.keep(site.shared, Machine(id="gpu-1", target="secret-host"))
    member = browser(site, users.add(site.shared, "mona", Role.MEMBER))
    assert "secret-host" not in member.get("/workers").text
    assert "Add a worker" not in member.get("/workers").text
    assert member.get("/workers/gpu-1/machine").status_code == 403
    assert send(member, "/workers", **NOBODY).status_code == 403
    assert send(member, "/workers/gpu-1/machine", do="again").status_code == 403
