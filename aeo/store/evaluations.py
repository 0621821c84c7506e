"""Evaluations and their batches: what was asked, how far it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from itertools import chain, islice

from aeo.codec import encode
from aeo.core.choose import PATIENCE_SECONDS
from aeo.core.errors import Conflict, NotFound
from aeo.core.model import TRANSITIONS, Batch, Evaluation, EvaluationState, Needs, Outcome, TrialState
from aeo.store import speeds, staging
from aeo.store.connection import Db, moment
from aeo.store.keys import key


@dataclass(frozen=True, kw_only=True)
class EvaluationStatus:
    """How far an evaluation is. The numbers of the four trial states add up to `total`."""

    id: str
    name: str
    executor: str
    state: EvaluationState
    #: Why it is in this state, for people; may be empty.
    reason: str
    submitted_at: datetime
    finished_at: datetime | None
    priority: int
    total: int
    pending: int
    running: int
    pushed: int
    done: int
    #: Every outcome, those nobody had with 0.
    outcomes: Mapping[Outcome, int]
    #: Runs that were repeated.
    requeues: int
    #: Who submitted it, and the evaluation it reruns; empty if there is none.
    owner: str = ""
    parent: str = ""
    #: Why its own rule stopped it; empty if it did not.
    stopped: str = ""


class BatchState(str, Enum):
    """Where a batch is."""

    #: Its message is on the way, or waits in the worker's queue.
    SENT = "sent"
    #: A slot works at it.
    STARTED = "started"
    #: Its slot is free again.
    ENDED = "ended"


@dataclass(frozen=True, kw_only=True)
class BatchStatus:
    """A batch and what is left of its share."""

    batch: Batch
    state: BatchState
    #: Pending trials in its share.
    left: int
    #: Their estimated time, seconds.
    left_seconds: float
    #: When it came into this state, or was sent last; on the server's clock.
    since: datetime


def save(
    db: Db,
    evaluation: Evaluation,
    shares: Mapping[Batch, Sequence[str]],
    unfit: Mapping[str, frozenset[str]],
    *,
    state: EvaluationState = EvaluationState.RUNNING,
    reason: str = "",
) -> None:
    """Store an evaluation, all or nothing; ``state`` is another one when it is entered again from disk.

    ``shares``: each batch's trials in the order to run them; a planned trial in no share is taken by batches that
    help. ``unfit``: worker id to the trials it cannot hold.

    Raises:
        Conflict: the id exists, or an evaluation of this name is not closed yet.
        InputError: a share names a trial twice or one that is not planned.
    """
    staged, kinds = staging.stage(db, evaluation, shares, unfit)
    fields = {**_status_fields(evaluation), "kinds": kinds, "state": state.value, "reason": reason}
    clash = db.run(
        "publish",
        evaluation.id,
        evaluation.spec.name,
        int(evaluation.submitted_at.timestamp() * 1000),
        len(fields),
        *chain.from_iterable(fields.items()),
        *chain.from_iterable(staged),
    )
    if clash == evaluation.id:
        raise Conflict(f"An evaluation with the id {clash} exists already.")
    if not clash and not evaluation.spec.stop_when:
        known = speeds.learnt(db)
        # At first every worker counts that has a batch; who takes no work is left out soon, see `aeo.speeds`.
        speeds.tell(db, evaluation.id, {batch.worker: known.get(batch.worker, 1.0) for batch in shares})
    if clash:
        raise Conflict(
            f"The evaluation {clash} of the name {evaluation.spec.name!r} is not finished.",
            field="name",
            fix="Choose another name, or cancel that one first.",
        )


def get(db: Db, id: str) -> EvaluationStatus:
    """Read one evaluation.

    Raises:
        NotFound: there is none with this id.
    """
    fields = db.client.hgetall(key("evaluation", id))
    if "id" not in fields:
        raise NotFound(f"No evaluation {id!r}.")
    return _status(fields)


def find(db: Db, id_or_name: str) -> EvaluationStatus:
    """Read one evaluation by its id, or the newest of a name.

    Raises:
        NotFound: neither an id nor a name.
    """
    if not db.client.exists(key("evaluation", id_or_name)):
        newest = db.client.zrevrange(key("named", id_or_name), 0, 0)
        if newest:
            return get(db, newest[0])
    return get(db, id_or_name)


def page(
    db: Db, *, offset: int, limit: int, state: EvaluationState | None = None
) -> tuple[list[EvaluationStatus], int]:
    """Read evaluations, newest first, and how many there are in all."""
    index = key("in_state", state.value) if state else key("evaluations")
    total = int(db.client.zcard(index))
    ids = db.client.zrevrange(index, offset, offset + limit - 1) if limit > 0 else []
    return several(db, ids), total


def several(db: Db, ids: Sequence[str]) -> list[EvaluationStatus]:
    """Read these evaluations, in this order; those there are none of are left out."""
    with db.client.pipeline(transaction=False) as pipe:
        for id in ids:
            pipe.hgetall(key("evaluation", id))
        return [_status(fields) for fields in pipe.execute() if fields]


def reruns(db: Db, id: str) -> list[EvaluationStatus]:
    """The evaluations that rerun one, oldest first."""
    return several(db, db.client.zrange(key("reruns", id), 0, -1))


def ids(db: Db, state: EvaluationState | None = None) -> list[str]:
    """Ids of all evaluations, or of those in one state, newest first."""
    found: list[str] = db.client.zrevrange(key("in_state", state.value) if state else key("evaluations"), 0, -1)
    return found


def open_ids(db: Db) -> list[str]:
    """Ids of the evaluations that are not closed, oldest first."""
    # One transaction: an evaluation that moves between two reads would be missed.
    with db.client.pipeline(transaction=True) as pipe:
        for state in EvaluationState:
            if not state.final:
                pipe.zrange(key("in_state", state.value), 0, -1, withscores=True)
        return [id for id, _ in sorted(chain.from_iterable(pipe.execute()), key=lambda pair: (pair[1], pair[0]))]


def is_open(db: Db, id: str) -> bool:
    """Whether there is such an evaluation and it is not closed."""
    state = db.client.hget(key("evaluation", id), "state")
    return state is not None and not EvaluationState(state).final


def move(db: Db, id: str, to: EvaluationState, reason: str = "", *, by: str = "") -> bool:
    """Bring an evaluation into a state; False when its present state does not allow that, or it does not exist.

    ``by``: the user who wants it, for the event.
    """
    allowed = [state.value for state in TRANSITIONS[to]]
    return bool(db.run("move", id, to.value, int(to.final), reason, by, *allowed))


def delete(db: Db, id: str) -> None:
    """Remove all that is kept of an evaluation, whatever its state. Its leases are lost."""
    db.run("forget", id)
    found = db.client.scan_iter(match=key("evaluation", id) + ":*", count=1000)
    while names := list(islice(found, 500)):
        db.client.unlink(*names)


def add_batches(
    db: Db, id: str, shares: Mapping[Batch, Sequence[str]], unfit: Mapping[str, frozenset[str]] | None = None
) -> None:
    """Add batches to an evaluation; their trials, where still pending, leave the shares they were in.

    ``unfit`` adds to what `save` was told: worker id to trials it cannot hold.

    Raises:
        NotFound: there is no such evaluation.
    """
    get(db, id)
    for worker, names in (unfit or {}).items():
        for some in staging.chunks(names):
            db.client.sadd(key("unfit", id, worker), *some)
    for batch, trials in shares.items():
        # What was unfit before fits now, or it would not be given: a worker may have come back larger.
        for some in staging.chunks(trials):
            db.client.srem(key("unfit", id, batch.worker), *some)
    for batch, trials in shares.items():
        for start in range(0, max(len(trials), 1), staging.CHUNK):
            chunk = trials[start : start + staging.CHUNK]
            if db.run("add_batch", id, batch.id, batch.worker, batch.message, *chunk) < 0:
                raise NotFound(f"No evaluation {id!r}.")


def batches(db: Db, id: str) -> list[BatchStatus]:
    """Read an evaluation's batches, by worker and id; none when there is no such evaluation."""
    with db.client.pipeline(transaction=True) as pipe:
        for noun in ("batches", "batch_states", "messages", "batch_since"):
            pipe.hgetall(key(noun, id))
        pipe.zrange(key("left", id), 0, -1, withscores=True)
        pipe.zscore(key("evaluations"), id)
        workers, states, messages, since, left, submitted = pipe.execute()
    seconds = dict(left)
    names = sorted(workers, key=lambda name: (workers[name], name))
    with db.client.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.zcard(key("share", id, name))
        counts = pipe.execute()
    return [
        BatchStatus(
            batch=Batch(id=name, evaluation=id, worker=workers[name], message=messages.get(name, "")),
            state=BatchState(states[name]),
            left=count,
            left_seconds=seconds.get(name, 0.0) / 1000,
            since=moment(since.get(name, submitted)),
        )
        for name, count in zip(names, counts, strict=True)
    ]


def start_batch(db: Db, batch: Batch) -> bool:
    """Mark a batch as started; False when it was before: this is a second copy of its message."""
    return bool(db.run("move_batch", batch.evaluation, batch.id, BatchState.STARTED.value, BatchState.SENT.value))


def gives_way(db: Db, batch: Batch) -> bool:
    """Whether a batch whose message has arrived is to queue again, see `aeo.core.choose`: its message is to be sent."""
    patience = round(PATIENCE_SECONDS * 1000)
    return bool(db.run("arrive", batch.evaluation, batch.id, batch.worker, patience))


def waiting_needs(db: Db, id: str) -> list[Needs]:
    """What the pending trials take: each sort of them once."""
    kinds = db.client.hgetall(key("kinds", id))
    left = db.client.hgetall(key("kind_left", id))
    return [staging.needs_of(kind) for number, kind in kinds.items() if int(left.get(number, 1)) > 0] or [Needs()]


def message_of(db: Db, batch: Batch) -> str:
    """What is needed to send a batch's message again; empty when it was never sent."""
    return db.client.hget(key("messages", batch.evaluation), batch.id) or ""


def end_batch(db: Db, batch: Batch) -> None:
    """Mark a batch as ended. What is left of its share stays where helpers find it."""
    db.run(
        "move_batch",
        batch.evaluation,
        batch.id,
        BatchState.ENDED.value,
        BatchState.SENT.value,
        BatchState.STARTED.value,
    )


def note_resent(db: Db, batch: Batch) -> None:
    """Note that a batch's message was sent again just now."""
    db.run("move_batch", batch.evaluation, batch.id, BatchState.SENT.value, BatchState.SENT.value)


def set_reason(db: Db, id: str, reason: str) -> None:
    """Say why an evaluation is where it is, for people; changes nothing else."""
    if db.client.hget(key("evaluation", id), "reason") not in (None, reason):
        db.client.hset(key("evaluation", id), "reason", reason)


def mark_stopped(db: Db, id: str, reason: str) -> bool:
    """Note that an evaluation is stopped by its rule, and why; False when it was before."""
    return bool(db.client.hsetnx(key("evaluation", id), "stopped", reason))


def forget_recent(db: Db, id: str) -> None:
    """Forget how the last runs went: what failed them has been seen to."""
    db.client.delete(key("recent", id))


def count_merge_failure(db: Db, id: str) -> int:
    """Count one more failed merge; returns how many there were. Those within a minute count as one."""
    return int(db.run("count_merge_failure", id))


def set_message(db: Db, batch: Batch) -> None:
    """Keep ``batch.message``, what is needed to send its message again."""
    db.client.hset(key("messages", batch.evaluation), batch.id, batch.message)


def _status_fields(evaluation: Evaluation) -> dict[str, str | int]:
    total = len(evaluation.plan.trials)
    return {
        "id": evaluation.id,
        "name": evaluation.spec.name,
        "executor": evaluation.spec.executor,
        "state": EvaluationState.RUNNING.value,
        "reason": "",
        "submitted_at": encode(evaluation.submitted_at),
        "finished_at": "",
        "priority": evaluation.spec.priority,
        "total": total,
        "requeues": 0,
        "owner": evaluation.owner,
        "parent": evaluation.parent,
        **{state.value: 0 for state in TrialState},
        "pending": total,
        **{f"outcome:{outcome.value}": 0 for outcome in Outcome},
    }


def _status(fields: Mapping[str, str]) -> EvaluationStatus:
    return EvaluationStatus(
        id=fields["id"],
        name=fields["name"],
        executor=fields["executor"],
        state=EvaluationState(fields["state"]),
        reason=fields["reason"],
        submitted_at=datetime.fromisoformat(fields["submitted_at"]),
        finished_at=moment(fields["finished_at"]) if fields["finished_at"] else None,
        priority=int(fields["priority"]),
        total=int(fields["total"]),
        pending=int(fields["pending"]),
        running=int(fields["running"]),
        pushed=int(fields["pushed"]),
        done=int(fields["done"]),
        outcomes={outcome: int(fields[f"outcome:{outcome.value}"]) for outcome in Outcome},
        requeues=int(fields["requeues"]),
        # A store of an earlier release has neither.
        owner=fields.get("owner", ""),
        parent=fields.get("parent", ""),
        stopped=fields.get("stopped", ""),
    )
