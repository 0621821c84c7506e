"""Batches for what waits: dead ones are ended, lost messages sent again, what nobody would take is shared out anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import timedelta

from aeo import dispatch, evaluations
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, TrialState, WorkerState
from aeo.records import Record
from aeo.site import Site
from aeo.store import connection, events, health, trials
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState, BatchStatus, EvaluationStatus
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

#: Seconds after which a batch that has not begun, though it could, is sent again.
RESEND_SECONDS = 10.0
#: Seconds after the last change of an evaluation's batches before idle workers are sent more.
HELP_SECONDS = 10.0
#: Seconds after a batch began until a heartbeat without it means that nobody works on it: one sent before may be late.
LATE_SECONDS = 3.0


def keep_going(site: Site, record: Record, pool: Mapping[str, WorkerStatus], *, dead: bool) -> None:
    """Send batches when trials wait and none that lives could take them, or only late. ``dead``: silence is death."""
    status = store.get(site.db, record.evaluation.id)
    if status.state is not EvaluationState.RUNNING:
        return
    batches = store.batches(site.db, status.id)
    alive = [batch for batch in batches if _attend_batch(site, batch, pool, dead=dead)]
    if not status.pending:
        return
    helpers = _helpers(site, status, batches, alive, pool) if alive else list(pool.values())
    if not helpers:
        return
    try:
        send_more(site, record, helpers)
    except InputError as error:
        store.set_reason(site.db, status.id, f"waiting: {error}"[:1000])
    else:
        store.set_reason(site.db, status.id, "")


def _helpers(
    site: Site,
    status: EvaluationStatus,
    batches: Sequence[BatchStatus],
    alive: Sequence[BatchStatus],
    pool: Mapping[str, WorkerStatus],
) -> list[WorkerStatus]:
    """Idle workers, when every live batch is busy with a trial: what waits would wait as long as that takes.

    So it is when a trial was given back after the others' batches had found nothing more to do.
    """
    holding = {run.claim.batch for run in trials.running(site.db, status.id)}
    if any(batch.batch.id not in holding for batch in alive):
        return []
    if max(batch.since for batch in batches) > connection.now(site.db) - timedelta(seconds=HELP_SECONDS):
        return []
    working = {batch.batch.worker for batch in alive}
    return [
        worker
        for worker in pool.values()
        if worker.info.id not in working
        and evaluations.takes_work(worker)
        and worker.heartbeat is not None
        and len(worker.heartbeat.batches) < worker.info.capacity.slots
    ]


def _attend_batch(site: Site, status: BatchStatus, pool: Mapping[str, WorkerStatus], *, dead: bool) -> bool:
    """Whether a batch will still claim trials; ends one that nobody works on, sends again one whose message is gone."""
    if status.state is BatchState.ENDED:
        return False
    worker = pool.get(status.batch.worker)
    if worker is None or worker.state is WorkerState.LOST:
        if dead:
            store.end_batch(site.db, status.batch)
        return not dead
    if status.state is BatchState.STARTED:
        if _is_forgotten(status, worker):
            log.warning("batch %s is not worked on any more", status.batch.id)
            store.end_batch(site.db, status.batch)
            return False
        return True
    if not status.batch.message:
        # Whoever made it died before it could be sent.
        store.end_batch(site.db, status.batch)
        return False
    if not evaluations.takes_work(worker):
        return False
    if _message_is_lost(site, status, worker):
        log.warning("the message of batch %s is gone; sent again", status.batch.id)
        dispatch.resend(site, status.batch)
        store.note_resent(site.db, status.batch)
    return True


def _is_forgotten(status: BatchStatus, worker: WorkerStatus) -> bool:
    """Whether the worker has said, well after the batch began, that it does not work on it."""
    beat = worker.heartbeat
    late = timedelta(seconds=LATE_SECONDS)
    return beat is not None and beat.at > status.since + late and status.batch.id not in beat.batches


def _message_is_lost(site: Site, status: BatchStatus, worker: WorkerStatus) -> bool:
    """Whether a batch should have begun: its worker has a slot free and nothing waits in its queue."""
    if connection.now(site.db) < status.since + timedelta(seconds=RESEND_SECONDS):
        return False
    beat = worker.heartbeat
    if beat is None or beat.at < status.since or len(beat.batches) >= worker.info.capacity.slots:
        return False
    lists = dispatch.lists_of(dispatch.queue_of(worker.info.id))
    return not sum(health.queue_lengths(site.db, lists).values())


def send_more(site: Site, record: Record, pool: Sequence[WorkerStatus]) -> None:
    """Share out what waits anew, over the workers that may take it now; what fits none of them goes on waiting.

    Raises:
        InputError: no worker can take any of it.
    """
    evaluation = record.evaluation
    states = trials.states(site.db, evaluation.id)
    waiting = [trial for trial in record.trials.values() if states.get(trial.name) is TrialState.PENDING]
    fit = evaluations.usable(pool, evaluation.spec, evaluation.plan)
    shares = evaluations.allot_over(waiting, fit, evaluation.spec)
    if len(shares.homeless) == len(waiting):
        evaluations.share_out(waiting, fit, evaluation.spec)
    batches = evaluations.batches_of(evaluation.id, shares)
    store.add_batches(site.db, evaluation.id, batches, shares.unfit)
    dispatch.send(site, evaluation.id, list(batches), priority=evaluation.spec.priority)
    events.emit(site.db, evaluation.id, "redispatched", batches=len(batches), waiting=len(waiting))
