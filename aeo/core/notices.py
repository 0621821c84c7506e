"""What people are told of without looking: what finished, what was paused, which worker was lost. Pure.

Each is told once, when it becomes so: `compare` holds what is now against what was `Seen` before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import Enum

from aeo.core.alerts import is_breakers
from aeo.core.model import EvaluationState, Outcome, WorkerState

#: What ended longer ago is no news: the telling was switched off meanwhile.
NEWS_SECONDS = 24 * 3600.0
#: Ended evaluations that are remembered as told.
REMEMBERED = 500
#: Seconds between two tries to tell: doubling from the first to the longest. After `GIVEN_UP_SECONDS` it is let go.
FIRST_PAUSE, LONGEST_PAUSE, GIVEN_UP_SECONDS = 5.0, 3600.0, 24 * 3600.0


class Kind(str, Enum):
    """What a notice is about."""

    FINISHED = "finished"
    PAUSED = "paused"
    WORKER_LOST = "worker_lost"
    WORKER_PAUSED = "worker_paused"


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One thing to tell."""

    kind: Kind
    at: datetime
    #: One line.
    subject: str
    #: The whole in words, some lines.
    text: str
    evaluation: str = ""
    name: str = ""
    worker: str = ""
    state: str = ""
    #: The same wherever and however often it is sent, so that a receiver can tell that it knows it.
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class EvaluationFacts:
    """An evaluation, as far as notices care."""

    id: str
    name: str
    state: EvaluationState
    reason: str = ""
    total: int = 0
    done: int = 0
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    submitted_at: datetime | None = None
    finished_at: datetime | None = None
    job: str = ""


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A worker, as far as notices care."""

    id: str
    host: str
    state: WorkerState
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What was so at the last look."""

    at: datetime
    #: State of each evaluation that was not closed.
    evaluations: Mapping[str, EvaluationState] = field(default_factory=dict)
    #: Closed ones that were told of, the latest last.
    finished: tuple[str, ...] = ()
    workers: Mapping[str, WorkerState] = field(default_factory=dict)


def compare(
    before: Seen | None, now: datetime, evaluations: Iterable[EvaluationFacts], workers: Iterable[WorkerFacts] | None
) -> tuple[Seen, list[Notice]]:
    """What is seen now, and what of it is news.

    ``before`` None: nobody looked before, so nothing is. ``evaluations``: all that are not closed, those of ``before``
    that are known still, and whichever closed ones; one that was not in ``before`` is news when it ended since.
    ``workers`` None: nobody can say now.
    """
    evaluations, workers = list(evaluations), None if workers is None else list(workers)
    told = dict.fromkeys(before.finished if before else ())
    news: list[Notice] = []
    for facts in evaluations:
        if facts.state.final:
            if before and facts.id not in told and _has_just_ended(before, now, facts):
                news.append(_finished(facts, now))
                told[facts.id] = None
        elif before and facts.state is EvaluationState.PAUSED is not before.evaluations.get(facts.id):
            news.append(_paused(facts, now))
    for worker in workers or ():
        if before:
            news += _of_worker(worker, before.workers.get(worker.id), now)
    return Seen(
        at=now,
        evaluations={facts.id: facts.state for facts in evaluations if not facts.state.final},
        finished=tuple(told)[-REMEMBERED:],
        workers={worker.id: worker.state for worker in workers}
        if workers is not None
        else (before.workers if before else {}),
    ), news


def _has_just_ended(before: Seen, now: datetime, facts: EvaluationFacts) -> bool:
    if facts.finished_at is not None and facts.finished_at < now - timedelta(seconds=NEWS_SECONDS):
        return False
    return facts.id in before.evaluations or (facts.finished_at is not None and facts.finished_at > before.at)


def pause(tries: int) -> float:
    """Seconds to wait after so many tries that failed."""
    return min(FIRST_PAUSE * 2.0 ** min(max(tries, 1) - 1, 20), LONGEST_PAUSE)


_ENDED = {
    EvaluationState.SUCCEEDED: "succeeded",
    EvaluationState.FAILED: "failed",
    EvaluationState.CANCELLED: "was cancelled",
}


def _finished(facts: EvaluationFacts, now: datetime) -> Notice:
    counts = [(outcome.value, facts.outcomes.get(outcome, 0)) for outcome in Outcome]
    lines = [
        f"Evaluation: {facts.name} ({facts.id})",
        f"Trials: {facts.done} of {facts.total}",
        *(f"  {name}: {count}" for name, count in counts if count),
    ]
    if facts.submitted_at and facts.finished_at:
        lines.append(f"Took: {timedelta(seconds=round((facts.finished_at - facts.submitted_at).total_seconds()))}")
    if facts.job:
        lines.append(f"Job: {facts.job}")
    if facts.reason:
        lines.append(f"Reason: {facts.reason}")
    return _of_evaluation(Kind.FINISHED, facts, facts.finished_at or now, f"{facts.name} {_ENDED[facts.state]}", lines)


def _paused(facts: EvaluationFacts, now: datetime) -> Notice:
    lines = [
        f"Evaluation: {facts.name} ({facts.id})",
        f"Reason: {facts.reason or 'none was given'}",
        f"Trials: {facts.done} of {facts.total} are done; no further one starts.",
        f"To go on: aeo resume {facts.id}",
    ]
    return _of_evaluation(Kind.PAUSED, facts, now, f"{facts.name} is paused", lines)


def _of_evaluation(kind: Kind, facts: EvaluationFacts, at: datetime, subject: str, lines: Sequence[str]) -> Notice:
    return Notice(
        kind=kind,
        at=at,
        subject=_line(subject),
        text="\n".join(lines),
        evaluation=facts.id,
        name=facts.name,
        state=facts.state.value,
    )


def _of_worker(facts: WorkerFacts, before: WorkerState | None, now: datetime) -> list[Notice]:
    lost = facts.state is WorkerState.LOST and before not in (None, WorkerState.LOST)
    paused = is_breakers(facts.state, facts.note) and before is not WorkerState.PAUSED
    if not (lost or paused):
        return []
    if lost:
        kind, subject = Kind.WORKER_LOST, f"worker {facts.id} is lost"
        more = ["It has sent no heartbeat within the grace time; what it ran is given to others."]
    else:
        kind, subject = Kind.WORKER_PAUSED, f"worker {facts.id} is paused, as its runs fail"
        more = [f"Reason: {facts.note}", f"To go on: aeo workers resume {facts.id}"]
    lines = [f"Worker: {facts.id} on {facts.host}", *more]
    return [
        Notice(
            kind=kind,
            at=now,
            subject=_line(subject),
            text="\n".join(lines),
            worker=facts.id,
            state=facts.state.value,
        )
    ]


def _line(text: str) -> str:
    return " ".join(text.split())
