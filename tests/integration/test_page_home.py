"""The dashboard: what it shows, how its parts are asked for, and that its alerts come from what is so."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import browsing
import pytest
from engine import closed, logged, register, running, submit
from flask.testing import FlaskClient
from store_samples import a_row
from waiting import eventually

from aeo import alerts, overview, users
from aeo import workers as wanted
from aeo.codec import dumps
from aeo.config import Config
from aeo.core.alerts import TEXTS, Kind
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, Heartbeat, Outcome, WorkerState
from aeo.site import Site, open_site
from aeo.store import connection, evaluations, events, health, trials, workers
from aeo.store.keys import key
from aeo.users import Role
from webapp import create_app
from webapp.pages.alert_words import WORDS

TOKEN = "token-of-this-test"
POLL = {"HX-Request": "true"}


@pytest.fixture
def web_site(redis_url: str, tmp_path: Path) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN, breaker_runs=4))
    health.mark_recovered(site.db)
    yield site
    site.db.close()


def browser(site: Site, token: str = TOKEN) -> FlaskClient:
    return browsing.browser(site, token)


def words_of(answer: Any, status: int = 200) -> str:
    assert answer.status_code == status, answer.text
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", answer.text)))


def hold(site: Site, id: str, *, minutes_ago: float = 0) -> str:
    """Let a worker's batch hold a trial, since a while ago; returns the trial."""
    batch = next(item.batch for item in evaluations.batches(site.db, id) if item.left)
    evaluations.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token=f"t-{id}-{minutes_ago}", lease_seconds=3600)
    assert claim is not None
    kept = json.loads(site.db.client.hget(key("claims", id), claim.trial))
    kept["started_at"] -= minutes_ago * 60_000
    site.db.client.hset(key("claims", id), claim.trial, json.dumps(kept))
    return claim.trial


def kinds(site: Site) -> list[Kind]:
    return [alert.kind for alert in alerts.now(site)]


# The page


def test_an_empty_controller_says_what_to_do(web_site: Site) -> None:
    client = browser(web_site)
    page = client.get("/")
    said = words_of(page)
    assert "No worker has registered" in said
    assert "aeo worker --controller-url http://localhost" in said
    assert "Nothing runs" in said
    assert "No evaluations yet" in said
    assert page.text.count('href="/evaluations/new"') >= 2
    assert "To look at" not in said


def test_a_viewer_is_not_asked_to_submit(web_site: Site) -> None:
    client = browser(web_site, users.add(web_site.shared, "vera", Role.VIEWER))
    main = client.get("/").text.partition("<main")[2]
    assert 'href="/evaluations/new"' not in main


def test_what_runs_is_shown_with_its_progress_and_errors(web_site: Site) -> None:
    register(web_site, "w1", slots=3)
    id = submit(web_site, {"tasks": 6, "name": "nightly"}).id
    names = list(trials.states(web_site.db, id))
    for name, outcome in zip(names, [Outcome.SCORED, Outcome.INFRA_ERROR, Outcome.CANCELLED], strict=False):
        trials.commit(web_site.db, id, a_row(name, outcome=outcome), f"k-{name}")
    hold(web_site, id)
    page = browser(web_site).get("/")
    said = words_of(page)
    assert "nightly" in said
    assert f'href="/evaluations/{id}"' in page.text
    assert "3 of 6" in said
    assert re.search(r"Slots busy .*1 of 3", said)
    assert "50 %" in said  # one of the two that ended and were not cancelled
    for kind in ("scored", "infra_error", "cancelled", "running"):
        assert f'class="fill-{kind}"' in page.text
    assert re.search(r"Batches queued \S+", said)
    seen = overview.look(web_site)
    assert (seen.busy, seen.slots, seen.pending) == (1, 3, 2)
    assert seen.queued == len(evaluations.batches(web_site.db, id))


def test_the_time_left_is_a_range(web_site: Site, tmp_path: Path) -> None:
    register(web_site, "w1", slots=2)
    id = submit(web_site, {"tasks": 40, "seconds": 0.05, "name": "timed"}, per_worker_concurrency=2).id
    client = browser(web_site)
    assert overview.look(web_site).open[0].end is None
    assert "It is told once enough trials have ended" in client.get("/").text
    with running(web_site, tmp_path, "w1"):
        eventually(lambda: evaluations.get(web_site.db, id).done > 5, 30)
        evaluations.move(web_site.db, id, EvaluationState.PAUSED, "paused by operator")
        eventually(lambda: not trials.running(web_site.db, id), 30)
        evaluations.move(web_site.db, id, EvaluationState.RUNNING)
        end = overview.look(web_site).open[0].end
        assert end is not None
        assert 1 <= end.low <= end.likely <= end.high
        assert "Likely" in client.get("/").text
        evaluations.move(web_site.db, id, EvaluationState.CANCELLING)
        trials.cancel_pending(web_site.db, id)
        closed(web_site, id)
    assert "Nothing runs" in words_of(client.get("/?part=now", headers=POLL))


def test_parts_are_answered_alone_and_ask_again(web_site: Site) -> None:
    register(web_site, "w1")
    submit(web_site, {"tasks": 1, "name": "first"})
    client = browser(web_site)
    now = client.get("/?part=now", headers=POLL)
    assert now.status_code == 200
    assert now.text.lstrip().startswith('<div id="now"')
    assert "<html" not in now.text
    assert 'hx-get="/?part=now"' in now.text
    assert "HX-Push-Url" not in now.headers
    history = client.get("/?part=history&q=first&state=running", headers=POLL)
    assert history.text.lstrip().startswith('<div id="history"')
    assert 'hx-get="/?part=history&amp;q=first&amp;state=running"' in history.text
    # Without htmx, or for a part that is none, it is the page.
    for asked in (client.get("/?part=now"), client.get("/?part=nothing", headers=POLL)):
        assert "<html" in asked.text


def test_the_history_is_searched_and_paged_by_its_address(web_site: Site) -> None:
    register(web_site, "w1")
    token = users.add(web_site.shared, "eva", Role.MEMBER)
    client, evas = browser(web_site), browser(web_site, token)
    for n in range(27):
        submit(web_site, {"tasks": 1, "name": f"run-{n:02d}"})
    with evas.session_transaction() as session:
        session["csrf"] = "c"
    made = evas.post(
        "/api/evaluations",
        json={"config": {"executor": "sleep", "tasks": 1, "name": "evas"}},
        headers={"X-CSRF-Token": "c"},
    )
    assert made.status_code == 201

    def found(query: str, who: FlaskClient = client) -> list[str]:
        page = who.get(f"/?part=history&{query}", headers=POLL).text
        return re.findall(r'<a href="/evaluations/[^"]+">([^<]+)</a>', page)

    assert len(found("")) == 25
    assert found("")[0] == "evas"
    assert found("offset=25") == ["run-02", "run-01", "run-00"]
    assert found("q=run-1&offset=")[0] == "run-19"
    assert len(found("q=run-1")) == 10
    assert found("q=nothing-like-it") == []
    assert found("state=succeeded") == []
    assert len(found("state=open&q=run-00")) == 1
    assert found("mine=1", evas) == ["evas"]
    assert len(found("state=bogus")) == 25
    assert "No evaluation is like that" in words_of(client.get("/?q=nothing-like-it"))
    assert "No more evaluations" in words_of(client.get("/?offset=100"))
    for odd in ("offset=-5", "offset=x", "offset=99999999999999999999", "q=%00", "q=" + "x" * 5000, "q='\"<b>"):
        assert client.get(f"/?{odd}").status_code == 200

    # The pager keeps the filter, and the form shows it.
    page = client.get("/?q=run&state=running").text
    assert 'href="/?q=run&amp;state=running&amp;offset=25"' in page
    assert 'value="run"' in page
    assert '<option value="running" selected>' in page
    # What a person asks goes into the address bar, without empty fields.
    asked = client.get("/?q=run&state=&mine=", headers={**POLL, "HX-Target": "history"})
    assert asked.headers["HX-Push-Url"] == "/?q=run"
    assert asked.text.lstrip().startswith('<div id="history"')


def test_the_history_has_each_score_with_its_coverage(web_site: Site, tmp_path: Path) -> None:
    register(web_site, "w1")
    with running(web_site, tmp_path, "w1"):
        one = submit(web_site, {"tasks": 4, "name": "one", "fail": {"task-4": "invalid"}}).id
        closed(web_site, one)
    two = submit(web_site, {"tasks": 1, "name": "two"}).id
    client = browser(web_site)
    page = client.get("/?part=history", headers=POLL)
    rows = {name: part for name in ("one", "two") for part in page.text.split("<tr>") if f">{name}</a>" in part}
    assert '<th scope="col">Score</th>' in page.text
    said = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", rows["one"]))
    assert re.search(r"1(\.0+)? .*3 of 4 \(75 %\)", said)
    assert 'class="score"' in rows["one"]
    assert 'class="score"' not in rows["two"]
    evaluations.move(web_site.db, two, EvaluationState.CANCELLING)


def test_names_are_text(web_site: Site) -> None:
    register(web_site, "w1")
    id = submit(web_site, {"tasks": 1, "name": "mine"}).id
    evaluations.set_reason(web_site.db, id, "<script>alert(1)</script>")
    page = browser(web_site).get("/?q=<script>").text
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert" in page


def test_pages_say_it_in_chinese_where_it_is_translated(web_site: Site) -> None:
    assert '<html lang="zh-CN"' in browser(web_site).get("/?lang=zh").text


# Alerts


def test_pages_have_the_words_of_the_rules(web_site: Site) -> None:
    with create_app(web_site).test_request_context("/?lang=en"):
        assert {kind: str(text) for kind, text in WORDS.items()} == dict(TEXTS)


def test_alerts_are_shown_with_where_to_look(web_site: Site) -> None:
    register(web_site, "w1", cpus=8)
    client = browser(web_site)
    assert kinds(web_site) == []
    web_site.db.client.delete(key("beat", "w1"))
    page = client.get("/")
    assert "Worker w1 is lost" in words_of(page)
    assert 'href="/workers/w1"' in page.text
    answer = client.get("/api/alerts").json
    assert answer is not None
    (alert,) = answer["alerts"]
    assert (alert["kind"], alert["level"], alert["worker"]) == ("worker_lost", "critical", "w1")
    assert client.get("/api/dashboard/tasks").json["alerts"] == answer["alerts"]  # type: ignore[index]


def test_what_waits_for_workers_that_are_kept_out_is_an_alert(web_site: Site) -> None:
    register(web_site, "w1", cpus=8)
    submit(web_site, {"tasks": 3, "name": "mine"})
    assert kinds(web_site) == []
    wanted.revoke(web_site, "w1")
    assert kinds(web_site) == [Kind.NO_WORKER]
    (alert,) = browser(web_site).get("/api/alerts").json["alerts"]  # type: ignore[index]
    said = "No worker takes work, and evaluations wait (1): w1 is revoked (aeo workers allow w1)."
    assert alert["text"] == said
    assert browser(web_site).get("/api/workers").json == {"workers": [], "out": {"w1": "revoked"}}
    with pytest.raises(InputError, match="w1 is revoked") as refused:
        submit(web_site, {"tasks": 3, "name": "other"})
    assert "aeo workers allow w1" in refused.value.problems[0].fix
    with pytest.raises(InputError, match="worker 'w1' is revoked"):
        submit(web_site, {"tasks": 3, "name": "other"}, workers=["w1"])
    wanted.allow(web_site, "w1")
    assert "none has registered" in browser(web_site).get("/api/alerts").text


def test_many_alerts_are_folded(web_site: Site) -> None:
    for n in range(9):
        register(web_site, f"w{n}")
        web_site.db.client.delete(key("beat", f"w{n}"))
    page = browser(web_site).get("/").text
    assert "3 more" in page
    assert len(re.findall(r"Worker w\d is lost", page)) == 9


def test_a_wiped_store_is_an_alert(web_site: Site) -> None:
    web_site.db.client.delete(key("recovered"))
    assert kinds(web_site) == [Kind.STORE_WIPED]


def test_a_silent_control_process_is_an_alert(web_site: Site) -> None:
    register(web_site, "w1")
    id = submit(web_site, {"tasks": 1}).id
    assert kinds(web_site) == []
    logged(web_site, id)
    old = round((connection.now(web_site.db) - timedelta(seconds=40)).timestamp() * 1000)
    web_site.db.client.xadd(key("events"), {"evaluation": id, "kind": "x", "at": old})
    assert kinds(web_site) == [Kind.CONTROL_SILENT]
    assert events.length(web_site.db) == 1


def test_what_workers_say_of_themselves(web_site: Site) -> None:
    register(web_site, "w1")
    beat = Heartbeat(boot="boot", at=connection.now(web_site.db), disk_free=100 * 2**30, disk_total=200 * 2**30)

    def after(**changes: object) -> list[Kind]:
        workers.beat(web_site.db, "w1", replace(beat, **changes), ttl_seconds=60)  # type: ignore[arg-type]
        return kinds(web_site)

    assert after() == []
    assert after(disk_free=2 * 2**30) == [Kind.WORKER_DISK_LOW]
    assert after(disk_free=10, draining="disk nearly full: 0 MiB free") == [Kind.WORKER_DISK_FULL]
    assert after(clock_skew=-45.0) == [Kind.CLOCK_OFF]
    assert after(draining="stopping") == []


def test_the_controllers_disk(web_site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = type(alerts.psutil.disk_usage("/"))
    monkeypatch.setattr(alerts.psutil, "disk_usage", lambda path: usage(100 * 2**30, 99 * 2**30, 2**30, 99.0))
    (alert,) = alerts.now(web_site)
    assert (alert.kind, alert.values["path"]) == (Kind.CONTROLLER_DISK_LOW, str(web_site.shared.root))


def test_a_trial_past_its_deadline_and_a_slow_one(web_site: Site) -> None:
    register(web_site, "w1", slots=4)
    id = submit(web_site, {"tasks": 8, "seconds": 1}, per_worker_concurrency=4).id
    young = hold(web_site, id)
    assert kinds(web_site) == []
    # Sleep's deadline is ten times its time, and a minute.
    old = hold(web_site, id, minutes_ago=20)
    (alert,) = alerts.now(web_site)
    assert (alert.kind, alert.trial, alert.evaluation) == (Kind.TRIAL_OVERDUE, old, id)
    assert alert.trial != young
    page = browser(web_site).get("/").text
    assert f'href="/evaluations/{id}/trials/{old}"' in page

    slow = submit(web_site, {"tasks": 8, "seconds": 300, "name": "slow"}, per_worker_concurrency=4).id
    names = list(trials.states(web_site.db, slow))
    for name in names[-3:]:
        row = a_row(name)
        ended = row.committed_at
        summary = replace(row.summary, started_at=ended - timedelta(seconds=3), finished_at=ended)
        trials.commit(web_site.db, slow, replace(row, summary=summary), f"k-{name}")
    held = hold(web_site, slow, minutes_ago=15)
    found = {alert.trial: alert.kind for alert in alerts.now(web_site)}
    assert found == {old: Kind.TRIAL_OVERDUE, held: Kind.TRIAL_SLOW}


def test_rate_limits_of_runs_that_are_repeated_and_of_those_that_are_not(web_site: Site) -> None:
    register(web_site, "w1")
    id = submit(web_site, {"tasks": 3, "name": "limited"}).id
    trial = hold(web_site, id)
    reason = "RateLimitError: 429 Too Many Requests"
    trials.requeue(web_site.db, id, trial, f"t-{id}-0", reason=reason, max_requeues=3)
    other = next(name for name in trials.states(web_site.db, id) if name != trial)
    row = a_row(other, outcome=Outcome.INFRA_ERROR)
    row = replace(row, summary=replace(row.summary, error_type="ApiError", error_message="Error code: 429"))
    trials.commit(web_site.db, id, row, "k")
    logged(web_site, id)
    (alert,) = alerts.now(web_site)
    assert (alert.kind, alert.values["count"], alert.values["runs"]) == (Kind.RATE_LIMITED, 2, 2)
    # What is long past is no alert.
    log = web_site.shared.events(id)
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    log.write_text("".join(dumps({**line, "at": "2020-01-01T00:00:00+00:00"}) + "\n" for line in lines))
    assert kinds(web_site) == []
    log.write_text('{"kind": "requeued", "at": 3, "reason": "HTTP 429"}\n[\n{"kind": "committed", "row": 7}\n')
    assert kinds(web_site) == []


def test_what_a_breaker_paused_is_an_alert_and_what_a_person_paused_is_not(web_site: Site, tmp_path: Path) -> None:
    """Through the real breakers, so that their words and the rule's cannot part."""
    site = replace(web_site, config=replace(web_site.config, breaker_runs=4, worker_breaker_runs=0))
    register(site, "w1")
    id = submit(
        site, {"tasks": 9, "fail": {f"task-{n}": "infra" for n in range(1, 10)}, "name": "broken"}, max_requeues=0
    ).id
    with running(site, tmp_path, "w1"):
        eventually(lambda: evaluations.get(site.db, id).state is EvaluationState.PAUSED, 60)
        eventually(lambda: not trials.running(site.db, id), 30)
    assert Kind.EVALUATION_PAUSED in kinds(site)
    evaluations.move(site.db, id, EvaluationState.RUNNING)
    client = browser(site)
    with client.session_transaction() as session:
        session["csrf"] = "c"
    headers = {"X-CSRF-Token": "c"}
    client.post(f"/api/evaluations/{id}/pause", json={"reason": "lunch"}, headers=headers)
    client.post("/api/workers/w1/pause", json={"note": "runs failed by infrastructure"}, headers=headers)
    assert evaluations.get(site.db, id).state is EvaluationState.PAUSED
    assert workers.get(site.db, "w1").state is WorkerState.PAUSED
    assert kinds(site) == []
    workers.set_state(site.db, "w1", WorkerState.PAUSED, "3 batches failed in a row, the last: x")
    assert kinds(site) == [Kind.WORKER_PAUSED]
