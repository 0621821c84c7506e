"""An evaluation with a rule is stopped by it: what waits never runs, what runs ends, and everything says why."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import closed, logged, register, result, running
from flask.testing import FlaskClient
from waiting import eventually

from aeo import checks, evaluations, records, stopping
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, Outcome, StopRule
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.submission import Submission
from webapp import create_app

TOKEN = "token-of-this-test"
#: Every trial scores 1, which is known to within 0.12 after 30 of them.
CONFIG = {
    "executor": "sleep",
    "tasks": 400,
    "seconds": 0.02,
    "per_worker_concurrency": "all",
    "stop_when": {"interval": 0.12},
}


def submit(site: Site, name: str, **changes: Any) -> str:
    return evaluations.submit(site, Submission(config={**CONFIG, "name": name, **changes})).evaluation.id


@pytest.fixture
def client(site: Site) -> FlaskClient:
    client = create_app(replace(site, config=replace(site.config, auth_token=TOKEN))).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


def test_it_is_stopped_and_closed_with_the_reason(site: Site, tmp_path: Path) -> None:
    register(site, "a", slots=2)
    with running(site, tmp_path, "a"):
        id = submit(site, "narrow")
        status = closed(site, id, 60)
    ran, left = status.outcomes[Outcome.SCORED], status.outcomes[Outcome.CANCELLED]
    assert status.state is EvaluationState.SUCCEEDED
    assert 30 <= ran < 400
    assert ran + left == 400
    assert status.stopped.startswith("the mean reward is known to within 0.")
    assert status.reason == f"stopped early by its rule, {left} trials not run: {status.stopped}"
    # What ran when it was decided ran to its end.
    folders = [path for path in site.shared.job("narrow").iterdir() if path.is_dir()]
    assert len(folders) == ran
    # It is in the record, in the events and in the job.
    assert records.header(site.shared.evaluation(id)).spec.stop_when == StopRule(interval=0.12)
    said = [event for event in logged(site, id) if event["kind"] == "stopped"]
    assert [event["reason"] for event in said] == [status.stopped]
    assert f"stopped early by its rule: {status.stopped}" in (site.shared.job("narrow") / "job.log").read_text()
    assert result(site, "narrow")["finished_at"] is not None


def test_it_runs_in_an_order_that_does_not_know_the_durations(site: Site, tmp_path: Path) -> None:
    register(site, "a", slots=1)
    with running(site, tmp_path, "a"):
        seconds = [0.02, 0.01, 0.03, 0.05]
        id = submit(site, "order", tasks=12, seconds=seconds, per_worker_concurrency=1, stop_when={"interval": 0.001})
        closed(site, id)
    claimed = [event["trial"] for event in logged(site, id) if event["kind"] == "claimed"]
    planned = tuple(records.read(site.shared.evaluation(id)).trials.values())
    assert claimed == [trial.name for trial in stopping.Watch("order", StopRule(interval=1.0), planned)._order]
    assert store.get(site.db, id).stopped == ""


def test_it_stays_stopped_when_the_store_is_wiped(site: Site, tmp_path: Path) -> None:
    register(site, "a", slots=2)
    with running(site, tmp_path, "a"):
        id = submit(site, "wiped")
        before = closed(site, id, 60)
        logged(site, id)
        site.db.client.flushall()
        register(site, "a", slots=2)
        after = eventually(lambda: _known(site, id), 30)
    assert (after.state, after.stopped, after.reason) == (before.state, before.stopped, before.reason)
    assert (after.done, after.pending) == (400, 0)
    assert after.outcomes == before.outcomes


def _known(site: Site, id: str) -> Any:
    found = store.several(site.db, [id])
    return found[0] if found and found[0].done == found[0].total else None


def test_a_run_that_is_given_back_is_not_run_again(site: Site, tmp_path: Path) -> None:
    register(site, "a", slots=2)
    id = submit(site, "back")
    status = store.get(site.db, id)
    stopping.stop(site, status, "enough is known")
    status = store.get(site.db, id)
    assert (status.pending, status.outcomes[Outcome.CANCELLED], status.stopped) == (0, 400, "enough is known")
    # Twice is once.
    stopping.stop(site, status, "something else")
    assert store.get(site.db, id).stopped == "enough is known"
    with running(site, tmp_path, "a"):
        assert closed(site, id).state is EvaluationState.SUCCEEDED


def test_a_rule_that_cannot_be_used_is_refused_before_anything_is_made(site: Site) -> None:
    register(site, "a")
    request = Submission(config={**CONFIG, "name": "no", "stop_when": {"compare": ["sleeper", "other"]}})
    with pytest.raises(InputError) as raised:
        evaluations.submit(site, request)
    assert [(one.field, one.message) for one in raised.value.problems] == [("stop_when", "no trial is of 'other'.")]
    assert checks.check(site, request).problems == raised.value.problems
    assert not site.shared.job("no").exists()


def test_the_page_and_the_api_show_the_rule(site: Site, client: FlaskClient) -> None:
    register(site, "a")
    id = submit(site, "shown", stop_when={"interval": 0.12, "min_trials": 40})
    page = client.get(f"/evaluations/{id}").text
    assert "Stops early when every mean reward is known to within 0.12 (from 40 trials on)." in page
    body = json.loads(client.get(f"/api/evaluations/{id}").text)
    assert body["spec"]["stop_when"] == {"interval": 0.12, "compare": [], "min_trials": 40}
    assert body["status"]["stopped"] == ""
