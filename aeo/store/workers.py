"""Workers: registered once, alive while their heartbeat is, told by it what people want of them."""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime, timedelta
from typing import Any

from aeo.codec import decode, dumps, encode, loads
from aeo.core.allot import MOST_WEIGHT
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import Heartbeat, WorkerInfo, WorkerState
from aeo.store import samples, speeds
from aeo.store.connection import Db, moment, now
from aeo.store.keys import key

log = logging.getLogger(__name__)

#: What `register` and `beat` are told of a process that a person removed.
_REMOVED = "removed"
_TOLD = frozenset(item.name for item in fields(Heartbeat))
#: Beginnings of fields of a worker: followed by an executor's name.
_FAILED, _OUT = "failed_batches ", "out "
#: By this a note says that one executor takes nothing there, while the others do.
EXECUTOR_OUT = " is paused here: "


@dataclass(frozen=True, kw_only=True)
class WorkerStatus:
    """A worker as the store knows it."""

    info: WorkerInfo
    #: `LOST` whenever there is no heartbeat, else what people set.
    state: WorkerState
    #: None once it has expired.
    heartbeat: Heartbeat | None
    #: Seconds; None without a heartbeat.
    heartbeat_age: float | None
    #: What a person set in place of the computed weight.
    weight_override: float | None
    #: Why it was paused or drained.
    note: str
    #: Trials it runs, by their leases.
    busy: int
    #: Whether infrastructure failed each of its last runs, the latest first; as many as its breaker looks at.
    recent: tuple[bool, ...] = ()
    #: As learnt from what it ran: 0.5 takes twice as long as usual.
    speed: float = 1.0
    #: Executors whose batches it starts no more, and why; the others it does.
    paused_executors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class RemovedWorker:
    """A worker process that a person removed; it is not taken in again until it is restarted or let in."""

    id: str
    boot: str
    since: datetime


def register(db: Db, info: WorkerInfo, *, ttl_seconds: float = 60.0) -> None:
    """Take a worker's id, at its start or when its heartbeat found itself forgotten.

    It counts as alive for ``ttl_seconds``, until its first heartbeat. A restart (same instance, other boot) is welcome;
    a pause and a weight stay, a drain ends.

    Raises:
        Conflict: another instance with this id is alive, its message names the host; or a person removed this boot.
    """
    first = _beat_json(Heartbeat(boot=info.boot, at=now(db)))
    life = max(1, round(ttl_seconds * 1000))
    clash = db.run("register", info.id, dumps(info), info.instance, info.boot, first, life)
    if clash == _REMOVED:
        raise _removed_by_a_person(info.id)
    if clash:
        other = loads(WorkerInfo, clash)
        raise Conflict(
            f"The worker id {info.id!r} is in use by a live worker on {other.host} ({other.display_name or other.id}).",
            field="--worker-id",
            fix="Choose another id, or stop that worker and wait until its heartbeat is gone.",
        )


def beat(db: Db, id: str, heartbeat: Heartbeat, *, ttl_seconds: float) -> WorkerState:
    """Say that a worker lives; ``heartbeat.at`` is replaced by the server's time. Returns the state wanted of it.

    The first of each minute is kept, see `aeo.store.samples`.

    Raises:
        Conflict: a person removed this boot: stop all that runs.
        NotFound: the id is not registered to this boot (forgotten, wiped, taken over): register again.
    """
    life = max(1, round(ttl_seconds * 1000))
    measured = dumps([heartbeat.cpu_percent, heartbeat.memory_percent, heartbeat.disk_free, heartbeat.busy])
    if heartbeat.clock_skew is not None:
        measured = f"{measured[:-1]},{heartbeat.clock_skew:.3f}]"
    kept = (measured, samples.SAMPLES, samples.SAMPLES_LIFE * 1000)
    wanted = db.run("beat", id, heartbeat.boot, _beat_json(heartbeat), life, *kept)
    if wanted == _REMOVED:
        raise _removed_by_a_person(id)
    if not wanted:
        raise NotFound(f"No worker {id!r} of this boot is registered.")
    return WorkerState(wanted)


def clock_skew(db: Db) -> float:
    """Seconds this machine's clock is ahead of the server's, less half the way there and back."""
    before = time.time()
    there = now(db).timestamp()
    after = time.time()
    return (before + after) / 2 - there


def leave(db: Db, id: str, boot: str) -> bool:
    """Say goodbye: the worker is listed no more, and its id is free at once; False when another boot has it.

    What people set, a weight or a pause, is kept for its next start. What it runs stays its own until requeued.
    """
    return bool(db.run("leave", id, boot))


def all(db: Db) -> list[WorkerStatus]:
    """Every registered worker, by id."""
    infos = db.client.hgetall(key("workers"))
    return list(_statuses(db, dict(sorted(infos.items()))).values())


def get(db: Db, id: str) -> WorkerStatus:
    """Read one worker.

    Raises:
        NotFound: none is registered under this id.
    """
    info = db.client.hget(key("workers"), id)
    found = _statuses(db, {id: info} if info else {})
    if id not in found:
        raise NotFound(f"No worker {id!r}.")
    return found[id]


def set_weight(db: Db, id: str, weight: float | None) -> None:
    """Set a worker's weight by hand, or None for the computed one. 0 gives it no share.

    Raises:
        InputError: the weight is negative or no number.
        NotFound: none is registered under this id.
    """
    if weight is not None and not 0 <= weight <= MOST_WEIGHT:
        raise InputError(f"{weight:g} is no weight.", field="weight", fix=f"Use a number from 0 to {MOST_WEIGHT}.")
    get(db, id)
    if weight is None:
        db.client.hdel(key("worker", id), "weight")
    else:
        db.client.hset(key("worker", id), "weight", repr(float(weight)))
    _note_idle(db, id)


def set_state(db: Db, id: str, state: WorkerState, note: str = "") -> None:
    """Pause, drain or resume a worker: it claims nothing more at once, and learns of it by its heartbeat.

    Raises:
        InputError: the state is none that people set.
        NotFound: none is registered under this id.
    """
    if state is WorkerState.LOST:
        raise InputError("A worker is lost by its silence alone.", field="state")
    get(db, id)
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hset(key("worker", id), mapping={"state": state.value, "note": note})
        # Whoever resumes it wants it to be tried again.
        pipe.hdel(key("worker", id), *_counted(db, id))
        pipe.delete(key("worker_recent", id))
        pipe.execute()
    _note_idle(db, id)


def pause_self(db: Db, id: str, note: str) -> None:
    """Pause a worker by its own wish. It may touch nothing but its own, so `note_idle` tells the others later."""
    db.client.hset(key("worker", id), mapping={"state": WorkerState.PAUSED.value, "note": note})
    db.client.hdel(key("worker", id), "failed_batches")
    db.client.delete(key("worker_recent", id))


def forget_room(db: Db, id: str, evaluation: str) -> None:
    """Forget what a worker kept room for, if that is of an evaluation that is over: it may not look there any more."""
    if (db.client.get(key("room", id)) or "").startswith(f"{evaluation} "):
        db.client.delete(key("room", id))


def note_idle(db: Db, statuses: Sequence[WorkerStatus]) -> None:
    """Note which of all workers claim nothing, for the others to read."""
    idle = {
        status.info.id for status in statuses if status.state is not WorkerState.ONLINE or status.weight_override == 0
    }
    if db.client.smembers(key("idle")) == idle:
        return
    with db.client.pipeline(transaction=True) as pipe:
        pipe.delete(key("idle"))
        if idle:
            pipe.sadd(key("idle"), *sorted(idle))
        pipe.execute()


def _note_idle(db: Db, id: str) -> None:
    told = db.client.hgetall(key("worker", id))
    idle = told.get("state") in _ECHOES or float(told.get("weight", 1)) == 0
    (db.client.sadd if idle else db.client.srem)(key("idle"), id)


def count_batch(db: Db, id: str, *, failed: bool, executor: str = "") -> int:
    """Count a worker's batches that failed in a row; one that did not fail begins anew. Returns how many.

    ``executor``: only its own are counted; without one, what failed was nobody's.
    """
    name = f"{_FAILED}{executor}" if executor else "failed_batches"
    if failed:
        return int(db.client.hincrby(key("worker", id), name, 1))
    db.client.hdel(key("worker", id), name, "failed_batches")
    return 0


def pause_executor(db: Db, id: str, executor: str, why: str) -> None:
    """Let a worker start no batch of one executor, by its own wish; resuming the worker ends that."""
    db.client.hset(key("worker", id), f"{_OUT}{executor}", why)
    db.client.hdel(key("worker", id), f"{_FAILED}{executor}")


def paused_executors(db: Db, id: str) -> frozenset[str]:
    """Executors whose batches a worker starts no more."""
    return frozenset(_out(db.client.hgetall(key("worker", id))))


def _out(told: Mapping[str, str]) -> dict[str, str]:
    return {name[len(_OUT) :]: why for name, why in sorted(told.items()) if name.startswith(_OUT)}


def _counted(db: Db, id: str) -> list[str]:
    """Fields that are gone once a person has looked after a worker."""
    names = db.client.hkeys(key("worker", id))
    return ["failed_batches", *(name for name in names if name.startswith((_FAILED, _OUT)))]


def bar(db: Db, id: str) -> None:
    """Keep a worker's present process out, also after `remove`: from now on it claims nothing and is told so.

    A restart of it is welcome.
    """
    boot, instance = db.client.hmget(key("worker", id), "boot", "instance")
    if boot:
        since = round(now(db).timestamp() * 1000)
        db.client.hset(key("removed"), f"{id} {boot}", f"{instance} {since}")


def allow(db: Db, id: str) -> int:
    """Let the processes of this id in again that were barred; returns how many."""
    barred = [f"{item.id} {item.boot}" for item in removed(db) if item.id == id]
    return int(db.client.hdel(key("removed"), *barred)) if barred else 0


def removed(db: Db) -> list[RemovedWorker]:
    """The processes that are kept out, by id and time."""
    found = []
    for name, value in db.client.hgetall(key("removed")).items():
        id, _, boot = name.partition(" ")
        found.append(RemovedWorker(id=id, boot=boot, since=moment(value.rpartition(" ")[2])))
    return sorted(found, key=lambda item: (item.id, item.since, item.boot))


def remove(db: Db, id: str) -> None:
    """Forget a worker and what waits for it. What it runs stays its own until requeued."""
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hdel(key("workers"), id)
        pipe.srem(key("idle"), id)
        pipe.delete(key("worker", id), key("beat", id), key("worker_recent", id), key("samples", id))
        pipe.delete(*(key(noun, id) for noun in ("waiting", "working", "loads", "room", "wants")))
        pipe.execute()


def waiting(db: Db, id: str) -> int:
    """How many batches wait for a slot of this worker."""
    return int(db.client.zcard(key("waiting", id)))


def seats(db: Db, ids: Sequence[str]) -> Mapping[str, Counter[str]]:
    """How many batches have a slot of each worker or wait for one, by evaluation."""
    with db.client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.smembers(key("working", id))
            pipe.zrange(key("waiting", id), 0, -1)
        found = pipe.execute()
    return {
        # A seat is "evaluation batch".
        id: Counter(seat.split(" ")[0] for seat in (*found[2 * place], *found[2 * place + 1]))
        for place, id in enumerate(ids)
    }


def _removed_by_a_person(id: str) -> Conflict:
    return Conflict(
        f"Worker {id!r} was removed by a person.",
        field="--worker-id",
        fix=f"Restart it, or let it in again: aeo workers allow {id}",
    )


def _statuses(db: Db, infos: dict[str, str]) -> dict[str, WorkerStatus]:
    """By id; those that said goodbye are left out."""
    at = now(db)
    with db.client.pipeline(transaction=False) as pipe:
        for id in infos:
            pipe.hgetall(key("worker", id))
            pipe.get(key("beat", id))
            pipe.scard(key("worker_leases", id))
            pipe.lrange(key("worker_recent", id), 0, -1)
        answers = pipe.execute()
    known = speeds.learnt(db) if infos else {}
    told = {id: answers[4 * place : 4 * place + 4] for place, id in enumerate(infos)}
    return {
        id: _status(infos[id], *told[id], at=at, speed=known.get(id, 1.0)) for id in infos if "left" not in told[id][0]
    }


#: What a worker says that claims nothing for no other reason than what a person set.
_ECHOES = frozenset({WorkerState.PAUSED.value, WorkerState.DRAINING.value})


def _status(
    info: str, told: dict[str, str], beat: str | None, busy: int, recent: list[str], *, at: datetime, speed: float
) -> WorkerStatus:
    heartbeat = _heartbeat(beat) if beat else None
    state = _state(told) if heartbeat else WorkerState.LOST
    if heartbeat and state is WorkerState.ONLINE and heartbeat.draining in _ECHOES:
        # Resumed since it said so; it learns of it with its next beat.
        heartbeat = replace(heartbeat, draining="")
    out = _out(told)
    return WorkerStatus(
        info=loads(WorkerInfo, info),
        state=state,
        heartbeat=heartbeat,
        # A beat may come in between reading the clock and reading it.
        heartbeat_age=max(at - heartbeat.at, timedelta()).total_seconds() if heartbeat else None,
        weight_override=_weight(told),
        note=told.get("note", "") or "; ".join(f"{name}{EXECUTOR_OUT}{why}" for name, why in out.items()),
        busy=busy,
        recent=tuple(value == "1" for value in recent),
        speed=speed,
        paused_executors=out,
    )


def _beat_json(heartbeat: Heartbeat) -> str:
    told: dict[str, Any] = encode(heartbeat)
    del told["at"]
    return dumps(told)


def _heartbeat(text: str) -> Heartbeat | None:
    """None where it is none: a worker writes it itself, and must not hide the others."""
    at, _, told = text.partition(" ")
    try:
        # A worker of a later version may tell more.
        known = {name: value for name, value in loads(dict, told).items() if name in _TOLD}
        return decode(Heartbeat, {**known, "at": moment(at).isoformat()})
    except (InputError, ValueError, OverflowError, OSError):
        log.warning("a worker's heartbeat is none; it counts as lost")
        return None


def _state(told: Mapping[str, str]) -> WorkerState:
    try:
        return WorkerState(told.get("state", WorkerState.ONLINE.value))
    except ValueError:
        return WorkerState.PAUSED


def _weight(told: Mapping[str, str]) -> float | None:
    try:
        return float(told["weight"])
    except (KeyError, ValueError):
        return None
