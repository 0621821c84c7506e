from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest

from aeo.core.errors import ExecutorFailed, InputError
from aeo.core.model import Evaluation, Outcome, PlannedTrial, Spec, TrialSummary
from aeo.executors import SubmittedFile, TrialContext, sleep
from aeo.executors.sleep import executor


def planned(**config) -> Evaluation:
    spec = Spec(executor="sleep", name="job", config=config)
    plan = executor.plan(spec, SubmittedFile())
    return Evaluation(id="e1", spec=spec, plan=plan, submitted_at=datetime.now(timezone.utc))


def context(tmp_path: Path, trial: PlannedTrial, attempt: int = 1) -> TrialContext:
    folder = tmp_path / f"{trial.name}.{attempt}"
    folder.mkdir()
    return TrialContext(trial_dir=folder, content_dir=None, final_dir=f"/jobs/job/{trial.name}", attempt=attempt)


def run(evaluation: Evaluation, trial: PlannedTrial, tmp_path: Path, attempt: int = 1) -> TrialSummary:
    place = context(tmp_path, trial, attempt)
    events: list[str] = []
    executor.open(evaluation, tmp_path).run(trial, place, events.append)
    assert events == ["agent"]
    return executor.summarise(trial, place.trial_dir)


def test_plan():
    evaluation = planned(tasks=3, attempts=2, seconds=[1, 2], reward=[1, 0.5], cpus=1, memory_mb=64, labels={"k": "v"})
    trials = evaluation.plan.trials
    assert [trial.task for trial in trials] == ["task-1", "task-2", "task-3"] * 2
    assert [trial.estimated_seconds for trial in trials[:3]] == [1.0, 2.0, 1.0]
    assert len({trial.name for trial in trials}) == 6
    assert trials[0].labels == {"k": "v", "agent": "sleeper", "dataset": "sleep"}
    assert (trials[0].needs.cpus, trials[0].needs.memory_mb) == (1.0, 64)
    assert json.loads(json.dumps(trials[0].payload)) == trials[0].payload


def test_plan_of_trials_and_names_and_spread():
    assert len(planned(trials=1000).plan.trials) == 1000
    spread = planned(tasks=["a", "b"], seconds={"min": 1, "max": 2, "seed": 3}).plan
    assert [trial.task for trial in spread.trials] == ["a", "b"]
    assert all(1 <= trial.estimated_seconds <= 2 for trial in spread.trials)
    again = planned(tasks=["a", "b"], seconds={"min": 1, "max": 2, "seed": 3}).plan
    assert [t.estimated_seconds for t in again.trials] == [t.estimated_seconds for t in spread.trials]
    assert planned(tasks=1, seconds=1, estimate=60).plan.trials[0].estimated_seconds == 60


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({}, "tasks"),
        ({"tasks": 1, "trials": 1}, "tasks"),
        ({"tasks": 0}, "tasks"),
        ({"tasks": True}, "tasks"),
        ({"tasks": ["../x"]}, "tasks[0]"),
        ({"tasks": ["a", "a"]}, "tasks"),
        ({"trials": ["a"]}, "trials"),
        ({"trials": 10**6}, "trials"),
        ({"tasks": 1, "attempts": 0}, "attempts"),
        ({"tasks": 1, "seconds": -1}, "seconds"),
        ({"tasks": 1, "seconds": float("nan")}, "seconds"),
        ({"tasks": 1, "seconds": []}, "seconds"),
        ({"tasks": 1, "seconds": {"min": 2, "max": 1}}, "seconds.min"),
        ({"tasks": 1, "sekonds": 1}, "sekonds"),
        ({"tasks": 1, "fail": {"task-1": ["explode"]}}, "fail.task-1"),
        ({"tasks": 1, "fail": {"task-2": "die"}}, "fail.task-2"),
        ({"tasks": 1, "dataset": "a__b"}, "dataset"),
        ({"tasks": 1, "labels": {"k": [1]}}, "labels.k"),
    ],
)
def test_a_fault_names_its_place(config, place):
    with pytest.raises(InputError) as raised:
        planned(**config)
    assert place in [problem.field for problem in raised.value.problems]


def test_a_fault_names_its_line():
    text = "executor: sleep\ntasks: 2\nfail:\n  task-9: die\n"
    spec = Spec(executor="sleep", name="job", config={"tasks": 2, "fail": {"task-9": "die"}})
    with pytest.raises(InputError, match=r"plan.yaml:4: fail.task-9"):
        executor.plan(spec, SubmittedFile(name="plan.yaml", text=text))


def test_endings_go_run_by_run(tmp_path):
    evaluation = planned(tasks=2, fail={"task-1": ["die", "infra", "invalid", "zero"], "task-2": "infra"})
    first, second = evaluation.plan.trials
    with pytest.raises(ExecutorFailed, match="died"):
        run(evaluation, first, tmp_path, 1)
    outcomes = [run(evaluation, first, tmp_path, attempt).outcome for attempt in (2, 3, 4, 5)]
    assert outcomes == [Outcome.INFRA_ERROR, Outcome.INVALID, Outcome.SCORED, Outcome.SCORED]
    assert [run(evaluation, second, tmp_path, attempt).outcome for attempt in (1, 9)] == [Outcome.INFRA_ERROR] * 2


def test_scores(tmp_path):
    evaluation = planned(tasks=2, reward=[0.25, 1], fail={"task-2": ["zero"]})
    assert [run(evaluation, trial, tmp_path).rewards for trial in evaluation.plan.trials] == [
        {"reward": 0.25},
        {"reward": 0.0},
    ]


def test_the_workers_speed_counts(tmp_path, monkeypatch):
    monkeypatch.setenv(sleep.SPEED, "10")
    evaluation = planned(tasks=1, seconds=1)
    seconds = run(evaluation, evaluation.plan.trials[0], tmp_path).seconds
    assert seconds is not None
    assert 0.1 <= seconds < 0.5


def test_stop_is_at_once(tmp_path):
    evaluation = planned(tasks=2, seconds=60)
    first, second = evaluation.plan.trials
    session = executor.open(evaluation, tmp_path)
    session.stop("nothing runs yet")
    place = context(tmp_path, first)
    began = time.monotonic()
    session.run(first, place, lambda _: threading.Timer(0.1, session.stop, ["enough"]).start())
    assert time.monotonic() - began < 5
    summary = executor.summarise(first, place.trial_dir)
    assert (summary.outcome, summary.error_message) == (Outcome.CANCELLED, "enough")
    place = context(tmp_path, second)
    session.run(second, place, lambda _: threading.Timer(0.1, session.stop, ["again"]).start())
    assert executor.summarise(second, place.trial_dir).error_message == "again"
    session.close()


def test_a_hang_does_not_listen(tmp_path, monkeypatch):
    monkeypatch.setattr(sleep, "HANG_SECONDS", 0.5)
    evaluation = planned(tasks=1, fail={"task-1": "hang"})
    trial = evaluation.plan.trials[0]
    session = executor.open(evaluation, tmp_path)
    began = time.monotonic()
    with pytest.raises(ExecutorFailed):
        session.run(trial, context(tmp_path, trial), lambda _: session.stop("enough"))
    assert time.monotonic() - began >= 0.5


def test_a_thousand_trials_of_no_time_are_light(tmp_path):
    evaluation = planned(trials=1000)
    session = executor.open(evaluation, tmp_path)
    places = [context(tmp_path, trial) for trial in evaluation.plan.trials]
    for trial, place in zip(evaluation.plan.trials, places, strict=True):
        session.run(trial, place, lambda _: None)
    files = list(places[0].trial_dir.iterdir())
    assert sorted(path.name for path in files) == ["config.json", "result.json", "trial.log"]
    assert sum(path.stat().st_size for path in files) < 4096


def test_fail_writes_a_result(tmp_path):
    evaluation = planned(tasks=1)
    trial = evaluation.plan.trials[0]
    place = context(tmp_path, trial)
    executor.fail(evaluation, trial, place, "DeadlineExceeded", "It took too long.")
    summary = executor.summarise(trial, place.trial_dir)
    assert (summary.outcome, summary.error_type) == (Outcome.INFRA_ERROR, "DeadlineExceeded")
