"""Trials that somebody looks at while they run. A mark expires by itself when nobody looks any more."""

from __future__ import annotations

from aeo.store.connection import Db
from aeo.store.keys import key


def watch(db: Db, evaluation: str, trial: str, *, seconds: float) -> None:
    """Say that somebody looks at a trial, for the next ``seconds``."""
    db.client.set(key("watched", evaluation, trial), "1", px=max(1, round(seconds * 1000)))


def is_watched(db: Db, evaluation: str, trial: str) -> bool:
    """Whether somebody looks at a trial."""
    return bool(db.client.exists(key("watched", evaluation, trial)))
