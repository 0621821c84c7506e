"""Repairs: what is lost, left over or not known any more is put right. Every repair is idempotent and an event."""

from __future__ import annotations

import logging
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path

from aeo import dispatch, evaluations, event_log, jobs, records, results
from aeo.core.errors import ExecutorFailed, InputError, NotFound, Unavailable
from aeo.core.model import Claim, EvaluationState, TrialState, WorkerState
from aeo.records import Record
from aeo.site import Site
from aeo.store import connection, events, health, inbox, trials, workers
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState, BatchStatus, EvaluationStatus
from aeo.store.trials import Requeued
from aeo.store.workers import WorkerStatus
from aeo.transfer import manifest as manifests

log = logging.getLogger(__name__)

#: Seconds after which a batch that has not begun, though it could, is sent again.
RESEND_SECONDS = 10.0
#: Seconds after the last change of an evaluation's batches before idle workers are sent more.
HELP_SECONDS = 10.0
#: Seconds that runs get to take their leases back after the store was wiped, before their trials are shared out anew.
RECLAIM_SECONDS = 5.0


def recover(site: Site) -> None:
    """Make the store agree with the disk: at controller start, and whenever the store was wiped.

    Raises:
        Unavailable: the store is away.
    """
    _sweep_staging(site)
    for folder in sorted(path for path in site.shared.evaluations.iterdir() if (path / records.EVALUATION).exists()):
        with _no_harm_to_others(folder.name, "recovered"):
            _recover_evaluation(site, folder)
    inbox.restore(site.db)
    _recover_inbox(site)
    health.mark_recovered(site.db)


def _sweep_staging(site: Site) -> None:
    """Submissions that died half-way: their staging, and the job folder if nothing ran in it."""
    with site.shared.nobody_submits() as alone:
        if alone:
            _sweep_left_overs(site)


def _sweep_left_overs(site: Site) -> None:
    for staging in site.shared.evaluations.glob("new.*"):
        id = staging.name.removeprefix("new.")
        if not site.shared.evaluation(id).exists() and (staging / records.EVALUATION).exists():
            job_dir = Path(records.read(staging).evaluation.job_dir)
            if job_dir.is_dir() and not any(path.is_dir() for path in job_dir.iterdir()):
                shutil.rmtree(job_dir, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)


def _recover_evaluation(site: Site, folder: Path) -> None:
    record = records.read(folder)
    try:
        status = store.get(site.db, folder.name)
    except NotFound:
        status = _rebuild(site, record)
    if not status.state.final:
        _adopt_committed(site, record)
        jobs.ring_if_all_in(site, status.id)


def _rebuild(site: Site, record: Record) -> EvaluationStatus:
    """Enter an evaluation into an empty store; its trials wait for `reconcile` to send batches."""
    evaluation = record.whole()
    state, reason = event_log.last_state(event_log.read(site.shared.events(evaluation.id))) or (
        EvaluationState.RUNNING,
        "",
    )
    # In its last state from the first moment: one that is cancelled or closed must not run again.
    store.save(site.db, evaluation, {}, {}, state=state, reason=reason)
    _adopt_committed(site, record)
    if state in (EvaluationState.CANCELLING, EvaluationState.CANCELLED):
        trials.cancel_pending(site.db, evaluation.id)
    events.emit(site.db, evaluation.id, "recovered")
    return store.get(site.db, evaluation.id)


def _adopt_committed(site: Site, record: Record) -> None:
    """Record what lies in the job folder; a trial committed is never run again."""
    job_dir = Path(record.evaluation.job_dir)
    rows = {row.summary.trial for row in trials.rows_since(site.db, record.evaluation.id, 0)}
    # What is just being committed is left to the commit, which knows who ran it.
    inbox_of = site.shared.inbox / record.evaluation.id
    arriving = {path.name.removesuffix(".json").rpartition(".")[0] for path in inbox_of.glob("*.json")}
    unknown = [
        trial
        for trial in record.trials.values()
        if trial.name not in rows and trial.name not in arriving and (job_dir / trial.name / "result.json").is_file()
    ]
    if not unknown:
        return
    logged = event_log.committed_rows(event_log.read(site.shared.events(record.evaluation.id)))
    for trial in unknown:
        results.adopt(site, record, trial, logged.get(trial.name))


def _recover_inbox(site: Site) -> None:
    """Look at every result that arrived and was not taken."""
    for path in sorted(site.shared.inbox.glob("*/*.json")):
        try:
            manifest = manifests.load(path)
        except InputError as error:
            log.warning("a manifest in the inbox is damaged: %s", error)
            continue
        trials.pushed(site.db, manifest.claim)


def reconcile(site: Site, *, watched_seconds: float = math.inf) -> None:
    """One round of repairs over what is open.

    ``watched_seconds``: for how long the caller has seen the store without a gap. What happened in a gap nobody could
    say: leases and heartbeats have ended in it, whoever lives.

    Raises:
        Unavailable: the store is away.
    """
    settled = health.settled_seconds(site.db)
    if settled is None:
        log.warning("the store was wiped or started again; bringing it in line with the disk")
        recover(site)
        settled = 0.0
    settled = min(settled, watched_seconds)
    pool = {worker.info.id: worker for worker in workers.all(site.db)}
    for id in store.open_ids(site.db):
        with _no_harm_to_others(id, "repaired"):
            _repair(site, id, pool, settled)


@contextmanager
def _no_harm_to_others(id: str, what: str) -> Iterator[None]:
    """One evaluation that cannot be seen to must not keep the others from it."""
    try:
        yield
    except Unavailable as error:
        if isinstance(error, ExecutorFailed):
            log.error("evaluation %s cannot be %s now: %s", id, what, error)
        else:
            raise
    except InputError as error:
        log.error("evaluation %s cannot be %s: %s", id, what, error)
    except Exception:
        log.exception("evaluation %s cannot be %s", id, what)


def _repair(site: Site, id: str, pool: Mapping[str, WorkerStatus], settled: float) -> None:
    try:
        record = records.read(site.shared.evaluation(id))
    except NotFound:
        _drop_unborn(site, id)
        return
    if store.get(site.db, id).state is EvaluationState.CANCELLING:
        # A run that was given back while its evaluation is being cancelled.
        trials.cancel_pending(site.db, id)
    if settled >= site.config.grace_seconds:
        _requeue_expired(site, record, pool)
    if settled >= RECLAIM_SECONDS:
        _keep_going(site, record, pool, dead=settled >= site.config.grace_seconds)
    jobs.ring_if_all_in(site, id)


def _requeue_expired(site: Site, record: Record, pool: Mapping[str, WorkerStatus]) -> None:
    """Give back what nobody runs: when its lease ends, if the worker is lost or has said so, else after the grace."""
    id, hung = record.evaluation.id, site.config.grace_seconds
    overdue = {claim.token for claim in trials.expired(site.db, id, ago_seconds=hung)}
    for claim in trials.expired(site.db, id):
        worker = pool.get(claim.worker)
        given_up = worker is None or worker.state is WorkerState.LOST or _has_ended(site, claim, worker)
        if not given_up and claim.token not in overdue:
            continue
        requeued = trials.requeue(
            site.db,
            claim.evaluation,
            claim.trial,
            claim.token,
            reason=f"lease of worker {claim.worker} expired",
            max_requeues=record.evaluation.spec.max_requeues,
        )
        if requeued is Requeued.EXHAUSTED:
            message = f"The worker went away in each of {claim.attempt} runs."
            results.fail(site, record, record.trials[claim.trial], "WorkerLost", message)


def _has_ended(site: Site, claim: Claim, worker: WorkerStatus) -> bool:
    """Whether the worker has said, since a lease that ended was last renewed, that it works on its batch no more.

    So it is when it was killed and started again within the grace.
    """
    beat, age = worker.heartbeat, worker.heartbeat_age
    return beat is not None and age is not None and age < site.config.lease_seconds and claim.batch not in beat.batches


def _drop_unborn(site: Site, id: str) -> None:
    """A submission that died after the store was told and before its folder stood."""
    with site.shared.nobody_submits() as alone:
        if alone and not site.shared.evaluation(id).exists():
            log.warning("evaluation %s was never finished being submitted; dropped", id)
            store.delete(site.db, id)


def _keep_going(site: Site, record: Record, pool: Mapping[str, WorkerStatus], *, dead: bool) -> None:
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
        if _is_forgotten(site, status, worker):
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


def _is_forgotten(site: Site, status: BatchStatus, worker: WorkerStatus) -> bool:
    """Whether the worker has said, well after the batch began, that it does not work on it."""
    beat = worker.heartbeat
    patience = timedelta(seconds=2 * site.config.poll_interval)
    return beat is not None and beat.at > status.since + patience and status.batch.id not in beat.batches


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
