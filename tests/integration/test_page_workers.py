"""The pages of workers: what they show, what they let whom do, and what registration takes."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import browsing
import pytest
from engine import register, submit
from flask.testing import FlaskClient

from aeo import users
from aeo.config import Config
from aeo.core.model import Heartbeat, TrialState, WorkerState
from aeo.site import Site, open_site
from aeo.store import connection, evaluations, trials, workers
from aeo.store.keys import key
from aeo.store.samples import Sample
from aeo.users import Role
from aeo.workers import views
from webapp import create_app
from webapp.pages.workers import MINUTES, lines

TOKEN = "token-of-this-test"
POLL = {"HX-Request": "true"}
GIB = 2**30


@pytest.fixture
def web_site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    config = Config(
        shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN, flower_url="http://f.test/"
    )
    site = open_site(config)
    yield site
    site.db.close()


def browser(site: Site, token: str = TOKEN) -> FlaskClient:
    return browsing.browser(site, token)


def words_of(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))


def send(client: FlaskClient, worker: str, **form: str) -> Any:
    return browsing.post(client, f"/workers/{worker}", **form)


def beat(site: Site, id: str, **told: Any) -> None:
    usual = Heartbeat(
        boot="boot",
        at=connection.now(site.db),
        cpu_percent=37.5,
        memory_percent=61.0,
        disk_free=30 * GIB,
        disk_total=100 * GIB,
        clock_skew=0.25,
        images=14,
    )
    workers.beat(site.db, id, replace(usual, **told), ttl_seconds=60)


def busy(site: Site, worker: str) -> tuple[str, str]:
    """Let a worker run one trial; returns evaluation and trial."""
    id = submit(site, {"tasks": 5, "name": "nightly"}, workers=[worker], per_worker_concurrency=2).id
    batch = evaluations.batches(site.db, id)[0].batch
    evaluations.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token="k", lease_seconds=600)
    assert claim is not None
    return id, claim.trial


# What is shown


def test_without_workers_the_page_says_how_to_start_one(web_site: Site) -> None:
    said = words_of(browser(web_site).get("/workers"))
    assert "No worker has registered" in said
    assert "aeo worker --controller-url http://localhost --auth-token @token" in said


def test_the_list_shows_each_worker(web_site: Site) -> None:
    register(web_site, "w1", slots=4)
    register(web_site, "w2")
    beat(web_site, "w1")
    for failed in (True, False, False, False):
        trials.note_run(web_site.db, "e1", "w1", failed=failed, keep=20)
    busy(web_site, "w1")
    workers.set_weight(web_site.db, "w1", 2.5)
    web_site.db.client.delete(key("beat", "w2"))
    page = browser(web_site).get("/workers")
    said = words_of(page)
    assert re.search(r"w1 test online [0-9.]+ s clock \+0\.2 s 1 of 4 2 2\.5 set by hand", said), said
    assert "37 %" in said
    assert "61 %" in said
    assert "30 GiB free" in said
    assert "25 % of 4" in said
    assert "command" in said
    assert "14 images" in said
    assert re.search(r"w2 test lost –", said)
    assert page.text.count('class="spark"') == 6
    assert 'href="http://f.test/"' in page.text
    part = browser(web_site).get("/workers?part=list", headers=POLL)
    assert part.text.lstrip().startswith('<div id="workers"')
    assert 'hx-get="/workers?part=list"' in part.text
    assert "<html" not in part.text


def test_what_is_out_of_order_stands_out(web_site: Site) -> None:
    register(web_site, "w1")
    beat(web_site, "w1", disk_free=GIB, clock_skew=-99.5, images=None)
    page = browser(web_site).get("/workers").text
    assert re.search(r'<span class="num small bad">1 GiB free', page)
    assert re.search(r'<span class="small bad"[^>]*>clock -99.5 s', page)


def test_one_worker_closely(web_site: Site) -> None:
    register(web_site, "w1", version="9.9")
    beat(web_site, "w1")
    id, trial = busy(web_site, "w1")
    client = browser(web_site)
    page = client.get("/workers/w1")
    said = words_of(page)
    assert f'href="/evaluations/{id}/trials/{trial}"' in page.text
    assert re.search(r"Its queue nightly 1 batch", said)
    assert "100 GiB disk" in said
    assert "9.9" in said
    assert "+0.2 s" in said
    assert page.text.count('class="spark"') == 3
    live = client.get("/workers/w1?part=live", headers=POLL)
    assert live.text.lstrip().startswith('<div id="live"')
    assert "<form" not in live.text
    answer = client.get("/api/workers/w1").json
    assert answer is not None
    assert [run["trial"] for run in answer["running"]] == [trial]
    assert answer["waiting"] == [{"evaluation": id, "name": "nightly", "batches": 1}]
    assert [sample["cpu_percent"] for sample in answer["samples"]] == [37.5]
    assert answer["worker"]["heartbeat"]["images"] == 14
    for path in ("/workers/nobody", "/api/workers/nobody"):
        assert client.get(path).status_code == 404
    for path in ("/workers/control", "/workers/a..b", "/api/workers/a..b"):
        assert client.get(path).status_code == 422


def test_the_small_lines_have_a_place_for_each_minute(web_site: Site) -> None:
    register(web_site, "w1")
    beat(web_site, "w1")
    (view,) = views(web_site)
    now = connection.now(web_site.db)

    def sample(minutes_ago: int) -> Sample:
        at = now - timedelta(minutes=minutes_ago)
        return Sample(at=at, cpu_percent=float(minutes_ago), memory_percent=50.0, disk_free=25 * GIB, busy=0)

    made = lines([sample(MINUTES + 5), sample(MINUTES - 1), sample(3), sample(0), sample(-2)], view, now.timestamp())
    assert {name: len(values) for name, values in made.items()} == {"cpu": MINUTES, "memory": MINUTES, "disk": MINUTES}
    assert {place: value for place, value in enumerate(made["cpu"]) if value is not None} == {
        0: MINUTES - 1.0,
        MINUTES - 4: 3.0,
        MINUTES - 1: 0.0,
    }
    assert made["disk"][-1] == 75.0
    unknown = replace(view, heartbeat=None)
    assert lines([sample(0)], unknown, now.timestamp())["disk"][-1] == 25.0 * GIB


def test_what_workers_say_is_text(web_site: Site) -> None:
    register(web_site, "w1", version="<i>9</i>")
    workers.set_state(web_site.db, "w1", WorkerState.PAUSED, "<script>alert(1)</script>")
    client = browser(web_site)
    for path in ("/workers", "/workers/w1"):
        page = client.get(path).text
        assert "<script>alert" not in page
        assert "<i>9</i>" not in page
        assert "&lt;script&gt;alert(1)" in page


# What is done


def test_a_person_says_what_a_worker_is_to_do(web_site: Site) -> None:
    register(web_site, "w1")
    client = browser(web_site)

    def state() -> tuple[str, str]:
        status = workers.get(web_site.db, "w1")
        return status.state.value, status.note

    answer = send(client, "w1", do="drain")
    assert (answer.status_code, answer.location) == (303, "/workers")
    assert state() == ("draining", "drained by operator")
    assert "finishes what it runs" in words_of(client.get("/workers"))
    send(client, "w1", do="resume")
    assert state() == ("online", "")
    answer = send(client, "w1", do="pause", note=" new driver ", **{"from": "worker"})
    assert answer.location == "/workers/w1"
    assert state() == ("paused", "paused by operator: new driver")
    send(client, "w1", do="weight", weight="2.5")
    assert workers.get(web_site.db, "w1").weight_override == 2.5
    send(client, "w1", do="weight", weight="")
    assert workers.get(web_site.db, "w1").weight_override is None


@pytest.mark.parametrize("weight", ["-1", "nan", "inf", "much"])
def test_what_is_no_weight_is_said(web_site: Site, weight: str) -> None:
    register(web_site, "w1")
    said = words_of(send(browser(web_site), "w1", do="weight", weight=weight), 422)
    assert "no weight" in said
    assert "What it is to do" in said
    assert workers.get(web_site.db, "w1").weight_override is None


def test_a_busy_worker_is_removed_only_when_that_is_said(web_site: Site) -> None:
    register(web_site, "w1")
    id, trial = busy(web_site, "w1")
    client = browser(web_site)
    refused = send(client, "w1", do="remove")
    assert "is alive and runs trials: 1" in words_of(refused, 409)
    assert '<details class="card" id="remove" open>' in refused.text
    assert workers.get(web_site.db, "w1").busy == 1
    answer = send(client, "w1", do="remove", force="1", **{"from": "worker"})
    assert (answer.status_code, answer.location) == (303, "/workers")
    assert trials.state(web_site.db, id, trial) is TrialState.PENDING
    page = client.get("/workers")
    assert "trials given back: 1" in words_of(page)
    assert "Removed and kept out" in words_of(page)
    assert client.get("/api/removed-workers").json["removed"][0]["id"] == "w1"  # type: ignore[index]
    answer = send(client, "w1", do="allow")
    assert answer.location == "/workers"
    assert "Removed and kept out" not in words_of(client.get("/workers"))
    assert register(web_site, "w1") == "w1"


def test_one_that_was_revoked_comes_back_with_its_next_start(web_site: Site) -> None:
    register(web_site, "w1")
    client = browser(web_site)
    for revoked, words in (
        (True, "gets new credentials at its next start"),
        (False, "registers at its next heartbeat"),
    ):
        send(client, "w1", do="revoke" if revoked else "remove", force="1")
        send(client, "w1", do="allow")
        assert words in words_of(client.get("/workers"))
        register(web_site, "w1")


def test_what_cannot_be_done_is_said(web_site: Site) -> None:
    register(web_site, "w1")
    client = browser(web_site)
    assert "is none of" in words_of(send(client, "w1", do="explode"), 422)
    assert "is none of" in words_of(send(client, "w1"), 422)
    assert send(client, "nobody", do="drain").status_code == 404
    assert send(client, "w1", do="allow").status_code == 404
    assert client.post("/workers/w1", data={"do": "drain"}).status_code == 403
    assert workers.get(web_site.db, "w1").state is WorkerState.ONLINE


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER])
def test_only_an_administrator_changes_workers(web_site: Site, role: Role) -> None:
    register(web_site, "w1")
    client = browser(web_site, users.add(web_site.shared, "vera", role))
    for path in ("/workers", "/workers/w1"):
        page = client.get(path)
        assert page.status_code == 200
        assert 'name="do"' not in page.text
    for do in ("drain", "pause", "weight", "remove", "allow", "resume"):
        assert send(client, "w1", do=do).status_code == 403
    with client.session_transaction() as session:
        headers = {"X-CSRF-Token": session["csrf"]}
    assert client.post("/api/workers/w1/allow", headers=headers).status_code == 403
    assert workers.get(web_site.db, "w1").state is WorkerState.ONLINE


# What registration takes


def presented(**changes: Any) -> dict[str, Any]:
    body: dict[str, Any] = {
        "id": "w1",
        "display_name": "W1",
        "host": "alpha",
        "capacity": {"slots": 2, "cpus": 4.0, "memory_mb": 8000},
        "boot": "boot-1",
        "instance": "here",
        "executors": {"sleep": "1"},
        "version": "1.0",
    }
    return {**body, **changes}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"id": "control"}, "id"),
        ({"id": "x" * 201}, "id"),
        ({"display_name": "x" * 201}, "display_name"),
        ({"host": "x" * 256}, "host"),
        ({"boot": "x" * 201}, "boot"),
        ({"instance": ""}, "instance"),
        ({"version": "x" * 101}, "version"),
        ({"executors": {f"e{n}": "1" for n in range(51)}}, "executors"),
        ({"executors": {"x" * 201: "1"}}, "executors"),
        ({"executors": {"sleep": "x" * 201}}, "executors"),
        ({"capacity": {"slots": 0, "cpus": 1.0, "memory_mb": 1}}, "capacity"),
        ({"capacity": {"slots": 10**6, "cpus": 1.0, "memory_mb": 1}}, "capacity"),
        ({"capacity": {"slots": 1, "cpus": 1.0, "memory_mb": 10**12}}, "capacity"),
        ({"capacity": {"slots": 1, "cpus": 10**30, "memory_mb": 1}}, "capacity"),
        ({"slots": 1}, "slots"),
    ],
)
def test_registration_has_bounds(web_site: Site, changes: dict[str, Any], field: str) -> None:
    client = create_app(web_site).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    answer = client.post("/api/workers", json=presented(**changes))
    assert answer.status_code == 422, answer.text
    assert field in answer.text
    assert workers.all(web_site.db) == []
    assert client.post("/api/workers", json=presented()).status_code == 200


def test_a_removed_process_is_turned_away(web_site: Site) -> None:
    client = create_app(web_site).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    assert client.post("/api/workers", json=presented()).status_code == 200
    assert client.delete("/api/workers/w1").status_code == 200
    answer = client.post("/api/workers", json=presented())
    assert answer.status_code == 409
    assert "removed by a person" in answer.text
    assert client.post("/api/workers/w1/allow").json == {"removed": [], "revoked": []}
    assert client.post("/api/workers", json=presented()).status_code == 200
