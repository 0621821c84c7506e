"""The inbox: results on the controller's disk that nobody has looked at yet.

One process takes. What it took and did not finish is kept apart, and `restore` brings it back after a crash.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import dataclass, field
from uuid import uuid4

from aeo.core.errors import InputError
from aeo.core.names import check_name
from aeo.store.connection import SOCKET_TIMEOUT, Db
from aeo.store.keys import key

log = logging.getLogger(__name__)

#: Seconds one command blocks; the socket's own time-out must not come first.
_BLOCK = SOCKET_TIMEOUT / 4


@dataclass(frozen=True, kw_only=True)
class Arrival:
    """A result that arrived."""

    evaluation: str
    trial: str
    token: str
    #: Names this very take.
    entry: str = field(default="", repr=False)


def take(db: Db, timeout_seconds: float) -> Arrival | None:
    """`take_all`, of one; None when there is none."""
    return next(iter(take_all(db, timeout_seconds, most=1)), None)


def take_all(db: Db, timeout_seconds: float, *, most: int) -> list[Arrival]:
    """Take the oldest arrivals, waiting up to ``timeout_seconds`` for one; call `done` when they are dealt with.

    Raises:
        Unavailable: the store is away; call `restore` once it is back, as an arrival may be taken and not returned.
    """
    entries = [uuid4().hex for _ in range(most)]
    deadline = time.monotonic() + timeout_seconds
    while True:
        waiting = min(most, length(db)) if most > 1 else 1
        items = db.run_all("take", [(entry,) for entry in entries[:waiting]])
        taken = [(entry, item) for entry, item in zip(entries, items, strict=False) if item]
        found = [arrival for entry, item in taken if (arrival := _arrival(entry, item))]
        if len(found) < len(taken):
            # Workers write here: what is no arrival would be taken again and again.
            log.warning("what was no arrival in the inbox is dropped: %d", len(taken) - len(found))
            db.client.hdel(key("taken"), *({entry for entry, _ in taken} - {arrival.entry for arrival in found}))
        if found:
            return found
        left = deadline - time.monotonic()
        if left <= 0:
            return []
        # Waits without taking: puts the head back where it was. A lost answer then loses no arrival.
        db.client.blmove(key("inbox"), key("inbox"), max(0.01, min(left, _BLOCK)), "LEFT", "LEFT")


def _arrival(entry: str, item: str) -> Arrival | None:
    try:
        id, trial, token = json.loads(item)
        # They become paths.
        check_name(id, "evaluation id"), check_name(trial, "trial"), check_name(token, "token")
    except (ValueError, TypeError, RecursionError, InputError):
        return None
    return Arrival(evaluation=id, trial=trial, token=token, entry=entry)


def put_back(db: Db, arrival: Arrival) -> None:
    """Put an arrival that cannot be dealt with now behind all others."""
    db.run("put_back", arrival.entry)


def done(db: Db, *arrivals: Arrival) -> None:
    """Say that these are dealt with."""
    if arrivals:
        db.client.hdel(key("taken"), *(arrival.entry for arrival in arrivals))


def restore(db: Db) -> int:
    """Put back what was taken and not done; returns how many. For the start, and after the store was away."""
    return int(db.run("restore"))


def length(db: Db) -> int:
    """Arrivals that wait."""
    return int(db.client.llen(key("inbox")))
