"""Workers' rights kept in step with what goes on: users that the server forgot, evaluations that are over."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress

from aeo import credentials, dispatch, event_log
from aeo.core.errors import AeoError, NotFound
from aeo.core.model import Batch
from aeo.credentials import Account
from aeo.site import Site
from aeo.store import access, health, prefetches, trials, workers
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState
from aeo.store.workers import WorkerStatus

#: Seconds after the end of an evaluation for which those who ran it may still tell of it.
KEEP_SECONDS = 60.0
#: Seconds for which a worker gets back what it asks for.
ASKED_SECONDS = 3600.0


def keep(site: Site, pool: Mapping[str, WorkerStatus]) -> None:
    """Give every worker what it needs on this server, and take what it needs no more; each round.

    Raises:
        Unavailable: the server is away.
    """
    if not site.shared.credentials.exists():
        return
    with credentials.held(site) as book:
        if not book.accounts and book.shared:
            credentials.open_files(site, book)
            return
        there = access.present(site.db)
        for id in there - set(book.accounts):
            # Revoked while the server was away.
            access.drop(site.db, id)
        for id, account in book.accounts.items():
            wanted = _wanted(site, id, account, pool.get(id))
            if wanted != account.evaluations or id not in there:
                account.evaluations = wanted
                credentials.save(site, book)
                access.put(site.db, id, account.digest, wanted)
            _forget_ahead(site, id, account)
        credentials.open_files(site, book)


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
    for evaluation, until in account.evaluations.items():
        if not _is_over(site, evaluation, id, worker):
            kept[evaluation] = 0.0
        elif until == 0 or until > now:
            kept[evaluation] = until or now + KEEP_SECONDS
        else:
            _leave(site, evaluation, id)
    for evaluation in access.asked_for(site.db, id):
        if evaluation in kept or _took_part(site, evaluation, id):
            kept[evaluation] = now + ASKED_SECONDS
    return kept


def _is_over(site: Site, evaluation: str, id: str, worker: WorkerStatus | None) -> bool:
    """Whether a worker has nothing more to do with an evaluation, but to hear what became of its results."""
    try:
        status = store.get(site.db, evaluation)
    except NotFound:
        # A store that was wiped will know it again.
        return not site.shared.evaluation(evaluation).exists()
    if not status.state.final:
        return False
    if any(claim.worker == id for claim in trials.claims(site.db, evaluation).values()):
        return False
    beat = worker.heartbeat if worker else None
    if beat and any(batch.startswith(f"{evaluation}-") for batch in beat.batches):
        return False
    waits = _open_batches(site, evaluation, id)
    return not waits or not {batch.id for batch in waits} & health.queued(
        site.db, dispatch.lists_of(dispatch.queue_of(id))
    )


def _leave(site: Site, evaluation: str, id: str) -> None:
    """Take out of a worker's keys what names an evaluation it may not look at any more."""
    for batch in _open_batches(site, evaluation, id):
        # Its message is gone.
        store.end_batch(site.db, batch)
    workers.forget_room(site.db, id, evaluation)


def _open_batches(site: Site, evaluation: str, id: str) -> list[Batch]:
    found = store.batches(site.db, evaluation)
    return [item.batch for item in found if item.batch.worker == id and item.state is not BatchState.ENDED]


def _took_part(site: Site, evaluation: str, id: str) -> bool:
    with suppress(AeoError, OSError):
        if any(item.batch.worker == id for item in store.batches(site.db, evaluation)):
            return True
        log = event_log.read(site.shared.events(evaluation))
        return any(event.get("worker") == id for event in log if event.get("kind") == "claimed")
    return False
