"""No sequence of operations on a real store, however odd, makes the invariant checker find a fault."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Callable
from typing import Any

import pytest
from store_samples import a_batch, a_row, a_worker, an_evaluation, stored

from aeo.core.audit import faults
from aeo.core.errors import NotFound
from aeo.core.model import Batch, Claim, EvaluationState, Outcome, WorkerState
from aeo.store import audit, evaluations, events, trials, workers
from aeo.store.connection import Db

WORKERS = ("w0", "w1", "w2")


class Life:
    """Random operations on one evaluation, as workers, control and people would do them, in any order."""

    def __init__(self, db: Db, seed: int, id: str) -> None:
        self.db, self.id, self.random = db, id, random.Random(seed)
        names = [f"t{n}" for n in range(self.random.randint(1, 14))]
        self.names = names
        self.batches = [a_batch(f"{id}-b{n}", worker, evaluation=id) for n, worker in enumerate(WORKERS)]
        shares: dict[Batch, list[str]] = {batch: [] for batch in self.batches}
        for name in names:
            if self.random.random() < 0.8:
                shares[self.random.choice(self.batches)].append(name)
        seconds = {name: round(self.random.uniform(0, 500), 3) for name in names}
        evaluations.save(db, an_evaluation(seconds, id=id, name=f"job-{id}"), shares, {"w2": frozenset(names[::3])})
        self.claims: list[Claim] = []
        self.operations: list[tuple[int, Callable[[], object]]] = [
            (8, self.claim),
            (3, self.push),
            (3, self.requeue),
            (3, self.commit),
            (2, self.renew),
            (2, self.reclaim),
            (2, self.phase),
            (1, lambda: evaluations.start_batch(db, self.batch())),
            (1, lambda: evaluations.end_batch(db, self.batch())),
            (1, self.add_batch),
            (1, lambda: evaluations.move(db, id, EvaluationState.PAUSED, "why")),
            (2, lambda: evaluations.move(db, id, EvaluationState.RUNNING)),
            (1, lambda: workers.set_state(db, self.random.choice(WORKERS), self.random.choice(STATES))),
            (1, self.cancel),
        ]

    def step(self) -> str:
        weights = [weight for weight, _ in self.operations]
        (_, operation), *_ = self.random.choices(self.operations, weights)
        operation()
        return getattr(operation, "__name__", "")

    def batch(self) -> Batch:
        return self.random.choice(self.batches)

    def some(self) -> Claim | None:
        return self.random.choice(self.claims) if self.claims else None

    def claim(self) -> None:
        token = f"{self.id}-k{len(self.claims)}"
        got = trials.claim(self.db, self.batch(), token=token, lease_seconds=60)
        if got:
            self.claims.append(got)

    def push(self) -> None:
        if claim := self.some():
            trials.pushed(self.db, claim)

    def renew(self) -> None:
        if claim := self.some():
            trials.renew(self.db, claim, lease_seconds=60)

    def reclaim(self) -> None:
        if claim := self.some():
            trials.reclaim(self.db, claim, lease_seconds=60)

    def phase(self) -> None:
        if claim := self.some():
            trials.set_phase(self.db, claim, "agent")

    def requeue(self) -> None:
        if claim := self.some():
            counted = self.random.random() < 0.5
            where = (self.id, claim.trial, claim.token)
            trials.requeue(self.db, *where, reason="died", max_requeues=2, counted=counted)

    def commit(self) -> None:
        claim = self.some()
        trial, token = (claim.trial, claim.token) if claim else (self.random.choice(self.names), "recovered")
        trials.commit(self.db, self.id, a_row(trial, outcome=self.random.choice(list(Outcome))), token)

    def add_batch(self) -> None:
        if len(self.batches) < 8:
            batch = a_batch(f"{self.id}-b{len(self.batches)}", self.random.choice(WORKERS), evaluation=self.id)
            some = self.random.sample(self.names, self.random.randint(0, len(self.names)))
            evaluations.add_batches(self.db, self.id, {batch: some})
            self.batches.append(batch)

    def cancel(self) -> None:
        if self.random.random() < 0.1:
            evaluations.move(self.db, self.id, EvaluationState.CANCELLING, "by a person")
        if evaluations.get(self.db, self.id).state is EvaluationState.CANCELLING:
            trials.cancel_pending(self.db, self.id)


STATES = (WorkerState.ONLINE, WorkerState.ONLINE, WorkerState.PAUSED, WorkerState.DRAINING)


def log_of(db: Db, id: str) -> list[dict[str, Any]]:
    return [json.loads(event.line(entry)) for entry, event in events.take(db, 100_000) if event.evaluation == id]


def add_workers(db: Db) -> None:
    for id in WORKERS:
        workers.register(db, a_worker(id))


@pytest.mark.parametrize("seed", range(20))
def test_random_operations_leave_no_fault(real_db: Db, seed: int) -> None:
    add_workers(real_db)
    life = Life(real_db, seed, "e1")
    done = []
    for _ in range(70):
        done.append(life.step())
        found = faults(audit.snapshot(real_db, "e1"))
        assert not found, (seed, done, found)
    assert faults(audit.snapshot(real_db, "e1"), log_of(real_db, "e1")) == []


def test_a_snapshot_is_of_one_moment_while_things_run(real_db: Db) -> None:
    add_workers(real_db)
    lives = [Life(real_db, seed, f"e{seed}") for seed in range(3)]
    broken: list[BaseException] = []

    def live(life: Life) -> None:
        try:
            for _ in range(250):
                life.step()
        except BaseException as error:
            broken.append(error)

    threads = [threading.Thread(target=live, args=(life,)) for life in lives]
    for thread in threads:
        thread.start()
    looks = 0
    while any(thread.is_alive() for thread in threads):
        for life in lives:
            assert faults(audit.snapshot(real_db, life.id)) == []
            looks += 1
    assert not broken
    assert looks > 6
    for life in lives:
        assert faults(audit.snapshot(real_db, life.id), log_of(real_db, life.id)) == []


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (("hset", "aeo:e:e1:trials", "t1", "running"), "trial t1 is running but nobody's claim"),
        (("hdel", "aeo:e:e1:trials", "t1"), "trial t1 is planned but in no state"),
        (("zrem", "aeo:e:e1:share:b1", "t1"), "trial t1 is pending but in no share"),
        (("zadd", "aeo:e:e1:left", "7", "b1"), "batch 'b1' says 7.0 ms"),
        (("hincrby", "aeo:e:e1", "done", "1"), "the counter done says 1"),
        (("rpush", "aeo:e:e1:order", "t1"), "trial t1 is pending but in the order"),
        (("zadd", "aeo:e:e1:leases", "1", "t1"), "trial t1 is pending but leased"),
        (("hset", "aeo:e:e1:tokens", "k", "t1"), "trial t1 has a token"),
        (("sadd", "aeo:w:w0:leases", "e1 t1"), "worker w0 is said to run trial t1"),
        (("zadd", "aeo:evaluations:state:failed", "1", "e1"), "listed as failed, running"),
        (("hset", "aeo:e:e1:phases", "t1", "agent"), "trial t1 is pending but in a phase"),
    ],
)
def test_a_store_that_somebody_touched(db: Db, command: tuple[str, ...], words: str) -> None:
    add_workers(db)
    stored(db, {"b1": ["t1", "t2"]})
    assert faults(audit.snapshot(db, "e1")) == []
    db.client.execute_command(*command)
    assert any(words in fault for fault in faults(audit.snapshot(db, "e1")))


def test_shares_and_runs_of_what_is_not_listed_are_seen(db: Db) -> None:
    """A run that outlived a wiped store names a batch and a worker the store does not know."""
    stored(db, {"b1": ["t1"]})
    claim = Claim(evaluation="e1", trial="t1", batch="forgotten", worker="stranger", token="k", attempt=1)
    assert trials.reclaim(db, claim, lease_seconds=60)
    seen = audit.snapshot(db, "e1")
    assert seen.worker_leases == {("stranger", "t1")}
    assert faults(seen) == []
    with pytest.raises(NotFound):
        audit.snapshot(db, "e2")
    trials.commit(db, "e1", a_row("t1"), "recovered")
    assert audit.recovered(db, "e1") == 1
