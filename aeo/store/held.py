"""Which task folders each worker holds, as it said when it ran a trial of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from aeo.store.connection import Db
from aeo.store.keys import key

#: Characters of a digest that are kept: enough that no two of a site's tasks share them.
LENGTH = 16
#: Most folders of one worker.
LIMIT = 50_000
#: Seconds after which a worker that runs nothing is not known to hold anything.
LIFE = 30 * 24 * 3600


def add(db: Db, worker: str, digest: str) -> tuple[bool, bool]:
    """Note that a worker holds a folder; returns whether that was known, and whether nothing else is."""
    name = key("held", worker)
    with db.client.pipeline(transaction=False) as pipe:
        pipe.sadd(name, digest[:LENGTH])
        pipe.scard(name)
        pipe.expire(name, LIFE)
        added, count, _ = pipe.execute()
    if count > LIMIT:
        db.client.srem(name, digest[:LENGTH])
    return not added, count == 1


def replace(db: Db, worker: str, digests: Iterable[str]) -> None:
    """Note everything that a worker holds."""
    name = key("held", worker)
    whole = sorted({digest[:LENGTH] for digest in digests})[:LIMIT]
    with db.client.pipeline(transaction=True) as pipe:
        pipe.delete(name)
        for start in range(0, len(whole), 1000):
            pipe.sadd(name, *whole[start : start + 1000])
        pipe.expire(name, LIFE)
        pipe.execute()


def which(db: Db, workers: Sequence[str], digests: Sequence[str]) -> Mapping[str, frozenset[str]]:
    """Those of ``digests`` that each worker holds, by worker."""
    if not digests:
        return {worker: frozenset() for worker in workers}
    asked = [digest[:LENGTH] for digest in digests]
    with db.client.pipeline(transaction=False) as pipe:
        for worker in workers:
            pipe.smismember(key("held", worker), asked)
        answers = pipe.execute()
    return {
        worker: frozenset(digest for digest, there in zip(digests, answer, strict=True) if there)
        for worker, answer in zip(workers, answers, strict=True)
    }
