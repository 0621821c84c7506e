"""Claims: nothing declared is promised twice, nothing starves, and the store chooses as the pure policy does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from choosing import pool_of
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from store_samples import SUBMITTED, a_row, a_worker

from aeo.core.choose import Answer, amounts, choose, covers, gives_way, offered
from aeo.core.model import Batch, Capacity, Claim, Evaluation, Needs, Plan, PlannedTrial, Spec, WorkerState
from aeo.core.speeds import pace
from aeo.store import evaluations, limits, speeds, trials, workers
from aeo.store.connection import Db
from aeo.store.keys import key

LEASE = 60.0


def a_place(db: Db, id: str, **capacity: Any) -> None:
    offer = Capacity(**{"slots": 4, "cpus": 4.0, "memory_mb": 8000, **capacity})
    workers.register(db, replace(a_worker(id), capacity=offer), ttl_seconds=3600)


def planned(name: str, *, seconds: float = 10.0, model: str = "", **needs: Any) -> PlannedTrial:
    labels = {"model": model} if model else {}
    return PlannedTrial(name=name, task=name, labels=labels, estimated_seconds=seconds, needs=Needs(**needs))


def started(
    db: Db, shares: dict[str, Sequence[PlannedTrial]], *, id: str = "e1", worker: str = "w", priority: int = 0
) -> dict[str, Batch]:
    """An evaluation whose batches (``batch`` or ``batch@worker``) have all begun."""
    batches = {
        name: Batch(id=name.partition("@")[0], evaluation=id, worker=name.partition("@")[2] or worker)
        for name in shares
    }
    plan = Plan(trials=tuple(trial for share in shares.values() for trial in share))
    spec = Spec(executor="sleep", name=id, priority=priority)
    evaluation = Evaluation(id=id, spec=spec, plan=plan, submitted_at=SUBMITTED)
    evaluations.save(db, evaluation, {batches[name]: [t.name for t in share] for name, share in shares.items()}, {})
    for batch in batches.values():
        evaluations.start_batch(db, batch)
    return {batch.id: batch for batch in batches.values()}


_tokens = iter(range(10**9))


def ask(db: Db, batch: Batch, patience: float = 60.0) -> Claim | Answer:
    return trials.ask(db, batch, token=f"k{next(_tokens)}", lease_seconds=LEASE, patience_seconds=patience)


def name(answer: Claim | Answer) -> str:
    return answer.value if isinstance(answer, Answer) else answer.trial


def test_what_is_declared_is_never_promised_twice(db: Db) -> None:
    a_place(db, "w", memory_mb=1000)
    batches = started(db, {f"b{n}": [planned(f"t{n}", memory_mb=400)] for n in range(3)})
    one, two = ask(db, batches["b0"]), ask(db, batches["b1"])
    assert (name(one), name(two)) == ("t0", "t1")
    assert ask(db, batches["b2"]) is Answer.WAIT
    assert isinstance(one, Claim)
    trials.pushed(db, one)
    assert name(ask(db, batches["b2"])) == "t2"


def test_a_batch_that_asks_again_has_ended_its_trial(db: Db) -> None:
    a_place(db, "w", memory_mb=1000)
    batches = started(db, {"b": [planned("t0", memory_mb=900), planned("t1", memory_mb=900)], "c": []})
    assert name(ask(db, batches["b"])) == "t0"
    assert ask(db, batches["c"]) is Answer.WAIT
    # Its result is not pushed yet, but its process is gone.
    assert name(ask(db, batches["b"])) == "t1"
    assert ask(db, batches["c"]) is Answer.END


def test_overcommit_is_a_factor_on_what_is_there(db: Db) -> None:
    a_place(db, "w", cpus=1.0, overcommit=1.5)
    batches = started(db, {f"b{n}": [planned(f"t{n}", cpus=0.5)] for n in range(4)})
    assert [name(ask(db, batches[f"b{n}"])) for n in range(4)] == ["t0", "t1", "t2", "wait"]


def test_disk_counts_where_it_is_measured(db: Db) -> None:
    a_place(db, "w", disk_mb=100)
    a_place(db, "v")
    batches = started(db, {"b": [planned("t0", disk_mb=60)], "c": [planned("t1", disk_mb=60)], "d@v": [], "e@v": []})
    assert name(ask(db, batches["b"])) == "t0"
    assert ask(db, batches["c"]) is Answer.WAIT
    assert name(ask(db, batches["d"])) == "t1"


def test_every_evaluation_counts(db: Db) -> None:
    a_place(db, "w", memory_mb=1000)
    one = started(db, {"b": [planned("t", memory_mb=600)]}, id="e1")
    two = started(db, {"b": [planned("t", memory_mb=600), planned("u")]}, id="e2")
    assert name(ask(db, one["b"])) == "t"
    assert name(ask(db, two["b"])) == "u"
    trials.requeue(db, "e1", "t", trials.running(db, "e1")[0].claim.token, reason="lost", max_requeues=3)
    assert name(ask(db, two["b"])) == "t"


def test_a_lighter_trial_passes_a_heavy_one_but_not_for_ever(db: Db) -> None:
    a_place(db, "w", memory_mb=1000)
    light = [planned(f"l{n}", seconds=1, memory_mb=400) for n in range(20)]
    batches = started(db, {"b": [planned("heavy", memory_mb=900), *light], "c": []})
    # Both slots full of light ones: the heavy one never fits unless room is made for it.
    first = [ask(db, batches["c"]), ask(db, batches["b"])]
    assert [name(answer) for answer in first] == ["heavy", "wait"]
    trials.requeue(db, "e1", "heavy", first[0].token, reason="lost", max_requeues=3, counted=False)  # type: ignore[union-attr]
    db.client.hset(key("loads", "w"), "x y", "0 z")  # somebody else's 900
    db.client.hset(key("kinds", "x"), "0", "0 500 0 ")
    assert name(ask(db, batches["b"])) == "l0"
    assert db.client.get(key("room", "w")).startswith("e1 heavy ")
    assert name(ask(db, batches["b"])) == "l1"
    # Passed over for long enough: now nothing starts that takes of what it waits for.
    assert ask(db, batches["b"], patience=0.0) is Answer.WAIT
    db.client.hdel(key("loads", "w"), "x y")
    assert name(ask(db, batches["c"], patience=0.0)) == "heavy"
    assert db.client.get(key("room", "w")) is None


def test_room_is_kept_by_one_worker_only(db: Db) -> None:
    for id in ("v", "w"):
        a_place(db, id, memory_mb=1000)
    heavy, fillers = planned("heavy", memory_mb=900), [planned(f"f{n}", memory_mb=300) for n in range(4)]
    batches = started(db, {"b@v": [heavy, *fillers], "c@w": [], "d@v": [], "e@w": []})
    other = started(db, {"x@v": [planned("o1", memory_mb=300)], "y@w": [planned("o2", memory_mb=300)]}, id="e2")
    assert [name(ask(db, other[id])) for id in "xy"] == ["o1", "o2"]
    assert name(ask(db, batches["b"])) == "f0"
    assert name(ask(db, batches["c"])) == "f1"
    assert db.client.get(key("room", "v"))
    assert db.client.get(key("room", "w")) is None
    assert ask(db, batches["d"], patience=0.0) is Answer.WAIT
    assert name(ask(db, batches["e"], patience=0.0)) == "f2"


def test_a_heavy_trial_that_is_done_elsewhere_keeps_no_room(db: Db) -> None:
    a_place(db, "w", memory_mb=1000)
    a_place(db, "v", memory_mb=1000)
    other = started(db, {"x": [planned("o", memory_mb=300)]}, id="e2")
    light = [planned(f"l{n}", memory_mb=200) for n in range(9)]
    batches = started(db, {"b": [planned("heavy", memory_mb=900), *light], "c@v": [], "d": []})
    assert name(ask(db, other["x"])) == "o"
    assert name(ask(db, batches["b"])) == "l0"
    assert ask(db, batches["d"], patience=0.0) is Answer.WAIT
    assert name(ask(db, batches["c"])) == "heavy"
    assert pool_of(db, patience=0.0).places["w"].room is None
    assert name(ask(db, batches["d"], patience=0.0)) == "l1"
    # Only its own worker clears what it kept.
    assert db.client.get(key("room", "w")) is None


MODELS = ("", "p/one", "p/two", "q/one")
NEEDS = st.builds(Needs, cpus=st.sampled_from([0, 0.5, 2]), memory_mb=st.sampled_from([0, 300, 700]))


@dataclass
class Walk:
    """A random life of a small pool."""

    db: Db
    data: st.DataObject
    claims: list[Claim] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)

    def begin(self) -> None:
        draw = self.data.draw
        for id in ("v", "w"):
            cpus, memory = draw(st.sampled_from([1.0, 2.0, 4.0])), draw(st.sampled_from([600, 1000, 2000]))
            if draw(st.integers(0, 9)):
                a_place(self.db, id, cpus=cpus, memory_mb=memory, overcommit=draw(st.sampled_from([1.0, 1.5])))
        for number in range(draw(st.integers(1, 3))):
            plain = draw(st.booleans())
            shares: dict[str, list[PlannedTrial]] = {}
            for slot in range(draw(st.integers(1, 4))):
                worker = draw(st.sampled_from(["v", "w"]))
                shares[f"b{slot}@{worker}"] = [
                    PlannedTrial(
                        name=f"t{slot}-{n}",
                        task="t",
                        labels={} if plain or not (model := draw(st.sampled_from(MODELS))) else {"model": model},
                        estimated_seconds=draw(st.sampled_from([1.0, 2.0, 5.0])),
                        needs=Needs() if plain else draw(NEEDS),
                    )
                    for n in range(draw(st.integers(0, 5)))
                ]
            if any(shares.values()):
                priority = draw(st.sampled_from([0, 0, 1]))
                self.batches += started(self.db, shares, id=f"e{number}", priority=priority).values()

    def step(self) -> None:
        draw = self.data.draw
        kind = draw(
            st.sampled_from(
                ["ask"] * 8
                + ["arrive", "push", "requeue", "limit", "old", "turn", "end", "pause", "speeds", "speeds", "unfit"]
            )
        )
        getattr(self, f"do_{kind}")(draw)

    def do_ask(self, draw: Any) -> None:
        if not self.batches:
            return
        batch, patience = draw(st.sampled_from(self.batches)), draw(st.sampled_from([0.0, 60.0]))
        pool = pool_of(self.db, patience=patience)
        wanted = choose(pool, batch.evaluation, batch.id)
        got = ask(self.db, batch, patience)
        after = pool_of(self.db, patience=patience)
        if name(got) != (wanted.trial or wanted.answer.value):
            # What runs is nearer to its end than it was a moment ago.
            assert pool.jobs[batch.evaluation].pace
            wanted = choose(replace(pool, now=after.now), batch.evaluation, batch.id)
        assert name(got) == (wanted.trial or wanted.answer.value)
        self.check_left(batch, pool, after, wanted)
        declared = after.jobs[batch.evaluation].kinds.keys() != {""}
        if declared and wanted.answer in (Answer.CLAIM, Answer.WAIT):
            room = after.places[batch.worker].room
            assert (room and (room.evaluation, room.trial)) == (
                wanted.room and (wanted.room.evaluation, wanted.room.trial)
            )
        if isinstance(got, Claim):
            self.claims.append(got)
        self.check(after)

    def check_left(self, batch: Batch, pool: Any, after: Any, wanted: Any) -> None:
        before, seat = (one.jobs[batch.evaluation].seats[batch.id] for one in (pool, after))
        if wanted.answer is Answer.CLAIM:
            assert seat.leaves is seat.rests is None
        elif wanted.rests is not None:
            assert seat.leaves == before.leaves if before.leaves else pool.now - 0.001 <= seat.leaves <= after.now
            soonest, latest = (
                choose(replace(pool, now=now), batch.evaluation, batch.id).rests for now in (pool.now, after.now)
            )
            assert soonest is None or latest is None or soonest - 0.002 <= seat.rests <= latest + 0.002
        elif wanted.answer is Answer.TURN:
            # What it left before is not forgotten.
            assert (seat.leaves is None) == (before.leaves is None)

    def check(self, pool: Any) -> None:
        for place in pool.places.values():
            if place.capacity is not None:
                used = [sum(column) for column in zip(*(amounts(k.needs) for k in place.loads.values()), strict=True)]
                assert all(u <= o for u, o in zip(used, offered(place.capacity), strict=False))
        for limit in pool.limits:
            using = self.db.client.smembers(key("using", limit))
            assert using == {
                " ".join(seat)
                for place in pool.places.values()
                for seat, kind in place.loads.items()
                if covers(limit, kind.model)
            }

    def do_arrive(self, draw: Any) -> None:
        if not self.batches:
            return
        batch = draw(st.sampled_from(self.batches))
        wanted = gives_way(pool_of(self.db, patience=60.0), batch.evaluation, batch.id)
        assert evaluations.gives_way(self.db, batch) == wanted
        if not wanted:
            evaluations.start_batch(self.db, batch)

    def do_push(self, draw: Any) -> None:
        if self.claims:
            claim = self.claims.pop(draw(st.integers(0, len(self.claims) - 1)))
            trials.pushed(self.db, claim)
            if draw(st.booleans()):
                trials.commit(self.db, claim.evaluation, a_row(claim.trial), claim.token)

    def do_requeue(self, draw: Any) -> None:
        if self.claims:
            claim = self.claims.pop(draw(st.integers(0, len(self.claims) - 1)))
            counted = draw(st.booleans())
            where = (claim.evaluation, claim.trial, claim.token)
            trials.requeue(self.db, *where, reason="", max_requeues=99, counted=counted)

    def do_limit(self, draw: Any) -> None:
        name = draw(st.sampled_from(["p", "p/one", "q", "q/one", "p/o"]))
        # One more than runs already would only be seen by `check`; a limit says nothing of what runs.
        limits.set(self.db, name, trials=draw(st.integers(0, 2)), per_minute=draw(st.sampled_from([0.0, 0.0, 1.0])))

    def do_speeds(self, draw: Any) -> None:
        """Let speeds be learnt, or forgotten, and slots wait for a while."""
        for id in {batch.evaluation for batch in self.batches}:
            at = {worker: draw(st.sampled_from([0.25, 0.5, 1.0, 1.0, 2.0])) for worker in ("v", "w", "x")}
            self.db.client.delete(key("speeds", id))
            told = speeds.table(pace(draw(st.sampled_from(["vw", "vvw", "vww", "vwx", "w", ""])), at))
            if told:
                self.db.client.hset(key("speeds", id), mapping=told)
            if draw(st.booleans()):
                earlier = draw(st.sampled_from([500, 3000, 20000]))
                for name in self.db.client.hkeys(key("leaves", id)):
                    if name != " horizon":
                        self.db.client.hincrby(key("leaves", id), name, -earlier)

    def do_unfit(self, draw: Any) -> None:
        if self.batches:
            batch, id = draw(st.sampled_from(self.batches)), draw(st.sampled_from("vw"))
            trial = draw(st.sampled_from([f"t{slot}-{n}" for slot in range(2) for n in range(2)]))
            self.db.client.sadd(key("unfit", batch.evaluation, id), trial)

    def do_old(self, draw: Any) -> None:
        """Let time have passed."""
        client = self.db.client
        for batch in self.batches:
            client.hset(key("batch_since", batch.evaluation), batch.id, 0)
        if draw(st.booleans()):
            client.delete(key("paced"))

    def do_turn(self, draw: Any) -> None:
        if self.batches:
            batch = draw(st.sampled_from(self.batches))
            # As if the worker had been started again and its message sent anew.
            self.db.run("move_batch", batch.evaluation, batch.id, "sent", "started")

    def do_end(self, draw: Any) -> None:
        if self.batches and not draw(st.integers(0, 5)):
            evaluations.end_batch(self.db, draw(st.sampled_from(self.batches)))

    def do_pause(self, draw: Any) -> None:
        id, state = draw(st.sampled_from(["v", "w"])), draw(st.sampled_from([WorkerState.PAUSED, WorkerState.ONLINE]))
        if self.db.client.hexists(key("workers"), id):
            workers.set_state(self.db, id, state)


# Not made smaller: that would take minutes against a real server.
@settings(max_examples=40, phases=[Phase.explicit, Phase.generate])
@given(data=st.data())
def test_the_store_chooses_as_the_policy_says(real_db: Db, data: st.DataObject) -> None:
    real_db.client.flushall()
    walk = Walk(db=real_db, data=data)
    walk.begin()
    for _ in range(25):
        walk.step()
