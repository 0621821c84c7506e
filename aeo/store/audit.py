"""Everything the store holds of an evaluation at one moment, for `aeo.core.audit`; reads only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from aeo.core.audit import RECOVERED, Result, Snapshot
from aeo.core.errors import NotFound, Unavailable
from aeo.core.model import Claim, EvaluationState, TrialState
from aeo.store.connection import Db
from aeo.store.keys import key

#: Batches and workers may be added between learning of them and reading them; not so often.
_TRIES = 20
_COUNTERS = ("total", "requeues", *(state.value for state in TrialState))


def snapshot(db: Db, id: str) -> Snapshot:
    """Read an evaluation in one transaction, so that it is consistent while things run.

    ``planned`` is what the store was told; `Snapshot.folders` is for who can look at the disk.

    Raises:
        NotFound: there is none with this id.
        Unavailable: the store is away.
    """
    batches, workers = {""}, set(db.client.hkeys(key("workers")))
    for _ in range(_TRIES):
        found = _read(db, id, sorted(batches), sorted(workers))
        if not found["status"]:
            raise NotFound(f"No evaluation {id!r}.")
        more_batches = {*found["batch_states"], *found["where"].values(), *found["left"]} - batches
        more_workers = {json.loads(text)["worker"] for text in found["claims"].values()} - workers
        if not (more_batches or more_workers):
            return _snapshot(id, found)
        batches |= more_batches
        workers |= more_workers
    raise Unavailable(f"Evaluation {id} changes too fast to be read.")


def recovered(db: Db, id: str) -> int:
    """How many trials were entered again from disk after a wipe."""
    rows = db.client.hvals(key("rows", id))
    return sum(text.partition(" ")[0] == RECOVERED for text in rows)


def _read(db: Db, id: str, batches: list[str], workers: list[str]) -> dict[str, Any]:
    hashes = (
        *("trials", "estimates", "where", "batch_states", "claims", "tokens"),
        *("phases", "rows", "requeues"),
    )
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hgetall(key("evaluation", id))
        for noun in hashes:
            pipe.hgetall(key(noun, id))
        pipe.zrange(key("left", id), 0, -1, withscores=True)
        pipe.zrange(key("leases", id), 0, -1)
        pipe.lrange(key("order", id), 0, -1)
        for state in EvaluationState:
            pipe.zscore(key("in_state", state.value), id)
        for batch in batches:
            pipe.zrange(key("share", id, batch), 0, -1)
        for worker in workers:
            pipe.smembers(key("worker_leases", worker))
        answers = iter(pipe.execute())
    return {
        "status": next(answers),
        **{noun: next(answers) for noun in hashes},
        "left": dict(next(answers)),
        "leases": next(answers),
        "order": next(answers),
        "listed": [state.value for state in EvaluationState if next(answers) is not None],
        "shares": {batch: tuple(names) for batch in batches if (names := next(answers))},
        "worker_leases": {worker: next(answers) for worker in workers},
    }


def _snapshot(id: str, found: Mapping[str, Any]) -> Snapshot:
    status = found["status"]
    names = (*_COUNTERS, *(name for name in status if name.startswith("outcome:")))
    return Snapshot(
        evaluation=id,
        planned=tuple(found["estimates"]),
        state=status["state"],
        listed=frozenset(found["listed"]),
        states=found["trials"],
        estimates={trial: int(float(value)) for trial, value in found["estimates"].items()},
        where=found["where"],
        shares=found["shares"],
        left=found["left"],
        batches=found["batch_states"],
        claims={trial: _claim(text) for trial, text in found["claims"].items()},
        leases=frozenset(found["leases"]),
        tokens=found["tokens"],
        phases=frozenset(found["phases"]),
        worker_leases=frozenset(
            (worker, trial)
            for worker, members in found["worker_leases"].items()
            for evaluation, _, trial in (member.partition(" ") for member in members)
            if evaluation == id
        ),
        rows={trial: _result(text) for trial, text in found["rows"].items()},
        order=tuple(found["order"]),
        counters={name: int(status[name]) for name in names if name in status},
        requeues={trial: int(times) for trial, times in found["requeues"].items()},
    )


def _claim(text: str) -> Claim:
    fields = json.loads(text)
    names = ("evaluation", "trial", "batch", "worker", "token")
    return Claim(**{name: fields[name] for name in names}, attempt=int(fields["attempt"]))


def _result(text: str) -> Result:
    token, _, row = text.partition(" ")
    fields = json.loads(row)
    return Result(token=token, outcome=fields["summary"]["outcome"], attempt=int(fields["attempt"]))
