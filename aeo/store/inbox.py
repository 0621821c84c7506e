"""The inbox: results on the controller's disk that nobody has looked at yet.

One process takes. What it took and did not finish is kept apart, and `restore` brings it back after a crash.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from uuid import uuid4

from aeo.store.connection import SOCKET_TIMEOUT, Db
from aeo.store.keys import key

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
    """Take the oldest arrival, waiting up to ``timeout_seconds`` for one; call `done` when it is dealt with.

    Raises:
        Unavailable: the store is away; call `restore` once it is back, as an arrival may be taken and not returned.
    """
    entry = uuid4().hex
    deadline = time.monotonic() + timeout_seconds
    while True:
        item = db.run("take", entry)
        if item:
            evaluation, trial, token = json.loads(item)
            return Arrival(evaluation=evaluation, trial=trial, token=token, entry=entry)
        left = deadline - time.monotonic()
        if left <= 0:
            return None
        # Waits without taking: puts the head back where it was. A lost answer then loses no arrival.
        db.client.blmove(key("inbox"), key("inbox"), max(0.01, min(left, _BLOCK)), "LEFT", "LEFT")


def put_back(db: Db, arrival: Arrival) -> None:
    """Put an arrival that cannot be dealt with now behind all others."""
    db.run("put_back", arrival.entry)


def done(db: Db, arrival: Arrival) -> None:
    """Say that an arrival is dealt with."""
    db.client.hdel(key("taken"), arrival.entry)


def restore(db: Db) -> int:
    """Put back what was taken and not done; returns how many. For the start, and after the store was away."""
    return int(db.run("restore"))


def length(db: Db) -> int:
    """Arrivals that wait."""
    return int(db.client.llen(key("inbox")))
