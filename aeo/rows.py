"""Committed rows: recorded in the store and the summaries, remembered as durations, looked at by the breakers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from aeo import summaries
from aeo.core.breaker import tripped
from aeo.core.errors import NotFound
from aeo.core.model import EvaluationState, Outcome, PlannedTrial, TrialRow, WorkerState
from aeo.core.speeds import Timed
from aeo.records import Record
from aeo.site import Site
from aeo.store import evaluations, events, history, speeds, trials, workers


def keep(site: Site, id: str, row: TrialRow, token: str) -> bool:
    """Record a row in the store, which decides, and in the summaries, which only follow it; False when it is late."""
    return keep_all(site, [(id, row, token)])[0]


def keep_all(site: Site, rows: Sequence[tuple[str, TrialRow, str]]) -> list[bool]:
    """`keep` several rows, each with its evaluation and token."""
    firsts = trials.commit_all(site.db, rows)
    by_evaluation: dict[str, list[TrialRow]] = {}
    for (id, row, _), first in zip(rows, firsts, strict=True):
        if first:
            by_evaluation.setdefault(id, []).append(row)
    for id, first_rows in by_evaluation.items():
        summaries.put(site.book, id, *first_rows)
    return firsts


def note_durations(site: Site, rows: Sequence[tuple[Record, PlannedTrial, TrialRow]]) -> None:
    """Remember how long trials took that ran to their end, for later estimates."""
    ran: dict[str, list[tuple[PlannedTrial, float, str]]] = {}
    scored: dict[str, list[tuple[str, PlannedTrial, TrialRow]]] = {}
    for record, trial, row in rows:
        seconds = row.summary.seconds
        if seconds is not None and row.summary.outcome in (Outcome.SCORED, Outcome.INVALID):
            valid = row.summary.outcome is Outcome.SCORED
            # What is invalid may have ended early, and says nothing of its worker.
            worker = row.worker if valid else ""
            ran.setdefault(record.evaluation.spec.executor, []).append((trial, seconds, worker))
            if valid:
                scored.setdefault(record.evaluation.spec.executor, []).append((record.evaluation.id, trial, row))
    for executor, runs in scored.items():
        speeds.note(site.db, _compared(site, executor, runs))
    for executor, durations in ran.items():
        history.note(site.db, executor, durations)


def _compared(
    site: Site, executor: str, runs: Sequence[tuple[str, PlannedTrial, TrialRow]]
) -> Iterator[tuple[str, Timed]]:
    """Each with its worker, beside the last run of the same that another worker had."""
    known = history.runs(site.db, executor, (trial.history_key for _, trial, _ in runs))
    for id, trial, row in runs:
        who = (trial.labels.get("agent", ""), trial.labels.get("model", ""))
        for past in known.get(trial.history_key, ()):
            if past.worker not in ("", row.worker) and (past.agent, past.model) == who:
                seconds = row.summary.seconds or 0.0
                yield row.worker, Timed(evaluation=id, seconds=seconds, other=past.worker, before=past.seconds)
                break


def watch(site: Site, rows: Sequence[tuple[str, TrialRow]]) -> None:
    """Pause the worker, or else the evaluation, when too many runs in a row fail by infrastructure."""
    config = site.config
    keep = max(1, config.breaker_runs, config.worker_breaker_runs)
    runs = [(id, row.worker, row.summary.outcome is Outcome.INFRA_ERROR) for id, row in rows]
    paused: set[str] = set()
    for (id, row), (of_evaluation, of_worker) in zip(rows, trials.note_runs(site.db, runs, keep=keep), strict=True):
        last = f"the last: {row.summary.error_type}: {row.summary.error_message}"[:300]
        if row.worker in paused:
            continue
        if tripped(of_worker, config.worker_breaker_runs, config.breaker_share):
            paused.add(row.worker)
            _pause_worker(site, id, row.worker, of_worker[: config.worker_breaker_runs], last)
        elif tripped(of_evaluation, config.breaker_runs, config.breaker_share):
            looked = of_evaluation[: config.breaker_runs]
            reason = f"{sum(looked)} of the last {len(looked)} runs failed by infrastructure, {last}"
            evaluations.move(site.db, id, EvaluationState.PAUSED, reason)


def _pause_worker(site: Site, evaluation: str, worker: str, runs: Sequence[bool], last: str) -> None:
    note = f"{sum(runs)} of its last {len(runs)} runs failed by infrastructure, {last}"
    with suppress(NotFound):
        workers.set_state(site.db, worker, WorkerState.PAUSED, note)
    events.emit(site.db, evaluation, "worker_paused", worker=worker, reason=note)
    # The evaluation goes on with the others; what this one broke says nothing about them.
    evaluations.forget_recent(site.db, evaluation)
