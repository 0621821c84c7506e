"""Workers: registered once, alive while their heartbeat is, told by it what people want of them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from aeo.codec import decode, dumps, encode, loads
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import Heartbeat, WorkerInfo, WorkerState
from aeo.store.connection import Db, moment, now
from aeo.store.keys import key


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


def register(db: Db, info: WorkerInfo, *, ttl_seconds: float = 60.0) -> None:
    """Take a worker's id, at its start or when its heartbeat found itself forgotten.

    It counts as alive for ``ttl_seconds``, until its first heartbeat. A restart (same instance, other boot) is welcome;
    a pause and a weight stay, a drain ends.

    Raises:
        Conflict: another instance with this id is alive; the message names its host.
    """
    first = _beat_json(Heartbeat(boot=info.boot, at=now(db)))
    life = max(1, round(ttl_seconds * 1000))
    clash = db.run("register", info.id, dumps(info), info.instance, info.boot, first, life)
    if clash:
        other = loads(WorkerInfo, clash)
        raise Conflict(
            f"The worker id {info.id!r} is in use by a live worker on {other.host} ({other.display_name or other.id}).",
            field="--worker-id",
            fix="Choose another id, or stop that worker and wait until its heartbeat is gone.",
        )


def beat(db: Db, id: str, heartbeat: Heartbeat, *, ttl_seconds: float) -> WorkerState:
    """Say that a worker lives; ``heartbeat.at`` is replaced by the server's time. Returns the state wanted of it.

    Raises:
        NotFound: the id is not registered to this boot (removed, wiped, taken over): register again.
    """
    wanted = db.run("beat", id, heartbeat.boot, _beat_json(heartbeat), max(1, round(ttl_seconds * 1000)))
    if not wanted:
        raise NotFound(f"No worker {id!r} of this boot is registered.")
    return WorkerState(wanted)


def leave(db: Db, id: str, boot: str) -> bool:
    """Say goodbye: the worker is listed no more, and its id is free at once; False when another boot has it.

    What people set, a weight or a pause, is kept for its next start. What it runs stays its own until requeued.
    """
    return bool(db.run("leave", id, boot))


def all(db: Db) -> list[WorkerStatus]:
    """Every registered worker, by id."""
    infos = db.client.hgetall(key("workers"))
    return _statuses(db, dict(sorted(infos.items())))


def get(db: Db, id: str) -> WorkerStatus:
    """Read one worker.

    Raises:
        NotFound: none is registered under this id.
    """
    info = db.client.hget(key("workers"), id)
    if info is None:
        raise NotFound(f"No worker {id!r}.")
    return _statuses(db, {id: info})[0]


def set_weight(db: Db, id: str, weight: float | None) -> None:
    """Set a worker's weight by hand, or None for the computed one. 0 gives it no share.

    Raises:
        InputError: the weight is negative or no number.
        NotFound: none is registered under this id.
    """
    if weight is not None and not (math.isfinite(weight) and weight >= 0):
        raise InputError(f"{weight} is no weight.", field="weight", fix="Use 0 or more.")
    get(db, id)
    if weight is None:
        db.client.hdel(key("worker", id), "weight")
    else:
        db.client.hset(key("worker", id), "weight", repr(float(weight)))


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
        pipe.hdel(key("worker", id), "failed_batches")
        pipe.delete(key("worker_recent", id))
        pipe.execute()


def count_batch(db: Db, id: str, *, failed: bool) -> int:
    """Count a worker's batches that failed in a row; one that did not fail begins anew. Returns how many."""
    if failed:
        return int(db.client.hincrby(key("worker", id), "failed_batches", 1))
    db.client.hdel(key("worker", id), "failed_batches")
    return 0


def remove(db: Db, id: str) -> None:
    """Forget a worker. What it runs stays its own until requeued."""
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hdel(key("workers"), id)
        pipe.delete(key("worker", id), key("beat", id), key("worker_recent", id))
        pipe.execute()


def _statuses(db: Db, infos: dict[str, str]) -> list[WorkerStatus]:
    time = now(db)
    with db.client.pipeline(transaction=False) as pipe:
        for id in infos:
            pipe.hgetall(key("worker", id))
            pipe.get(key("beat", id))
            pipe.scard(key("worker_leases", id))
        answers = pipe.execute()
    return [_status(info, *answers[3 * place : 3 * place + 3], time=time) for place, info in enumerate(infos.values())]


def _status(info: str, fields: dict[str, str], beat: str | None, busy: int, *, time: datetime) -> WorkerStatus:
    heartbeat = _heartbeat(beat) if beat else None
    state = WorkerState(fields.get("state", WorkerState.ONLINE.value)) if heartbeat else WorkerState.LOST
    return WorkerStatus(
        info=loads(WorkerInfo, info),
        state=state,
        heartbeat=heartbeat,
        # A beat may come in between reading the clock and reading it.
        heartbeat_age=max(time - heartbeat.at, timedelta()).total_seconds() if heartbeat else None,
        weight_override=float(fields["weight"]) if "weight" in fields else None,
        note=fields.get("note", ""),
        busy=busy,
    )


def _beat_json(heartbeat: Heartbeat) -> str:
    fields: dict[str, Any] = encode(heartbeat)
    del fields["at"]
    return dumps(fields)


def _heartbeat(text: str) -> Heartbeat:
    at, _, fields = text.partition(" ")
    return decode(Heartbeat, {**loads(dict, fields), "at": moment(at).isoformat()})
