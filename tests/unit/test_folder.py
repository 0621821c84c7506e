"""Job folders: statistics, running summary, merge."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.model import Evaluation, Outcome, Spec, TrialRow, TrialSummary
from aeo.executors import JobProgress, TrialContext, folder, result, statistics

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
LABELS = {"agent": "a", "dataset": "d"}


def row(task: str, rewards: dict[str, float] | None = None, *errors: str, name: str = "", **more) -> TrialRow:
    outcome = more.pop("outcome", Outcome.SCORED if rewards else Outcome.INFRA_ERROR)
    summary = TrialSummary(
        trial=name or f"{task}__1",
        task=task,
        outcome=outcome,
        rewards=rewards or {},
        started_at=NOW,
        finished_at=NOW + timedelta(seconds=2),
        error_type=errors[0] if errors else "",
        error_types=errors,
        labels=more.pop("labels", LABELS),
        **more,
    )
    return TrialRow(summary=summary, worker="w", attempt=1, committed_at=NOW + timedelta(seconds=3))


def evaluation(tasks: int = 2, attempts: int = 1) -> Evaluation:
    planned = [folder.TaskPlan(name=f"t{i}", estimated_seconds=1, deadline_seconds=9) for i in range(tasks)]
    return Evaluation(
        id="e1",
        spec=Spec(executor="sleep", name="job"),
        plan=folder.plan(planned, labels=LABELS, attempts=attempts),
        submitted_at=NOW,
    )


def document(job_dir: Path) -> dict:
    return json.loads((job_dir / "result.json").read_text())


def test_one_reward_gives_its_mean():
    stats = statistics.of([row("t1", {"reward": 1.0}), row("t2", {"reward": 0.5}), row("t3", None, "Boom")], total=5)
    group = stats["evals"]["a__d"]
    assert group["metrics"] == [{"mean": 0.75}]
    assert group["reward_stats"] == {"reward": {"1.0": ["t1__1"], "0.5": ["t2__1"]}}
    assert (group["n_trials"], group["n_errors"]) == (2, 1)
    assert group["exception_stats"] == {"Boom": ["t3__1"]}
    assert (stats["n_completed_trials"], stats["n_errored_trials"], stats["n_pending_trials"]) == (3, 1, 2)


def test_several_rewards_give_a_mean_each_and_a_missing_one_counts_zero():
    stats = statistics.of([row("t1", {"x": 1.0, "y": 0.5}), row("t2", {"x": 1.0})], total=2)
    assert stats["evals"]["a__d"]["metrics"] == [{"x": 1.0, "y": 0.25}]
    assert stats["evals"]["a__d"]["pass_at_k"] == {}


def test_groups_are_agent_model_and_dataset():
    rows = [
        row("t1", {"reward": 1.0}, labels={"agent": "a", "model": "m", "dataset": "d"}),
        row("t2", {"reward": 1.0}, labels={"agent": "b"}),
    ]
    assert list(statistics.of(rows, total=2)["evals"]) == ["a__m__d", "b__adhoc"]


def test_cancelled_trials():
    ran = row("t1", None, statistics.CANCELLED, outcome=Outcome.CANCELLED)
    waited = replace(
        ran,
        summary=replace(ran.summary, trial="t2__1", started_at=None, finished_at=None, error_types=(), error_type=""),
    )
    stats = statistics.of([ran, waited], total=3)
    assert (stats["n_completed_trials"], stats["n_cancelled_trials"], stats["n_pending_trials"]) == (1, 1, 2)


def test_tokens_and_cost_are_summed_and_unknown_stays_unknown():
    rows = [row("t1", {"r": 1.0}, input_tokens=10, cost_usd=0.5), row("t2", {"r": 1.0}, input_tokens=5)]
    stats = statistics.of(rows, total=2)
    assert (stats["n_input_tokens"], stats["n_output_tokens"], stats["cost_usd"]) == (15, None, 0.5)


def test_pass_at_k():
    # Two trials of a task, one passed: both drawn, one is among them.
    assert statistics.pass_at_k([(2, 1)]) == {"2": 1.0}
    assert statistics.pass_at_k([(4, 1), (4, 0)]) == {"2": pytest.approx(0.25), "4": 0.5}
    assert list(statistics.pass_at_k([(17, 3)])) == ["2", "4", "5", "8", "10", "15", "16"]
    assert statistics.pass_at_k([(1, 1), (8, 4)]) == {}
    assert statistics.pass_at_k([]) == {}


@given(st.lists(st.tuples(st.integers(2, 12), st.integers(0, 12)), min_size=1, max_size=5))
def test_pass_at_k_is_a_chance_that_grows_with_k(counts):
    values = list(statistics.pass_at_k([(n, min(n, c)) for n, c in counts]).values())
    assert all(0 <= value <= 1 for value in values)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(values))


def test_trial_names_are_unique_short_and_plain():
    plan = evaluation(tasks=1, attempts=500).plan
    assert len({trial.name for trial in plan.trials}) == 500
    assert folder.trial_name("x" * 50, set()).startswith("x" * 32 + "__")


def test_start_refresh_merge(tmp_path):
    asked = evaluation()
    folder.start(asked, tmp_path)
    assert document(tmp_path)["finished_at"] is None
    assert document(tmp_path)["n_total_trials"] == 2
    first, second = asked.plan.trials
    rows = (row("t0", {"reward": 1.0}, name=first.name),)
    folder.refresh_job(asked, tmp_path, JobProgress(rows=rows, running=(second.name,), requeues=3))
    stats = document(tmp_path)["stats"]
    assert (stats["n_completed_trials"], stats["n_running_trials"], stats["n_pending_trials"]) == (1, 1, 0)
    assert stats["n_retries"] == 3
    folder.start(asked, tmp_path)  # again, as a restarted controller does
    assert document(tmp_path)["stats"] == stats


def test_merge_counts_what_lies_in_the_folder(tmp_path):
    asked = evaluation(tasks=3)
    folder.start(asked, tmp_path)
    with_row, without_row, gone = asked.plan.trials
    for trial in (with_row, without_row):
        (tmp_path / trial.name).mkdir()
        context = TrialContext(trial_dir=tmp_path / trial.name, content_dir=None, final_dir=str(tmp_path / trial.name))
        folder.fail(asked, trial, context, "WorkerLost", "gone")
    rows = (row("t0", None, "WorkerLost", name=with_row.name), row("t2", {"reward": 1.0}, name=gone.name))
    folder.merge(asked, tmp_path, JobProgress(rows=rows))
    closed = (tmp_path / "result.json").read_bytes()
    stats = document(tmp_path)["stats"]
    assert stats["evals"]["a__d"]["exception_stats"] == {"WorkerLost": [with_row.name, without_row.name]}
    assert (stats["n_completed_trials"], stats["n_pending_trials"]) == (2, 1)
    assert document(tmp_path)["finished_at"] is not None
    folder.merge(asked, tmp_path, JobProgress(rows=rows))
    assert (tmp_path / "result.json").read_bytes() == closed


def test_a_late_refresh_does_not_reopen_a_closed_job(tmp_path):
    asked = evaluation()
    folder.start(asked, tmp_path)
    folder.merge(asked, tmp_path, JobProgress())
    closed = (tmp_path / "result.json").read_bytes()
    folder.refresh_job(asked, tmp_path, JobProgress(running=("x",)))
    folder.start(asked, tmp_path)
    assert (tmp_path / "result.json").read_bytes() == closed


def test_job_times_are_local_without_zone(tmp_path):
    folder.start(evaluation(), tmp_path)
    started = datetime.fromisoformat(document(tmp_path)["started_at"])
    assert started.tzinfo is None
    assert started.astimezone() == NOW


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path):
    result.write_json(tmp_path / "x.json", {"a": 1})
    with pytest.raises(ValueError, match="JSON compliant"):
        result.write_json(tmp_path / "x.json", {"a": float("nan")})
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]
    assert json.loads((tmp_path / "x.json").read_text()) == {"a": 1}
