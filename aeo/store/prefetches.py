"""What workers are asked to fetch before they need it, and what each says of it.

All of it is below a worker's own keys, so that one who may read only those can do it. One order for each worker and
dataset: a new one takes the place of the last. The controller writes orders, the worker what became of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum

from aeo.codec import dumps, loads
from aeo.core.errors import InputError
from aeo.store.connection import Db
from aeo.store.keys import key

#: Seconds after which orders, and what became of them, are forgotten.
LIFE = 7 * 24 * 3600
_CHUNK = 1000


class PrefetchState(str, Enum):
    """How far a worker is with an order."""

    #: It has not begun.
    WAITING = "waiting"
    RUNNING = "running"
    #: All is there.
    DONE = "done"
    #: Something is missing; the failures say what and why.
    FAILED = "failed"
    #: A person stopped it; what came stays.
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether the worker is through with it."""
        return self in (PrefetchState.DONE, PrefetchState.FAILED, PrefetchState.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Order:
    """What one worker is to fetch of one dataset."""

    id: str
    dataset: str
    executor: str
    #: Also the images that the tasks start from.
    images: bool
    #: Tasks.
    total: int
    at: datetime
    by: str = ""


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A content folder to fetch."""

    digest: str
    name: str
    #: Bytes of its files.
    size: int


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Something that could not be fetched."""

    what: str
    why: str


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a worker says of an order."""

    order: str
    state: PrefetchState
    tasks_total: int = 0
    tasks_done: int = 0
    #: None until it is known which the tasks name.
    images_total: int | None = None
    images_done: int = 0
    #: How many failed, and the first of them.
    failed: int = 0
    failures: tuple[Failure, ...] = ()
    #: What it is at, or waits for.
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Told:
    """An order and what became of it; either may be missing."""

    order: Order | None = None
    progress: Progress | None = None


def order(db: Db, worker: str, order: Order, folders: Sequence[Folder]) -> None:
    """Ask a worker for these folders, whatever it was asked for of this dataset before."""
    orders, listed = key("orders", worker), key("ordered", worker, order.id)
    former = _order(db.client.hget(orders, order.dataset))
    lines = [f"{folder.digest} {folder.name} {folder.size}" for folder in folders]
    with db.client.pipeline(transaction=True) as pipe:
        if former and former.id != order.id:
            pipe.delete(key("ordered", worker, former.id))
        for start in range(0, len(lines), _CHUNK):
            pipe.rpush(listed, *lines[start : start + _CHUNK])
        pipe.expire(listed, LIFE)
        pipe.hset(orders, order.dataset, dumps(order))
        pipe.expire(orders, LIFE)
        pipe.execute()


def withdraw(db: Db, worker: str, dataset: str) -> bool:
    """Ask a worker for nothing of a dataset any more; False when it was not asked."""
    return bool(db.client.hdel(key("orders", worker), dataset))


def open_orders(db: Db, worker: str) -> list[Order]:
    """The orders that a worker is not through with, the oldest first."""
    with db.client.pipeline(transaction=False) as pipe:
        pipe.hgetall(key("orders", worker))
        pipe.hgetall(key("prefetched", worker))
        orders, told = pipe.execute()
    found = []
    for dataset, text in orders.items():
        asked, progress = _order(text), _progress(told.get(dataset))
        if asked and not (progress and progress.order == asked.id and progress.state.final):
            found.append(asked)
    return sorted(found, key=lambda one: (one.at, one.dataset))


def is_wanted(db: Db, worker: str, order: Order) -> bool:
    """Whether an order still stands."""
    asked = _order(db.client.hget(key("orders", worker), order.dataset))
    return asked is not None and asked.id == order.id


def folders(db: Db, worker: str, order: Order) -> tuple[Folder, ...]:
    """What an order asks for; nothing when it was forgotten."""
    lines = (line.split(" ") for line in db.client.lrange(key("ordered", worker, order.id), 0, -1))
    return tuple(Folder(digest=digest, name=name, size=int(size)) for digest, name, size in lines)


def tell(db: Db, worker: str, dataset: str, progress: Progress) -> None:
    """Say how far a worker is."""
    name = key("prefetched", worker)
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hset(name, dataset, dumps(progress))
        pipe.expire(name, LIFE)
        if progress.state.final:
            pipe.delete(key("ordered", worker, progress.order))
        pipe.execute()


def told(db: Db, workers: Sequence[str], dataset: str) -> Mapping[str, Told]:
    """What each of these workers was asked of a dataset and says of it; those without either are left out."""
    with db.client.pipeline(transaction=False) as pipe:
        for worker in workers:
            pipe.hget(key("orders", worker), dataset)
            pipe.hget(key("prefetched", worker), dataset)
        answers = pipe.execute()
    found = {}
    for place, worker in enumerate(workers):
        one = Told(order=_order(answers[2 * place]), progress=_progress(answers[2 * place + 1]))
        if one.order or one.progress:
            found[worker] = one
    return found


def _order(text: str | None) -> Order | None:
    try:
        return loads(Order, text) if text else None
    except InputError:  # of another version
        return None


def _progress(text: str | None) -> Progress | None:
    try:
        return loads(Progress, text) if text else None
    except InputError:
        return None
