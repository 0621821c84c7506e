"""How long tasks took before: the last durations of each, in seconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aeo.store import keys
from aeo.store.connection import Db, guarded

#: Runs remembered for each task.
KEPT = 20


@guarded
def add(db: Db, executor: str, task: str, seconds: float) -> None:
    """Remember one run's duration."""
    pipe = db.client.pipeline()
    pipe.lpush(keys.history(executor, task), round(seconds, 3))
    pipe.ltrim(keys.history(executor, task), 0, KEPT - 1)
    pipe.execute()


@guarded
def durations(db: Db, executor: str, tasks: Iterable[str]) -> Mapping[str, list[float]]:
    """The remembered durations of these tasks, newest first; tasks never run are left out."""
    names = list(dict.fromkeys(tasks))
    pipe = db.client.pipeline(transaction=False)
    for name in names:
        pipe.lrange(keys.history(executor, name), 0, -1)
    return {name: [float(v) for v in values] for name, values in zip(names, pipe.execute(), strict=True) if values}
