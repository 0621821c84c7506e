"""Limits of model providers: how many trials run at once under a key, and how many start in a minute."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from aeo.core.choose import covers
from aeo.core.errors import NotFound
from aeo.core.estimate import Held
from aeo.core.limits import check, check_key
from aeo.core.pool import Limit
from aeo.store.connection import Db
from aeo.store.keys import key


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
    check_key(name)
    check(Limit(trials=trials, per_minute=per_minute))
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


def of(db: Db) -> dict[str, Limit]:
    """Every limit by its key, without how far it is used."""
    return {name: _limit(text) for name, text in sorted(db.client.hgetall(key("limits")).items())}


def held(db: Db, evaluation: str) -> list[Held]:
    """How many trials of an evaluation wait under each limit."""
    known = of(db)
    if not known:
        return []
    with db.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(key("kinds", evaluation))
        pipe.hgetall(key("kind_left", evaluation))
        pipe.hget(key("evaluation", evaluation), "pending")
        kinds, left, pending = pipe.execute()
    # Of an evaluation with one kind it is not kept how many wait of each.
    waiting = {number: int(left.get(number, 0) if len(kinds) > 1 else pending or 0) for number in kinds}
    models = {number: text.split(" ", 3)[3] for number, text in kinds.items()}
    return [
        Held(waiting=sum(waiting[number] for number in kinds if covers(name, models[number])), limit=limit)
        for name, limit in known.items()
    ]


def _limit(text: str) -> Limit:
    trials, _, per_minute = text.partition(" ")
    return Limit(trials=int(trials), per_minute=float(per_minute))
