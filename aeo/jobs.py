"""Closing a job: the chord's callback, safe to ring twice, late or too early."""

from __future__ import annotations

import fcntl
import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from aeo import dispatch, executors, records
from aeo.core.errors import ExecutorFailed, NotFound, Unavailable
from aeo.core.model import EvaluationState, Outcome, TrialRow
from aeo.core.words import count
from aeo.executors import JobProgress
from aeo.layout import LIVE, inside
from aeo.records import Record
from aeo.site import Site
from aeo.store import evaluations, events, trials
from aeo.store.evaluations import EvaluationStatus

log = logging.getLogger(__name__)

#: Failed merges before an evaluation is closed as failed.
MERGE_TRIES = 5


def merge(site: Site, id: str) -> EvaluationState:
    """Close an evaluation's job if all its trials are in; looks at the store and the disk, never at who rang.

    Returns the state it left the evaluation in: not a final one when trials are open, somebody else closes it just now,
    or the merge failed and is to be tried again.

    Raises:
        NotFound: no such evaluation.
        Unavailable: the store is away.
    """
    # Two locks: a merge is not turned away because a refresh holds the job for a moment.
    with _alone(site, id, "merge", wait=False) as only:
        if not only:
            return evaluations.get(site.db, id).state
        with _alone(site, id, "job"):
            return _merge(site, id)


def _merge(site: Site, id: str) -> EvaluationState:
    status = evaluations.get(site.db, id)
    if status.state.final or status.done < status.total:
        return status.state
    evaluations.move(site.db, id, EvaluationState.MERGING)
    try:
        _close(site, records.read(site.shared.evaluation(id)), status)
    except Exception as error:
        log.exception("the merge of %s failed", status.name)
        return _merge_failed(site, id, error, _cancelled(status))
    return _end(site, id, *_closing_state(status))


def _cancelled(status: EvaluationStatus) -> str:
    """Who cancelled it, as its reason has said since then."""
    return status.reason.partition(";")[0] if status.reason.startswith("cancelled") else ""


def _merge_failed(site: Site, id: str, error: Exception, cancelled: str) -> EvaluationState:
    reason = f"merge failed: {type(error).__name__}: {error}"[:1000]
    # Or the next try could not say it any more.
    reason = f"{cancelled}; {reason}" if cancelled else reason
    # A full disk or a store that is away passes; what a person repairs must not condemn days of results.
    passes = isinstance(error, OSError) or (isinstance(error, Unavailable) and not isinstance(error, ExecutorFailed))
    if not passes and evaluations.count_merge_failure(site.db, id) >= MERGE_TRIES:
        return _end(site, id, EvaluationState.FAILED, reason)
    # The reconciler rings again.
    evaluations.set_reason(site.db, id, reason)
    return EvaluationState.MERGING


def _end(site: Site, id: str, state: EvaluationState, reason: str) -> EvaluationState:
    evaluations.set_reason(site.db, id, reason)
    evaluations.move(site.db, id, state, reason)
    events.emit(site.db, id, "closed", state=state.value, reason=reason)
    return state


def _closing_state(status: EvaluationStatus) -> tuple[EvaluationState, str]:
    cancelled, failed = (status.outcomes.get(one, 0) for one in (Outcome.CANCELLED, Outcome.INFRA_ERROR))

    if status.stopped and status.state is not EvaluationState.CANCELLING:
        reason = f"stopped early by its rule, {count(cancelled, 'trial')} not run: {status.stopped}"
        if failed:
            return EvaluationState.FAILED, f"{count(failed, 'infrastructure error')}; {reason}"
        return EvaluationState.SUCCEEDED, reason
    if cancelled:
        who = _cancelled(status) or "cancelled"
        return (
            EvaluationState.CANCELLED,
            f"{who}; {count(cancelled, 'trial')} not run to {'its' if cancelled == 1 else 'their'} end",
        )
    if failed:
        ended = "ended as an infrastructure error" if failed == 1 else "ended as infrastructure errors"
        return EvaluationState.FAILED, f"{count(failed, 'trial')} {ended}"
    return EvaluationState.SUCCEEDED, ""


def _close(site: Site, record: Record, status: EvaluationStatus) -> None:
    # What lost runs showed while they ran.
    shutil.rmtree(site.shared.inbox / status.id / LIVE, ignore_errors=True)
    executor = executors.load(record.evaluation.spec.executor)
    executor.merge(record.whole(), Path(record.evaluation.job_dir), progress(site, status, ()))


def progress(site: Site, status: EvaluationStatus, known: tuple[TrialRow, ...]) -> JobProgress:
    """What the job's summary is made from; ``known`` are the first rows in commit order, not asked for again."""
    rows = known + tuple(trials.rows_since(site.db, status.id, len(known)))
    return JobProgress(
        rows=rows,
        running=tuple(run.claim.trial for run in trials.running(site.db, status.id)),
        requeues=status.requeues,
        stopped=status.stopped,
    )


def refresh(site: Site, id: str, known: tuple[TrialRow, ...]) -> tuple[TrialRow, ...]:
    """Bring a running job's summary up to date; returns the rows it now rests on."""
    with _alone(site, id, "job"):
        status = evaluations.get(site.db, id)
        if status.state.final or status.state is EvaluationState.MERGING:
            return known
        record = records.read(site.shared.evaluation(id))
        executor = executors.load(record.evaluation.spec.executor)
        now = progress(site, status, known)
        # Trials cancelled before they ran have no folder, and so no place in the job.
        shown = replace(now, rows=tuple(row for row in now.rows if row.attempt))
        executor.refresh_job(record.whole(), Path(record.evaluation.job_dir), shown)
        return now.rows


@contextmanager
def _alone(site: Site, id: str, what: str, *, wait: bool = True) -> Iterator[bool]:
    """One at a time over threads and processes; gives False when another one is and it is not to ``wait``."""
    folder = site.shared.evaluation(id)
    if not folder.is_dir():
        raise NotFound(f"No evaluation {id!r} on disk.")
    with inside(folder, f"{what}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True


def ring_if_all_in(site: Site, id: str) -> bool:
    """Ring the merge when every trial is done, whatever the chord does."""
    status = evaluations.get(site.db, id)
    if status.state.final or status.done < status.total:
        return False
    dispatch.ring(site, id)
    return True
