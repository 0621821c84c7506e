"""The rules of alerts, for every fact."""

from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import event_log
from aeo.core import alerts
from aeo.core.alerts import (
    LEVELS,
    TEXTS,
    Alert,
    ControllerFacts,
    EvaluationFacts,
    Kind,
    Level,
    RunFacts,
    WorkerFacts,
    judge,
    text,
)
from aeo.core.breaker import tripped
from aeo.core.model import EvaluationState, WorkerState

NOW = datetime(2026, 3, 1, 12, tzinfo=timezone.utc)
GIB = 1024**3

NAME = st.sampled_from(["a", "b", "c"])
SECONDS = st.floats(min_value=0, max_value=1e6)
BYTES = st.integers(min_value=0, max_value=2**50)
WORKER = st.builds(
    WorkerFacts,
    id=NAME,
    state=st.sampled_from(WorkerState),
    note=st.sampled_from(["", "paused by eva", "3 batches failed in a row, the last: 100%"]),
    last_seen=st.none() | st.just(NOW),
    disk_free=st.none() | BYTES,
    disk_total=BYTES,
    disk_full=st.booleans(),
    clock_skew=st.none() | st.floats(min_value=-1e5, max_value=1e5),
)
EVALUATION = st.builds(
    EvaluationFacts,
    id=NAME,
    name=st.sampled_from(["job", "100% s", "%(x)s"]),
    state=st.sampled_from([state for state in EvaluationState if not state.final]),
    reason=st.sampled_from(["", "paused by operator: lunch", "9 of the last 10 runs failed by infrastructure"]),
    errors=st.lists(st.sampled_from(["", "RateLimitError: slow down", "AgentTimeoutError"]), max_size=6),
)
RUN = st.builds(
    RunFacts,
    evaluation=NAME,
    trial=NAME,
    worker=NAME,
    seconds=SECONDS,
    expected=st.none() | SECONDS,
    deadline=st.none() | SECONDS,
)
CONTROLLER = st.builds(
    ControllerFacts,
    settled=st.booleans(),
    unwritten_seconds=SECONDS,
    disks=st.dictionaries(st.just("/data"), st.tuples(BYTES, BYTES)),
)
FACTS = (CONTROLLER, st.lists(WORKER, max_size=4), st.lists(EVALUATION, max_size=4), st.lists(RUN, max_size=4))


def kinds(found: tuple[Alert, ...]) -> list[Kind]:
    return [alert.kind for alert in found]


def of_worker(**fields: object) -> list[Kind]:
    facts = WorkerFacts(**{"id": "w", "state": WorkerState.ONLINE, **fields})  # type: ignore[arg-type]
    return kinds(judge(ControllerFacts(), [facts], [], []))


def of_evaluation(**fields: object) -> list[Kind]:
    facts = EvaluationFacts(**{"id": "e", "name": "job", "state": EvaluationState.RUNNING, **fields})  # type: ignore[arg-type]
    return kinds(judge(ControllerFacts(), [], [facts], []))


def of_run(seconds: float, **fields: object) -> list[Kind]:
    facts = RunFacts(evaluation="e", trial="t", worker="w", seconds=seconds, **fields)  # type: ignore[arg-type]
    return kinds(judge(ControllerFacts(), [], [], [facts]))


def test_every_kind_has_a_level_and_words() -> None:
    assert set(LEVELS) == set(TEXTS) == set(Kind)


def test_when_all_is_well_there_is_nothing_to_say() -> None:
    worker = WorkerFacts(id="w", state=WorkerState.ONLINE, disk_free=50 * GIB, disk_total=100 * GIB, clock_skew=0.1)
    evaluation = EvaluationFacts(id="e", name="job", state=EvaluationState.RUNNING, errors=("", "", ""))
    run = RunFacts(evaluation="e", trial="t", worker="w", seconds=700, expected=600, deadline=1800)
    assert judge(ControllerFacts(disks={"/": (50 * GIB, 99 * GIB)}), [worker], [evaluation], [run]) == ()


@given(*FACTS)
def test_alerts_are_about_what_is_there_and_can_be_said(
    controller: ControllerFacts, workers: list[WorkerFacts], evaluations: list[EvaluationFacts], runs: list[RunFacts]
) -> None:
    found = judge(controller, workers, evaluations, runs)
    for alert in found:
        assert alert.level is LEVELS[alert.kind]
        assert alert.worker in {"", *(w.id for w in workers), *(r.worker for r in runs)}
        assert alert.evaluation in {"", *(e.id for e in evaluations), *(r.evaluation for r in runs)}
        said = text(alert)
        assert said
        assert "None" not in said
    assert [a.level for a in found] == sorted((a.level for a in found), key=list(Level).index)


@given(*FACTS)
def test_the_order_of_the_facts_does_not_matter(
    controller: ControllerFacts, workers: list[WorkerFacts], evaluations: list[EvaluationFacts], runs: list[RunFacts]
) -> None:
    once = judge(controller, workers, evaluations, runs)
    turned = judge(controller, workers[::-1], evaluations[::-1], runs[::-1])
    assert sorted(map(repr, once)) == sorted(map(repr, turned))
    assert [a.kind for a in once] == [a.kind for a in turned]


@given(*FACTS)
def test_more_facts_silence_nothing(
    controller: ControllerFacts, workers: list[WorkerFacts], evaluations: list[EvaluationFacts], runs: list[RunFacts]
) -> None:
    whole = [repr(alert) for alert in judge(controller, workers, evaluations, runs)]
    for part in (judge(controller, [], [], []), judge(ControllerFacts(), workers, [], runs)):
        for alert in part:
            assert repr(alert) in whole


@given(WORKER)
def test_a_lost_worker_is_one_alert_whatever_it_said_last(facts: WorkerFacts) -> None:
    found = judge(ControllerFacts(), [facts], [], [])
    assert (Kind.WORKER_LOST in kinds(found)) is (facts.state is WorkerState.LOST)
    if facts.state is WorkerState.LOST:
        assert len(found) == 1
        assert found[0].since == facts.last_seen


@given(BYTES, BYTES)
def test_a_fuller_disk_is_not_better(free: int, total: int) -> None:
    if alerts.is_low(free, total):
        assert alerts.is_low(free // 2, total)
    assert not alerts.is_low(max(free, 5 * GIB), total)


@pytest.mark.parametrize(
    ("free", "total", "low"),
    [
        (4 * GIB, 0, True),
        (6 * GIB, 0, False),
        (4 * GIB, 1000 * GIB, True),
        (4 * GIB, 20 * GIB, False),
        (1 * GIB, 20 * GIB, True),
    ],
)
def test_when_a_disk_is_low(free: int, total: int, low: bool) -> None:
    assert alerts.is_low(free, total) is low
    assert (of_worker(disk_free=free, disk_total=total) == [Kind.WORKER_DISK_LOW]) is low
    found = kinds(judge(ControllerFacts(disks={"/": (free, total)}), [], [], []))
    assert (found == [Kind.CONTROLLER_DISK_LOW]) is low


def test_a_full_disk_is_said_once() -> None:
    assert of_worker(disk_free=10, disk_total=GIB, disk_full=True) == [Kind.WORKER_DISK_FULL]
    # Registered, and not heard of since.
    assert of_worker(disk_free=None) == []


@given(SECONDS, st.none() | SECONDS, st.none() | SECONDS)
def test_a_trial_that_takes_too_long_is_said_once(
    seconds: float, expected: float | None, deadline: float | None
) -> None:
    found = of_run(seconds, expected=expected, deadline=deadline)
    assert len(found) <= 1
    if deadline is not None and seconds > deadline:
        assert found == [Kind.TRIAL_OVERDUE]
    elif found:
        assert expected is not None
        assert seconds > expected * 4
        assert seconds > expected + 600
    if found:
        assert of_run(seconds * 2 + 1, expected=expected, deadline=deadline)


def test_short_trials_are_not_slow() -> None:
    assert of_run(599, expected=1) == []
    assert of_run(700, expected=1) == [Kind.TRIAL_SLOW]
    assert of_run(3 * 3600, expected=3600) == []
    assert of_run(5 * 3600, expected=3600) == [Kind.TRIAL_SLOW]
    assert of_run(1e6) == []


@pytest.mark.parametrize(
    "error",
    [
        "RateLimitError: litellm.RateLimitError: AnthropicException",
        "litellm.exceptions.RateLimitError",
        "rate_limit_error",
        "You have reached your rate limit.",
        "openai.APIStatusError: Error code: 429 - {'error': ...}",
        "HTTP 429",
        "HTTP/1.1 429 Too Many Requests",
        "status_code=429",
        "Client error '429 Too Many Requests' for url",
        "anthropic.OverloadedError",
        "overloaded_error",
        "quota exceeded for model",
    ],
)
def test_rate_limits_are_known(error: str) -> None:
    assert alerts.is_rate_limit(error)
    assert of_evaluation(errors=("", error)) == [Kind.RATE_LIMITED]


@pytest.mark.parametrize(
    "error",
    [
        "",
        "AgentTimeoutError: Agent execution timed out after 429.0 seconds",
        "429 tests failed",
        "HTTP 500",
        "status 4290",
        "line 1429",
        "error in step 3 of 429",
        "the server is overloaded with work",
        "Error: timed out after 429 s",
    ],
)
def test_other_errors_are_none(error: str) -> None:
    assert not alerts.is_rate_limit(error)


@given(st.lists(st.sampled_from(["", "RateLimitError", "TimeoutError"]), max_size=30))
def test_rate_limits_are_counted(errors: list[str]) -> None:
    facts = EvaluationFacts(id="e", name="job", state=EvaluationState.RUNNING, errors=errors)
    found = judge(ControllerFacts(), [], [facts], [])
    limited = errors.count("RateLimitError")
    assert [(a.values["count"], a.values["runs"]) for a in found] == ([(limited, len(errors))] if limited else [])


def test_what_a_person_paused_is_no_alert() -> None:
    for by in ("paused by a person", "paused by operator", "paused by eva: new driver"):
        assert of_worker(state=WorkerState.PAUSED, note=by) == []
        assert of_evaluation(state=EvaluationState.PAUSED, reason=by) == []
    for why in ("3 batches failed in a row, the last: x", "5 of its last 8 runs failed by infrastructure, the last: "):
        assert of_worker(state=WorkerState.PAUSED, note=why) == [Kind.WORKER_PAUSED]
        assert of_evaluation(state=EvaluationState.PAUSED, reason=why) == [Kind.EVALUATION_PAUSED]
        assert of_worker(state=WorkerState.ONLINE, note=why) == []
        assert of_evaluation(state=EvaluationState.RUNNING, reason=why) == []
    assert tripped([True] * 8, 8, 0.5)


def test_the_controllers_own_troubles() -> None:
    assert kinds(judge(ControllerFacts(settled=False), [], [], [])) == [Kind.STORE_WIPED]
    assert kinds(judge(ControllerFacts(unwritten_seconds=14), [], [], [])) == []
    assert kinds(judge(ControllerFacts(unwritten_seconds=16), [], [], [])) == [Kind.CONTROL_SILENT]


@pytest.mark.parametrize("skew", [40.0, -40.0])
def test_a_clock_that_is_off(skew: float) -> None:
    assert of_worker(clock_skew=skew) == [Kind.CLOCK_OFF]
    assert of_worker(clock_skew=skew / 2) == []


def test_texts_write_durations_and_sizes() -> None:
    run = RunFacts(evaluation="e", trial="t1", worker="w", seconds=7200, deadline=90)
    assert text(judge(ControllerFacts(), [], [], [run])[0]) == (
        "t1 runs for 2.0 h on w, past its hard deadline of 2 min."
    )
    (low,) = judge(ControllerFacts(disks={"/data": (3 * GIB, 0)}), [], [], [])
    assert text(low) == "The controller's disk under /data is nearly full: 3.0 GiB free."
    (little,) = judge(ControllerFacts(disks={"/data": (30 * 1024**2, 0)}), [], [], [])
    assert "30 MiB free" in text(little)


# The log's end, which the errors of runs are read from


def test_the_end_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "events.jsonl"
    assert event_log.latest(log, 1000) == []
    lines = [json.dumps({"kind": "requeued", "n": n, "reason": "é" * 20}) for n in range(50)]
    log.write_text("\n".join(lines) + "\n", encoding="utf-8")
    whole = event_log.latest(log, 10**6)
    assert [event["n"] for event in whole] == list(range(50))
    for most in (1, 100, 333, 1000):
        some = event_log.latest(log, most)
        assert [event["n"] for event in some] == list(range(50))[50 - len(some) :]
        assert len(some) * len(lines[0]) <= most
    log.write_text('{"kind": "x"}\n[1]\n{"torn', encoding="utf-8")
    assert event_log.latest(log, 1000) == [{"kind": "x"}]


def test_since_is_kept() -> None:
    seen = NOW - timedelta(hours=1)
    (alert,) = judge(ControllerFacts(), [WorkerFacts(id="w", state=WorkerState.LOST, last_seen=seen)], [], [])
    assert (alert.since, alert.worker) == (seen, "w")
