"""Whether the store answers, and what waits in the queues."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from uuid import uuid4

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError
from redis.retry import Retry

from aeo.core.errors import Unavailable
from aeo.store.connection import Db, now
from aeo.store.keys import key


def ping(db: Db) -> bool:
    """Whether the store answers, after the client's retries."""
    try:
        return bool(db.client.ping())
    except Unavailable:
        return False


def server_pid(url: str, *, timeout_seconds: float = 2.0) -> int | None:
    """Process id of the server at ``url`` when it answers under that password and is ready; one try, no waiting."""
    client = redis.Redis.from_url(
        url,
        decode_responses=True,
        protocol=2,
        socket_timeout=timeout_seconds,
        socket_connect_timeout=timeout_seconds,
        retry=Retry(NoBackoff(), 0),
    )
    try:
        client.ping()
        return int(client.info("server")["process_id"])
    except RedisError:
        return None
    finally:
        client.close()


def begin_recovery(db: Db) -> str:
    """Note that the store is being brought in line with the disk; returns what `mark_recovered` is to be told."""
    begun = uuid4().hex
    db.client.set(key("recovering"), begun)
    return begun


def mark_recovered(db: Db, begun: str = "") -> None:
    """Note that the store was brought in line with the disk just now.

    Raises:
        Unavailable: it was wiped since this was ``begun``, so what was entered may be gone.
    """
    run = db.client.info("server")["run_id"]
    db.client.set(key("recovered"), f"{round(now(db).timestamp() * 1000)} {run}")
    # After it: a wipe that comes later takes the mark along.
    if begun and db.client.get(key("recovering")) != begun:
        db.client.delete(key("recovered"))
        raise Unavailable("The store was wiped while it was being brought in line with the disk.")


def mark(db: Db) -> str:
    """What `mark_recovered` noted: another text each time, "" in a store that was wiped and is not yet in line."""
    return db.client.get(key("recovered")) or ""


def settled_seconds(db: Db) -> float | None:
    """How long this store has been in line with the disk; None when it was wiped or started again since.

    A server that was started again may have lost its last second. Workers need a while to find a store that comes back:
    until then silence proves nothing.
    """
    since, _, run = (db.client.get(key("recovered")) or "").partition(" ")
    if not since or run != db.client.info("server")["run_id"]:
        return None
    return max(0.0, now(db).timestamp() - float(since) / 1000)


def queued(db: Db, queues: Iterable[str]) -> frozenset[str]:
    """Ids of the messages waiting in these lists; what is none there is passed over, a worker may write to its own."""
    found = []
    for name in queues:
        for text in db.client.lrange(name, 0, -1):
            with suppress(ValueError, LookupError, TypeError, RecursionError):
                found.append(str(json.loads(text)["headers"]["id"]))
    return frozenset(found)


def drop_queues(db: Db, queues: Iterable[str]) -> None:
    """Delete every message that waits in these lists."""
    db.client.delete(*queues)


def queue_lengths(db: Db, queues: Iterable[str]) -> Mapping[str, int]:
    """Messages waiting in each of these lists (one Celery queue is a list for each priority it knows)."""
    names = list(queues)
    with db.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(name)
        return dict(zip(names, pipe.execute(), strict=True))
