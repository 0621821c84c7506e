"""Rounds of repairs over what is open. Every repair is idempotent and an event people can read."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping

from aeo import grants, jobs, records, redispatch, results
from aeo.core.errors import AeoError, NotFound
from aeo.core.model import Claim, EvaluationState, WorkerState
from aeo.core.words import count
from aeo.records import Record
from aeo.recovery import no_harm_to_others, recover
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health, trials, workers
from aeo.store.trials import Requeued
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

#: Seconds that runs get to take their leases back after the store was wiped, before their trials are shared out anew.
RECLAIM_SECONDS = 5.0


def reconcile(site: Site, *, watched_seconds: float = math.inf) -> None:
    """One round of repairs over what is open.

    ``watched_seconds``: for how long the caller has seen the store without a gap. What happened in a gap nobody could
    say: leases and heartbeats have ended in it, whoever lives.

    Raises:
        Unavailable: the store is away.
    """
    # First: who has a right no more, as the server was started again, waits for it.
    _keep_rights(site)
    settled = health.settled_seconds(site.db)
    if settled is None:
        log.warning("the store was wiped or started again; bringing it in line with the disk")
        recover(site)
        settled = 0.0
    settled = min(settled, watched_seconds)
    pool = {worker.info.id: worker for worker in workers.all(site.db)}
    workers.note_idle(site.db, list(pool.values()))
    for id in store.open_ids(site.db):
        with no_harm_to_others(id, "repaired"):
            _repair(site, id, pool, settled)


def _keep_rights(site: Site) -> None:
    """What fails here fails again in the next round, and keeps nobody from being repaired."""
    try:
        grants.keep(site, {worker.info.id: worker for worker in workers.all(site.db)})
    except AeoError as error:
        log.error("workers' rights cannot be seen to: %s", error)
    except Exception:
        log.exception("workers' rights cannot be seen to")


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
        redispatch.keep_going(site, record, pool, dead=settled >= site.config.grace_seconds)
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
            runs = count(claim.attempt, "run")
            message = f"Its lease ended in each of {runs}: its worker went away, or it did not stop when told."
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
