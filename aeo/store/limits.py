"""Limits of model providers: how many trials run at once under a key, and how many start in a minute."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from aeo.core.errors import InputError, NotFound
from aeo.core.pool import Limit
from aeo.store.connection import Db
from aeo.store.keys import key

#: Longest key; model labels are short.
LONGEST = 200


@dataclass(frozen=True, kw_only=True)
class LimitStatus:
    """A limit and how far it is used."""

    #: ``provider``, or ``provider/model`` as in the model label of trials.
    key: str
    limit: Limit
    #: Trials that run under it now, in every evaluation.
    running: int


def set(db: Db, name: str, *, trials: int = 0, per_minute: float = 0.0) -> None:
    """Limit what runs and starts under a key from now on; what runs goes on. 0 is any number.

    Raises:
        InputError: the key or a number is not valid.
    """
    if not name or len(name) > LONGEST or not name.isprintable() or name != name.strip("/ "):
        raise InputError(f"{name!r} is no provider or model.", field="key", fix="Use provider or provider/model.")
    if trials < 0:
        raise InputError("must be 0 or more.", field="trials")
    if not (math.isfinite(per_minute) and per_minute >= 0):
        raise InputError("must be a finite number, 0 or more.", field="per_minute")
    db.run("set_limit", name, trials, repr(float(per_minute)))


def clear(db: Db, name: str) -> None:
    """Take a limit away.

    Raises:
        NotFound: the key has none.
    """
    if not db.run("clear_limit", name):
        raise NotFound(f"No limit {name!r}.", field="key")


def all(db: Db) -> list[LimitStatus]:
    """Every limit, by key."""
    found: Mapping[str, str] = db.client.hgetall(key("limits"))
    names = sorted(found)
    with db.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.scard(key("using", name))
        counts = pipe.execute()
    return [
        LimitStatus(key=name, limit=_limit(found[name]), running=int(count))
        for name, count in zip(names, counts, strict=True)
    ]


def _limit(text: str) -> Limit:
    trials, _, per_minute = text.partition(" ")
    return Limit(trials=int(trials), per_minute=float(per_minute))
