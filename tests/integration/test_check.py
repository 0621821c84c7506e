"""A check tells all that is wrong and what each worker would get, and makes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from aeo import checks, evaluations
from aeo.checks import Check
from aeo.core.model import Capacity, PlannedTrial, WorkerInfo, WorkerState
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import history, limits, workers
from aeo.submission import Submission
from webapp import create_app

TOKEN = "s3cret-token-of-this-test"
TEXT = "executor: sleep\nname: first\ntasks: 6\nattempts: 2\nseconds: 5\nper_worker_concurrency: all\n"


def register(site: Site, id: str, *, slots: int = 2, cpus: float = 4.0, **changes: Any) -> None:
    info = WorkerInfo(
        id=id,
        display_name=id,
        host="h",
        capacity=Capacity(slots=slots, cpus=cpus, memory_mb=8192),
        boot="b",
        instance=id,
        executors=changes.pop("executors", {"sleep": ""}),
        **changes,
    )
    workers.register(site.db, info)


def ran(site: Site, task: str, seconds: float) -> None:
    labels = {"dataset": "sleep", "agent": "sleeper"}
    trial = PlannedTrial(name="t", task=task, labels=labels, estimated_seconds=5.0)
    history.note(site.db, "sleep", [(trial, seconds, "")])


def check(site: Site, text: str, **fields: Any) -> Check:
    return checks.check(site, Submission(text=text, file_name="job.yaml", **fields))


@pytest.fixture
def nothing_made(site: Site) -> Iterator[None]:
    yield
    assert store.page(site.db, offset=0, limit=10) == ([], 0)
    assert list(site.shared.jobs_dir.iterdir()) == []
    assert list(site.shared.evaluations.iterdir()) == []


pytestmark = pytest.mark.usefixtures("nothing_made")


def test_what_each_worker_would_get_is_what_it_gets_when_submitted(site: Site) -> None:
    register(site, "w1", slots=1)
    register(site, "w2", slots=3)
    found = check(site, TEXT)
    assert found.problems == ()
    assert (found.executor, found.name, found.trials, found.tasks) == ("sleep", "first", 12, 6)
    assert [(item.agent, item.model, item.trials) for item in found.agents] == [("sleeper", "", 12)]
    assert {item.worker: (item.trials, item.slots) for item in found.shares} == {"w1": (3, 1), "w2": (9, 3)}
    made = evaluations.submit(site, Submission(text=TEXT))
    batches = store.batches(site.db, made.evaluation.id)
    assert sorted((item.batch.worker, item.left) for item in batches) == [("w1", 3), ("w2", 3), ("w2", 3), ("w2", 3)]
    # For the fixture: this test alone makes something.
    store.delete(site.db, made.evaluation.id)
    site.shared.job("first").rename(site.shared.root / "gone")
    site.shared.evaluation(made.evaluation.id).rename(site.shared.root / "gone too")


def test_a_time_is_told_only_when_it_is_known(site: Site) -> None:
    register(site, "w1", slots=2)
    assert check(site, TEXT).estimated_seconds is None
    assert check(site, TEXT).shares[0].estimated_seconds is None
    for task in (1, 2):
        ran(site, f"task-{task}", 20.0)
    found = check(site, TEXT)
    assert (found.known, found.estimated_seconds) == (4, None)
    ran(site, "task-3", 20.0)
    found = check(site, TEXT)
    # Four times as long as planned, so the others are too: 12 trials of 20 s over 2 slots.
    assert (found.known, found.estimated_seconds) == (6, pytest.approx(120))
    assert found.shares[0].estimated_seconds == pytest.approx(120)


def test_limits_of_a_provider_count_in_the_time(site: Site) -> None:
    register(site, "w1", slots=3)
    for task in (1, 2, 3):
        ran(site, f"task-{task}", 1.0)
    text = "executor: sleep\nname: first\ntasks: 3\nseconds: 1\nmodel: p/m\nper_worker_concurrency: all\n"
    assert check(site, text).estimated_seconds == pytest.approx(1.0)
    limits.set(site.db, "p", per_minute=30)
    limits.set(site.db, "other", per_minute=1)
    found = check(site, text)
    assert (found.estimated_seconds, found.limits) == (pytest.approx(5.0), ("p",))
    assert found.shares[0].estimated_seconds == pytest.approx(5.0)


@pytest.mark.parametrize(("attempts", "slots", "played"), [(200, 150, True), (200, 1000, True), (250, 900, False)])
def test_what_takes_long_to_play_through_is_bounded(
    site: Site, monkeypatch: pytest.MonkeyPatch, attempts: int, slots: int, played: bool
) -> None:
    """A check under a limit takes its time for each trial and each slot, of which there are no more than trials."""
    register(site, "w1", slots=slots)
    for task in (1, 2):
        ran(site, f"task-{task}", 1.0)
    limits.set(site.db, "p", trials=2)
    asked: list[object] = []
    real = checks.simulate.simulate
    monkeypatch.setattr(checks.simulate, "simulate", lambda *a, **k: asked.append(a) or real(*a, **k))
    text = f"executor: sleep\nname: first\ntasks: 2\nattempts: {attempts}\nseconds: 1\nmodel: p/m\n"
    found = check(site, f"{text}per_worker_concurrency: all\n")
    assert found.estimated_seconds == pytest.approx(attempts)
    assert bool(asked) == played


def test_a_whole_number_out_of_range_is_told_the_range(site: Site) -> None:
    found = check(site, "executor: sleep\ntasks: 1\npriority: 99999999999999\nmax_requeues: -1\n")
    assert [item.message for item in found.problems[:2]] == [
        "must be a whole number from -1000000000 to 1000000000.",
        "must be a whole number from 0 to 1000000000.",
    ]


def test_all_that_is_wrong_is_told_at_once_with_its_line(site: Site) -> None:
    site.shared.job("first").mkdir()
    try:
        text = "executor: sleep\nname: first\nworkers: [nobody]\npriority: high\ntasks: 2\n"
        found = check(site, text + "seconds: no\nodd: 1\n")
    finally:
        site.shared.job("first").rmdir()
    assert {(item.field, item.message.split()[0]) for item in found.problems} == {
        ("job.yaml:2: name", "the"),
        ("job.yaml:3: workers", "no"),
        ("job.yaml:4: priority", "must"),
        ("job.yaml:6: seconds", "must"),
        ("job.yaml:7: odd", "unknown"),
    }
    assert found.trials == 0


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("", "job.yaml"),
        ("a: [\n", "job.yaml:2"),
        ("executor: ray\n", "job.yaml:1: executor"),
    ],
)
def test_what_cannot_be_read_is_a_problem_too(site: Site, text: str, field: str) -> None:
    found = check(site, text)
    assert [item.field for item in found.problems] == [field]
    assert found.shares == ()


def test_a_wrong_header_does_not_hide_what_else_is_wrong(site: Site) -> None:
    register(site, "w1")
    found = check(site, "executor: sleep\nname: ../x\npriority: high\ntasks: 2\n")
    assert [item.field for item in found.problems] == ["job.yaml:2: name", "job.yaml:3: priority"]
    assert (found.name, found.trials) == ("", 2)
    assert found.shares[0].trials == 2


def test_a_worker_that_does_not_fit_says_why(site: Site) -> None:
    register(site, "fits", cpus=8)
    register(site, "small", cpus=1)
    register(site, "other", executors={"command": ""})
    register(site, "older", executors={"sleep": "0.1"})
    register(site, "paused")
    workers.set_state(site.db, "paused", WorkerState.PAUSED, "new disk")
    register(site, "none")
    workers.set_weight(site.db, "none", 0)
    found = check(site, TEXT + "cpus: 2\n")
    assert found.problems == ()
    assert {item.worker: item.reason for item in found.unfit} == {
        "small": "cannot hold 12 of 12 trials: they need up to 2 cpus and 0 MiB, it has 1 cpu and 8192 MiB",
        "other": "has no sleep",
        "older": "has sleep 0.1, not ",
        "paused": "paused: new disk",
        "none": "has weight 0",
    }
    assert [item.worker for item in found.shares] == ["fits"]


def test_trials_that_fit_nowhere_are_a_problem(site: Site) -> None:
    register(site, "w1", cpus=2)
    found = check(site, TEXT + "cpus: 16\n")
    assert {item.field for item in found.problems} == {f"task task-{number}" for number in range(1, 7)}
    assert "largest worker has 2" in found.problems[0].message


def test_nobody_there(site: Site) -> None:
    found = check(site, TEXT)
    assert [item.field for item in found.problems] == ["job.yaml:1: workers"]
    assert found.trials == 12


@pytest.fixture
def client(site: Site) -> FlaskClient:
    client = create_app(replace(site, config=replace(site.config, auth_token=TOKEN))).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


def test_by_the_api(site: Site, client: FlaskClient) -> None:
    register(site, "w1")
    answer = client.post("/api/plan", json={"text": TEXT, "options": {"name": "other"}})
    assert answer.status_code == 200, answer.text
    assert (answer.json["name"], answer.json["trials"], answer.json["problems"]) == ("other", 12, [])
    assert answer.json["estimated_seconds"] is None
    wrong = client.post("/api/plan", json={"text": "executor: sleep\ntasks: x\n"})
    assert wrong.status_code == 200
    assert wrong.json["problems"] == [
        {"field": "line 2: tasks", "message": "must be a whole number from 1 to 200000.", "fix": ""}
    ]
    assert client.post("/api/plan", json={"text": "a", "config": {}}).status_code == 422
