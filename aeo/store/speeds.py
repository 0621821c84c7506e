"""How fast workers are: what they ran, what was learnt of it, and what an evaluation's choices look at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence

from aeo.core.pool import Pace
from aeo.core.speeds import RECENT, REMEMBERED_SECONDS, SOON_SECONDS, Timed, bounded, pace
from aeo.store.connection import Db, now
from aeo.store.keys import key

#: Field of the learnt that changes with every run that is noted. A worker's name holds no space.
_NOTED = " noted"


def note(db: Db, runs: Iterable[tuple[str, Timed]]) -> None:
    """Remember runs, each with its worker."""
    told = [(worker, one) for worker, one in runs if worker and one.seconds > 0 and one.before > 0]
    if not told:
        return
    with db.client.pipeline(transaction=False) as pipe:
        for worker, one in told:
            pipe.lpush(key("timed", worker), _text(one))
            pipe.ltrim(key("timed", worker), 0, RECENT - 1)
            pipe.expire(key("timed", worker), round(REMEMBERED_SECONDS))
        pipe.hincrby(key("learnt"), _NOTED, len(told))
        pipe.execute()


def noted(db: Db) -> int:
    """How many runs were noted so far; another number when there are new ones."""
    return int(db.client.hget(key("learnt"), _NOTED) or 0)


def timed(db: Db, workers: Iterable[str]) -> Mapping[str, list[Timed]]:
    """The last runs of each of these workers, newest first; of those that ran something."""
    names = list(workers)
    with db.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.lrange(key("timed", name), 0, -1)
        found = pipe.execute()
    return {
        name: [_timed(text) for text in texts if text.count(",") == 3]
        for name, texts in zip(names, found, strict=True)
        if texts
    }


def restore(db: Db, runs: Mapping[str, Sequence[Timed]]) -> None:
    """Put in what the summaries know of each worker, newest first."""
    with db.client.pipeline(transaction=True) as pipe:
        for worker, some in runs.items():
            texts = [_text(one) for one in some[:RECENT] if one.seconds > 0 and one.before > 0]
            pipe.delete(key("timed", worker))
            if texts:
                pipe.rpush(key("timed", worker), *texts)
                pipe.expire(key("timed", worker), round(REMEMBERED_SECONDS))
        pipe.hincrby(key("learnt"), _NOTED, 1)
        pipe.execute()


def learnt(db: Db) -> dict[str, float]:
    """The speed of each worker of which anything was learnt."""
    found = db.client.hgetall(key("learnt"))
    return {name: bounded(int(value) / 1000) for name, value in found.items() if name != _NOTED}


def keep(db: Db, speeds: Mapping[str, float]) -> bool:
    """Keep what was learnt, in place of what was before; whether anything changed."""
    if learnt(db) == dict(speeds):
        return False
    with db.client.pipeline(transaction=True) as pipe:
        gone = learnt(db).keys() - speeds.keys()
        if gone:
            pipe.hdel(key("learnt"), *gone)
        if speeds:
            pipe.hset(key("learnt"), mapping={worker: round(speed * 1000) for worker, speed in speeds.items()})
        pipe.execute()
    return True


def table(found: Pace | None) -> dict[str, str]:
    """A pace as the store keeps it; empty where workers are alike."""
    if found is None:
        return {}
    told = {worker: max(1, round(speed * 1000)) for worker, speed in found.speeds.items()}
    told |= {" power": round(found.power * 1000), " fastest": max(told.values())}
    return {name: str(value) for name, value in told.items()}


def tell(db: Db, evaluation: str, speeds: Mapping[str, float]) -> None:
    """Say anew what an evaluation's choices look at. ``speeds``: of the workers that take work now."""
    client = db.client
    with client.pipeline(transaction=True) as pipe:
        for noun in ("batches", "batch_states", "batch_since", "speeds"):
            pipe.hgetall(key(noun, evaluation))
        workers, states, since, before = pipe.execute()
    soon = (now(db).timestamp() - SOON_SECONDS) * 1000
    slots = [
        worker
        for batch, worker in workers.items()
        if worker in speeds
        and (states.get(batch) == "started" or (states.get(batch) == "sent" and float(since.get(batch, 0)) > soon))
    ]
    wanted = table(pace(slots, speeds))
    if wanted == before:
        return
    with client.pipeline(transaction=True) as pipe:
        pipe.delete(key("speeds", evaluation))
        # Closed and removed meanwhile: nothing is left behind.
        if wanted and client.exists(key("evaluation", evaluation)):
            pipe.hset(key("speeds", evaluation), mapping=wanted)
        pipe.execute()


def _text(one: Timed) -> str:
    found = [one.evaluation, round(one.seconds, 3), one.other, round(one.before, 3)]
    return json.dumps(found, separators=(",", ":"))


def _timed(text: str) -> Timed:
    evaluation, seconds, other, before = json.loads(text)
    return Timed(evaluation=evaluation, seconds=seconds, other=other, before=before)
