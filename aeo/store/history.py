"""How long tasks took before: the last durations of each, in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aeo.store.connection import Db
from aeo.store.keys import key

#: Runs remembered for each task.
KEPT = 20


def add(db: Db, executor: str, task: str, seconds: float) -> None:
    """Remember one run's duration."""
    with db.client.pipeline() as pipe:
        pipe.lpush(key("history", executor, task), round(seconds, 3))
        pipe.ltrim(key("history", executor, task), 0, KEPT - 1)
        pipe.execute()


def durations(db: Db, executor: str, tasks: Iterable[str]) -> Mapping[str, list[float]]:
    """The remembered durations of these tasks, newest first; tasks never run are left out."""
    names = list(dict.fromkeys(tasks))
    with db.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.lrange(key("history", executor, name), 0, -1)
        answers = pipe.execute()
    return {name: [float(v) for v in values] for name, values in zip(names, answers, strict=True) if values}
