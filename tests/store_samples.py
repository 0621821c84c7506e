"""Evaluations, batches and rows to store in tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timezone

from aeo.core.model import (
    Batch,
    Capacity,
    Evaluation,
    Outcome,
    Plan,
    PlannedTrial,
    Spec,
    TrialRow,
    TrialSummary,
    WorkerInfo,
)
from aeo.store import evaluations
from aeo.store.connection import Db

SUBMITTED = datetime(2026, 3, 1, 12, 0, tzinfo=timezone.utc)


def an_evaluation(
    trials: Mapping[str, float] | Sequence[str], *, id: str = "e1", name: str = "job", at: datetime = SUBMITTED
) -> Evaluation:
    """``trials``: name to estimated seconds."""
    seconds = trials if isinstance(trials, Mapping) else dict.fromkeys(trials, 10.0)
    planned = tuple(PlannedTrial(name=n, task=f"task-{n}", estimated_seconds=s) for n, s in seconds.items())
    return Evaluation(
        id=id, spec=Spec(executor="sleep", name=name, priority=3), plan=Plan(trials=planned), submitted_at=at
    )


def a_batch(id: str, worker: str = "", *, evaluation: str = "e1") -> Batch:
    return Batch(id=id, evaluation=evaluation, worker=worker or f"worker-{id}")


def stored(
    db: Db,
    shares: Mapping[str, Mapping[str, float] | Sequence[str]],
    *,
    id: str = "e1",
    name: str = "job",
    at: datetime = SUBMITTED,
    unfit: Mapping[str, frozenset[str]] | None = None,
    workers: Mapping[str, str] | None = None,
) -> dict[str, Batch]:
    """Save an evaluation made of these shares (batch to trials); worker ids are ``worker-<batch>`` unless told."""
    seconds: dict[str, float] = {}
    for trials in shares.values():
        seconds |= trials if isinstance(trials, Mapping) else dict.fromkeys(trials, 10.0)
    batches = {b: a_batch(b, (workers or {}).get(b, ""), evaluation=id) for b in shares}
    evaluation = an_evaluation(seconds, id=id, name=name, at=at)
    evaluations.save(db, evaluation, {batches[b]: list(trials) for b, trials in shares.items()}, unfit or {})
    return batches


def a_row(trial: str, *, outcome: Outcome = Outcome.SCORED, worker: str = "w", task: str = "") -> TrialRow:
    rewards = {"reward": 1.0} if outcome is Outcome.SCORED else {}
    summary = TrialSummary(trial=trial, task=task or f"task-{trial}", outcome=outcome, rewards=rewards)
    return TrialRow(summary=summary, worker=worker, attempt=1, committed_at=SUBMITTED)


def a_worker(id: str = "w1", *, boot: str = "boot-1", instance: str = "here", host: str = "alpha") -> WorkerInfo:
    return WorkerInfo(
        id=id,
        display_name=id.upper(),
        host=host,
        capacity=Capacity(slots=2, cpus=4.0, memory_mb=8000),
        boot=boot,
        instance=instance,
        executors={"sleep": "1"},
    )
