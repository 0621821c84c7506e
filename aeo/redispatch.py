"""Batches for what waits: dead ones are ended, lost messages sent again, what nobody would take is shared out anew."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone

from aeo import credentials, dispatch, logs, sharing
from aeo.core import allot
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, TrialState, WorkerState
from aeo.records import Record
from aeo.secrets import needs
from aeo.site import Site
from aeo.store import connection, events, health, trials, workers
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState, BatchStatus, EvaluationStatus
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

#: Seconds after which a batch that has not begun, though it could, is sent again.
RESEND_SECONDS = 10.0
#: Seconds after a batch ended at a worker before it is sent another one of the same evaluation, at least and at most.
HELP_SECONDS, LONGEST_HELP_SECONDS = 3.0, 60.0
#: Seconds after a batch began until a heartbeat without it means that nobody works on it: one sent before may be late.
LATE_SECONDS = 3.0


def keep_going(site: Site, record: Record, pool: Mapping[str, WorkerStatus], *, dead: bool) -> None:
    """Send batches when trials wait and none that lives could take them, or only late. ``dead``: silence is death."""
    status = store.get(site.db, record.evaluation.id)
    if status.state is not EvaluationState.RUNNING:
        return
    batches = store.batches(site.db, status.id)
    executor = record.evaluation.spec.executor
    alive = [batch for batch in batches if _attend_batch(site, batch, pool, executor, dead=dead)]
    if not status.pending:
        return
    if alive:
        _send_helpers(site, record, status, batches, alive, pool)
        return
    try:
        send_more(site, record, list(pool.values()))
    except InputError as error:
        store.set_reason(site.db, status.id, f"waiting: {error}"[:1000])
    else:
        store.set_reason(site.db, status.id, "")


def _send_helpers(
    site: Site,
    record: Record,
    status: EvaluationStatus,
    batches: Sequence[BatchStatus],
    alive: Sequence[BatchStatus],
    pool: Mapping[str, WorkerStatus],
) -> None:
    """Send batches without a share to slots that nobody uses, or to which this evaluation has a right.

    Only while trials wait that they could take from others. So it is when a worker joins late or comes back with more
    slots, when others are done there, or when a trial was given back after a batch had found nothing more to do.
    """
    evaluation = record.evaluation
    try:
        elsewhere = needs.elsewhere(site, evaluation.spec)
        usable = sharing.usable(list(pool.values()), evaluation.spec, evaluation.plan, elsewhere)
    except InputError:
        return
    wanted = _wanted(site, record, batches, alive, usable)
    left, helpers = status.pending, []
    for id, room in _room(site, status, {id: pool[id] for id in wanted}).items():
        count = min(wanted[id], room, left)
        helpers += [sharing.new_batch(status.id, id) for _ in range(count)]
        left -= count
    if helpers:
        # Before the seat, as whatever a worker claims looks at the seats it has.
        credentials.grant(site, status.id, {batch.worker for batch in helpers})
        store.add_batches(site.db, status.id, dict.fromkeys(helpers, ()))
        dispatch.send(site, status.id, helpers, priority=evaluation.spec.priority)
        events.emit(site.db, status.id, "redispatched", batches=len(helpers), waiting=status.pending)


def _wanted(
    site: Site,
    record: Record,
    batches: Sequence[BatchStatus],
    alive: Sequence[BatchStatus],
    usable: Sequence[WorkerStatus],
) -> Mapping[str, int]:
    """How many more batches of an evaluation each worker could hold now, if its slots were free."""
    waiting = store.waiting_needs(site.db, record.evaluation.id)
    now, found = connection.now(site.db), {}
    for worker in usable:
        id, capacity = worker.info.id, worker.info.capacity
        holds = max((needs.fit(capacity) for needs in waiting), default=0)
        most = min(holds, record.evaluation.spec.per_worker_concurrency or holds)
        more = most - sum(batch.batch.worker == id for batch in alive)
        if more > 0 and worker.weight_override != 0 and now >= _next_help(batches, worker):
            found[id] = more
    return found


def _room(site: Site, status: EvaluationStatus, pool: Mapping[str, WorkerStatus]) -> Mapping[str, int]:
    """How many more seats of each worker an evaluation may have."""
    seats = workers.seats(site.db, list(pool))
    priorities = {status.id: status.priority}
    others = {other for taken in seats.values() for other in taken} - {status.id}
    priorities |= {other.id: other.priority for other in store.several(site.db, sorted(others))}
    return {id: allot.room(pool[id].info.capacity.slots, status.id, taken, priorities) for id, taken in seats.items()}


def _next_help(batches: Sequence[BatchStatus], worker: WorkerStatus) -> datetime:
    """When a worker may be sent another batch: later and later where they end with trials still waiting."""
    ended = [item.since for item in batches if item.batch.worker == worker.info.id and item.state is BatchState.ENDED]
    if not ended:
        return datetime.min.replace(tzinfo=timezone.utc)
    rounds = len(ended) / max(1, worker.info.capacity.slots)
    return max(ended) + timedelta(seconds=min(LONGEST_HELP_SECONDS, HELP_SECONDS * max(1.0, rounds)))


def _attend_batch(
    site: Site, status: BatchStatus, pool: Mapping[str, WorkerStatus], executor: str, *, dead: bool
) -> bool:
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
            with logs.about(batch=status.batch.id, worker=status.batch.worker):
                log.warning("batch %s is not worked on any more", status.batch.id)
            store.end_batch(site.db, status.batch)
            return False
        return True
    if not status.batch.message:
        if connection.now(site.db) < status.since + timedelta(seconds=RESEND_SECONDS):
            return True
        # Whoever made it died before it could be sent.
        store.end_batch(site.db, status.batch)
        return False
    if not sharing.takes_work(worker) or executor in worker.paused_executors:
        return False
    if _message_is_lost(site, status, worker):
        with logs.about(batch=status.batch.id, worker=status.batch.worker):
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
    """Whether a batch waits for a slot and its message does not."""
    if connection.now(site.db) < status.since + timedelta(seconds=RESEND_SECONDS):
        return False
    id = worker.info.id
    lists = dispatch.lists_of(dispatch.queue_of(id))
    if sum(health.queue_lengths(site.db, lists).values()) >= workers.waiting(site.db, id):
        return False
    return status.batch.id not in health.queued(site.db, lists)


def send_more(site: Site, record: Record, pool: Sequence[WorkerStatus]) -> None:
    """Share out what waits anew, over the workers that may take it now; what fits none of them goes on waiting.

    Raises:
        InputError: no worker can take any of it.
    """
    evaluation = record.evaluation
    states = trials.states(site.db, evaluation.id)
    waiting = [trial for trial in record.trials.values() if states.get(trial.name) is TrialState.PENDING]
    fit = sharing.usable(pool, evaluation.spec, evaluation.plan, needs.elsewhere(site, evaluation.spec))
    shares = sharing.allot_over(waiting, fit, evaluation.spec)
    if len(shares.homeless) == len(waiting):
        sharing.share_out(waiting, fit, evaluation.spec)
    batches = sharing.batches_of(evaluation.id, shares)
    credentials.grant(site, evaluation.id, {batch.worker for batch in batches})
    store.add_batches(site.db, evaluation.id, batches, shares.unfit)
    dispatch.send(site, evaluation.id, list(batches), priority=evaluation.spec.priority)
    events.emit(site.db, evaluation.id, "redispatched", batches=len(batches), waiting=len(waiting))
