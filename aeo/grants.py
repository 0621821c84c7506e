"""Workers' rights kept in step with what goes on: users that the server forgot, evaluations that are over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping
from functools import cache

from aeo import credentials, dispatch
from aeo.core.errors import NotFound, Unavailable
from aeo.core.model import Batch, WorkerState
from aeo.credentials import Account, Book
from aeo.site import Site
from aeo.store import access, health, prefetches, trials, workers
from aeo.store import evaluations as store
from aeo.store.access import NotOffered
from aeo.store.evaluations import BatchState
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

#: Seconds after the end of an evaluation for which those who ran it may still tell of it.
KEEP_SECONDS = 60.0
#: Seconds for which a worker gets back what it asks for.
ASKED_SECONDS = 3600.0
#: Seconds after that for which it may ask for it.
PAST_SECONDS = 7 * 86400.0
#: Seconds without its worker, and without an evaluation, after which an account is dropped.
LOST_SECONDS = 3 * 86400.0


def keep(site: Site, pool: Mapping[str, WorkerStatus]) -> None:
    """Give every worker what it needs on this server, and take what it needs no more; each round.

    Raises:
        Unavailable: the server is away.
    """
    if not site.shared.credentials.exists():
        return
    with credentials.held(site) as book:
        there = _present(site, book)
        for id in there - set(book.accounts):
            # Revoked, or let share the password, while the server was away.
            access.drop(site.db, id)
        for id in list(book.accounts):
            try:
                _keep_one(site, book, id, pool.get(id), there=id in there)
            except NotOffered as error:
                log.warning("the rights of worker %s cannot be kept: %s", id, error)
            except Unavailable:
                raise
            except Exception:
                # Workers write much of what is read here: one must not keep the others from their rights.
                log.exception("the rights of worker %s cannot be kept", id)
        credentials.open_files(site, book)


def _present(site: Site, book: Book) -> frozenset[str]:
    try:
        return access.present(site.db)
    except Unavailable:
        if book.accounts or not book.shared:
            raise
        # It has no such thing.
        return frozenset()


def _keep_one(site: Site, book: Book, id: str, worker: WorkerStatus | None, *, there: bool) -> None:
    account = book.accounts[id]
    wanted = _wanted(site, id, account, worker)
    if wanted != account.evaluations or not there or not account.told:
        credentials.tell(site, book, id, wanted)
    _forget_ahead(site, id, account)
    if worker is not None and worker.state is not WorkerState.LOST:
        account.lost = 0.0
    elif not account.lost:
        account.lost = time.time()
    elif not wanted and account.lost < time.time() - LOST_SECONDS:
        del book.accounts[id]
        credentials.save(site, book)
        access.drop(site.db, id)


def _forget_ahead(site: Site, id: str, account: Account) -> None:
    """Take back what a worker was let into for orders that it is through with."""
    # One that was just let in gets its order in a moment.
    old = [name for name, one in account.ahead.items() if one.at < time.time() - KEEP_SECONDS]
    if old:
        orders = {order.dataset for order in prefetches.open_orders(site.db, id)}
        for name in set(old) - orders:
            del account.ahead[name]


def _wanted(site: Site, id: str, account: Account, worker: WorkerStatus | None) -> dict[str, float]:
    now = time.time()
    kept: dict[str, float] = {}
    account.past = {evaluation: until for evaluation, until in account.past.items() if until > now}
    waiting = cache(lambda: _waiting(site, id))
    for evaluation, until in account.evaluations.items():
        if not _is_over(site, evaluation, id, worker, waiting):
            kept[evaluation] = 0.0
        elif until == 0 or until > now:
            kept[evaluation] = until or now + KEEP_SECONDS
        else:
            _leave(site, evaluation, id)
            account.past[evaluation] = now + PAST_SECONDS
    for evaluation in _worked_on(worker) - set(kept):
        if evaluation in account.past:
            # Cut off while it closed: its batch must be able to end.
            kept[evaluation] = now + KEEP_SECONDS
    for evaluation in access.asked_for(site.db, id):
        # By the book alone: what else says who took part is written by workers, too.
        if evaluation in kept or evaluation in account.past:
            kept[evaluation] = now + ASKED_SECONDS
    return kept


def _evaluation_of(batch: str) -> str:
    return batch.rpartition("-")[0]


def _worked_on(worker: WorkerStatus | None) -> frozenset[str]:
    """Evaluations that a worker says it works on."""
    beat = worker.heartbeat if worker else None
    return frozenset(_evaluation_of(batch) for batch in beat.batches) if beat else frozenset()


def _waiting(site: Site, id: str) -> frozenset[str]:
    """Evaluations of which messages wait in a worker's queue."""
    return frozenset(map(_evaluation_of, health.queued(site.db, dispatch.lists_of(dispatch.queue_of(id)))))


def _is_over(
    site: Site, evaluation: str, id: str, worker: WorkerStatus | None, waiting: Callable[[], Collection[str]]
) -> bool:
    """Whether a worker has nothing more to do with an evaluation, but to hear what became of its results.

    ``waiting``: the evaluations of which messages wait in its queue, be their batches ended or not.
    """
    try:
        status = store.get(site.db, evaluation)
    except NotFound:
        # A store that was wiped will know it again.
        return not (site.shared.evaluation(evaluation).exists() or site.shared.unborn(evaluation).exists())
    if not status.state.final:
        return False
    if any(claim.worker == id for claim in trials.claims(site.db, evaluation).values()):
        return False
    return evaluation not in _worked_on(worker) and evaluation not in waiting()


def _leave(site: Site, evaluation: str, id: str) -> None:
    """Take out of a worker's keys what names an evaluation it may not look at any more."""
    for batch in _open_batches(site, evaluation, id):
        # Its message is gone.
        store.end_batch(site.db, batch)
    workers.forget_room(site.db, id, evaluation)


def _open_batches(site: Site, evaluation: str, id: str) -> list[Batch]:
    found = store.batches(site.db, evaluation)
    return [item.batch for item in found if item.batch.worker == id and item.state is not BatchState.ENDED]
