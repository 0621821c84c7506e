"""What a slow slot leaves to faster ones, in the store: for how long, at what cost, and who gets its slot meanwhile."""

from __future__ import annotations

from dataclasses import replace

import pytest
from choosing import pool_of
from store_samples import stored

from aeo.core.choose import Answer, choose
from aeo.core.leave import REST_SECONDS, SHARES
from aeo.core.model import Batch, Claim
from aeo.core.pool import Pace
from aeo.store import evaluations, speeds, trials
from aeo.store.connection import Db
from aeo.store.keys import key
from aeo.turns import LEAVE_SECONDS, pause

_tokens = iter(range(10**9))


def ask(db: Db, batch: Batch) -> Claim | Answer:
    return trials.ask(db, batch, token=f"k{next(_tokens)}", lease_seconds=60.0)


def slow(db: Db, id: str = "e1") -> None:
    """The worker ``slow`` is a fourth as fast as ``fast``."""
    told = speeds.table(Pace(speeds={"fast": 1.0, "slow": 0.25}, power=1.25))
    db.client.hset(key("speeds", id), mapping=told)


def estimated(db: Db, id: str, seconds: dict[str, float]) -> None:
    for trial, one in seconds.items():
        before = int(db.client.hget(key("estimates", id), trial) or 0)
        db.client.hset(key("estimates", id), trial, round(one * 1000))
        share = db.client.hget(key("where", id), trial)
        db.client.zincrby(key("left", id), round(one * 1000) - before, share)


def left(db: Db, batch: Batch, field: str = "") -> float | None:
    found = db.client.hget(key("leaves", batch.evaluation), batch.id + field)
    return None if found is None else float(found)


@pytest.mark.parametrize("priorities", [(1, 0), (0, 0)])
def test_two_do_not_send_each_other_the_slot(db: Db, priorities: tuple[int, int]) -> None:
    """The first leaves its last trial; the second has the slot then, for all of its own."""
    first = stored(db, {"b": ["long"], "f": []}, id="e1", name="first", workers={"b": "slow", "f": "fast"})
    second = stored(db, {"a": [f"s{n}" for n in range(9)]}, id="e2", name="second", workers={"a": "slow"})
    for id, priority in zip(("e1", "e2"), priorities, strict=True):
        db.client.hset(key("evaluation", id), "priority", priority)
    slow(db)
    estimated(db, "e1", {"long": 100.0})
    evaluations.start_batch(db, first["f"])
    evaluations.start_batch(db, first["b"])
    assert ask(db, first["b"]) is Answer.TURN
    since = left(db, first["b"])
    assert since is not None
    # The second's message arrives: nobody makes way for who would leave what waits again.
    assert not evaluations.gives_way(db, second["a"])
    evaluations.start_batch(db, second["a"])
    for _ in range(3):
        assert isinstance(ask(db, second["a"]), Claim)
    # Its rest is over: it is asked, leaves what waits once more, and its patience goes on.
    db.client.hset(key("leaves", "e1"), "b rests", 1)
    db.client.hset(key("batch_since", "e2"), "a", 1)
    assert ask(db, second["a"]) is Answer.TURN
    assert not evaluations.gives_way(db, first["b"])
    evaluations.start_batch(db, first["b"])
    assert ask(db, first["b"]) is Answer.TURN
    assert left(db, first["b"]) == since
    assert not evaluations.gives_way(db, second["a"])
    evaluations.start_batch(db, second["a"])
    # Its patience is over.
    db.client.hset(key("leaves", "e1"), mapping={"b": 1, "b rests": 1})
    db.client.hset(key("batch_since", "e2"), "a", 1)
    assert ask(db, second["a"]) is Answer.TURN
    evaluations.start_batch(db, first["b"])
    claim = ask(db, first["b"])
    assert isinstance(claim, Claim)
    assert claim.trial == "long"


def test_who_is_slow_no_more_rests_no_more(db: Db) -> None:
    first = stored(db, {"b": ["long"], "f": []}, id="e1", name="first", workers={"b": "slow", "f": "fast"})
    second = stored(db, {"a": ["s1", "s2"]}, id="e2", name="second", workers={"a": "slow"})
    db.client.hset(key("evaluation", "e1"), "priority", 4)
    slow(db)
    estimated(db, "e1", {"long": 100.0})
    evaluations.start_batch(db, first["b"])
    assert ask(db, first["b"]) is Answer.TURN
    evaluations.start_batch(db, second["a"])
    assert isinstance(ask(db, second["a"]), Claim)
    # The fast worker is gone: the first gets its slot back at once, and a claim ends what is left of its patience.
    db.client.delete(key("speeds", "e1"))
    assert ask(db, second["a"]) is Answer.TURN
    evaluations.start_batch(db, first["b"])
    assert isinstance(ask(db, first["b"]), Claim)
    assert left(db, first["b"]) is left(db, first["b"], " rests") is None


def test_a_first_trial_that_is_shunned_does_not_hide_that_others_are_left(db: Db) -> None:
    batches = stored(db, {"b": ["short", "long"], "f": []}, workers={"b": "slow", "f": "fast"})
    slow(db)
    estimated(db, "e1", {"short": 0.001, "long": 100.0})
    for batch in batches.values():
        evaluations.start_batch(db, batch)
    now = round(trials.now(db).timestamp() * 1000)
    db.client.hset(key("avoid", "e1"), mapping={"short": "slow", "short since": now})
    assert ask(db, batches["b"]) is Answer.LEAVE
    assert left(db, batches["b"]) is not None
    rests = left(db, batches["b"], " rests")
    assert rests is not None
    assert rests - now == pytest.approx(REST_SECONDS * 1000, abs=1000)


def test_a_slot_looks_at_few_shares_and_at_what_runs_only_now_and_then(db: Db) -> None:
    count = 60
    where = {"b": "slow"} | {f"f{n:03}": "fast" for n in range(count)}
    batches = stored(db, {batch: [f"t-{batch}"] for batch in where}, workers=where)
    slow(db)
    estimated(db, "e1", {f"t-{batch}": 1000.0 for batch in where})
    for batch in batches.values():
        evaluations.start_batch(db, batch)
    # A short one far behind: not looked for.
    estimated(db, "e1", {f"t-f{count - 1:03}": 0.001})
    told = {"fast": "1000000", "slow": "250", " power": "1000000000", " fastest": "1000000"}
    db.client.hset(key("speeds", "e1"), mapping=told)
    pool = pool_of(db, patience=60.0)
    wanted = choose(pool, "e1", "b")
    assert (wanted.answer, len(pool.jobs["e1"].shares) > SHARES) == (Answer.LEAVE, True)
    assert ask(db, batches["b"]) is Answer.LEAVE
    text = db.client.hget(key("leaves", "e1"), " horizon")
    assert text is not None
    # What was seen a moment ago serves the next who asks.
    at, work, _, fresh = (float(part) for part in text.split(" "))
    assert fresh >= count
    db.client.hset(key("leaves", "e1"), " horizon", f"{at:.0f} {work} 1e9 1e9")
    assert isinstance(ask(db, batches["b"]), Claim)
    after = pool_of(db, patience=60.0)
    seen = replace(pool.jobs["e1"], horizon=after.jobs["e1"].horizon)
    assert choose(replace(pool, now=after.now, jobs={"e1": seen}), "e1", "b").answer is Answer.CLAIM


def test_who_leaves_asks_ever_less_often() -> None:
    least, most = LEAVE_SECONDS
    assert [pause(left) for left in (0.0, 5.0, 20.0, 49.0, 1000.0)] == [least, least, 2.0, 4.9, most]
