"""How long tasks took before: the last runs of each task, and of each dataset."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from aeo.core.estimate import Run
from aeo.core.model import PlannedTrial
from aeo.store.connection import Db
from aeo.store.keys import key

#: Runs remembered for each task, whoever ran it.
KEPT = 40
#: Runs remembered for each dataset: they tell how far its plans are off.
KEPT_MEANT = 500
_CHUNK = 1000


def note(db: Db, executor: str, runs: Sequence[tuple[PlannedTrial, float, str]]) -> None:
    """Remember trials that ran to their end, each with its seconds and its worker ("": nobody knows)."""
    with db.client.pipeline(transaction=False) as pipe:
        for trial, seconds, worker in runs:
            labels = trial.labels
            run = _text(
                Run(
                    seconds=seconds,
                    planned=trial.planned,
                    agent=labels.get("agent", ""),
                    model=labels.get("model", ""),
                    worker=worker,
                )
            )
            for name, kept in (
                (key("history", executor, trial.history_key), KEPT),
                (key("history_meant", executor, labels.get("dataset", "")), KEPT_MEANT),
            ):
                pipe.lpush(name, run)
                pipe.ltrim(name, 0, kept - 1)
        pipe.execute()


def runs(db: Db, executor: str, tasks: Iterable[str]) -> Mapping[str, list[Run]]:
    """The remembered runs of these tasks (`PlannedTrial.history_key`), newest first; those never run are left out."""
    return _read(db, "history", executor, tasks)


def meant(db: Db, executor: str, datasets: Iterable[str]) -> Mapping[str, list[Run]]:
    """The remembered runs of these datasets, newest first."""
    return _read(db, "history_meant", executor, datasets)


def is_whole(db: Db) -> bool:
    """Whether it holds what the summaries know: not in a store that was wiped."""
    return bool(db.client.exists(key("history_whole")))


def restore(
    db: Db,
    tasks: Mapping[tuple[str, str], Sequence[Run]],
    datasets: Mapping[tuple[str, str], Sequence[Run]],
) -> None:
    """Put in what the summaries know, newest first: by executor and task, by executor and dataset."""
    for noun, found in (("history", tasks), ("history_meant", datasets)):
        items = list(found.items())
        for start in range(0, len(items), _CHUNK):
            with db.client.pipeline(transaction=True) as pipe:
                for parts, some in items[start : start + _CHUNK]:
                    pipe.delete(key(noun, *parts))
                    pipe.rpush(key(noun, *parts), *map(_text, some))
                pipe.execute()
    db.client.set(key("history_whole"), 1)


def _read(db: Db, noun: str, executor: str, names: Iterable[str]) -> Mapping[str, list[Run]]:
    wanted = list(dict.fromkeys(names))
    with db.client.pipeline(transaction=False) as pipe:
        for name in wanted:
            pipe.lrange(key(noun, executor, name), 0, -1)
        answers = pipe.execute()
    return {name: list(map(_run, values)) for name, values in zip(wanted, answers, strict=True) if values}


def _text(run: Run) -> str:
    parts = [round(run.seconds, 3), round(run.planned, 3), run.agent, run.model, run.worker]
    return json.dumps(parts, separators=(",", ":"))


def _run(text: str) -> Run:
    value = json.loads(text)
    if not isinstance(value, list):
        # A store of an earlier release has the seconds alone.
        return Run(seconds=float(value))
    seconds, planned, agent, model, *worker = value
    return Run(seconds=seconds, planned=planned, agent=agent, model=model, worker=worker[0] if worker else "")
