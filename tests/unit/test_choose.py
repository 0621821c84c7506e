"""The policy by itself: no trial is lost or starves, needs and limits hold, priorities hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aeo.core.choose import TURN_SECONDS, Answer, Choice, amounts, choose, covers, gives_way, offered
from aeo.core.model import Capacity, Needs
from aeo.core.pool import Job, Kind, Limit, Place, Pool, Room, Seat, Share, Waiting

CAPACITY = Capacity(slots=2, cpus=4, memory_mb=1000)
NOTHING = {"": Kind()}


def a_share(*trials: str, kind: str = "", seconds: float = 10.0) -> Share:
    return Share(seconds=seconds, queues={kind: [Waiting(trial=t, place=float(n)) for n, t in enumerate(trials)]})


def a_job(shares: Mapping[str, Share], *, worker: str = "w", state: str = "started", **fields: Any) -> Job:
    seats = {batch: Seat(worker=worker, state=state) for batch in shares if batch}
    return Job(**{"kinds": NOTHING, "shares": shares, "seats": seats, **fields})


def a_pool(*jobs: Job, now: float = 100.0, **fields: Any) -> Pool:
    named = {f"e{n}": job for n, job in enumerate(jobs)}
    return Pool(**{"now": now, "jobs": named, "places": {"w": Place(capacity=CAPACITY)}, "patience": 60.0, **fields})


def test_own_share_first_then_the_one_with_most_left() -> None:
    shares = {"a": a_share("a1"), "b": a_share("b1", seconds=5), "c": a_share("c1", seconds=6)}
    assert choose(a_pool(a_job(shares)), "e0", "a") == Choice(answer=Answer.CLAIM, trial="a1")
    del shares["a"]
    job = a_job({**shares, "a": a_share(seconds=0)})
    assert choose(a_pool(job), "e0", "a").trial == "c1"


def test_nothing_left_is_the_end() -> None:
    job = a_job({"a": a_share()})
    assert choose(a_pool(job), "e0", "a").answer is Answer.END
    for fields in ({"runs": False}, {"seats": {"a": Seat(worker="w", state="ended")}}, {"seats": {}}):
        assert choose(a_pool(replace(a_job({"a": a_share("t")}), **fields)), "e0", "a").answer is Answer.END
    closed = {"w": Place(capacity=CAPACITY, takes=False)}
    assert choose(a_pool(a_job({"a": a_share("t")}), places=closed), "e0", "a").answer is Answer.END


def test_a_trial_that_never_fits_is_no_reason_to_wait() -> None:
    kinds = {"big": Kind(needs=Needs(memory_mb=1001)), "fits": Kind(needs=Needs(memory_mb=1000))}
    job = a_job({"a": a_share("t", kind="big")}, kinds=kinds)
    assert choose(a_pool(job), "e0", "a").answer is Answer.END
    job = a_job({"a": a_share("t", kind="fits")}, kinds=kinds)
    assert choose(a_pool(job), "e0", "a").trial == "t"
    assert choose(a_pool(job, places={}), "e0", "a").answer is Answer.WAIT


def test_a_trial_that_failed_here_waits_for_others_while_there_are_some() -> None:
    job = a_job({"a": a_share("t")}, avoid={"t": ("w", 90.0)})
    assert choose(a_pool(job), "e0", "a").trial == "t"
    other = replace(job, seats={**job.seats, "b": Seat(worker="v", state="started")})
    assert choose(a_pool(other), "e0", "a").answer is Answer.WAIT
    assert choose(a_pool(other, now=121.0), "e0", "a").trial == "t"


def test_limits_hold_for_a_provider_and_for_a_model() -> None:
    assert [covers(key, "p/one") for key in ("p", "p/one", "p/on", "q", "")] == [True, True, False, False, False]
    kinds = {"m": Kind(model="p/one"), "o": Kind(model="q/one")}
    shares = {"a": Share(seconds=1, queues={"m": [Waiting(trial="t", place=0)], "o": [Waiting(trial="u", place=1)]})}
    busy = {"w": Place(capacity=CAPACITY, loads={("x", "y"): kinds["m"]})}
    for key, trial in (("p", "u"), ("p/one", "u"), ("p/two", "t"), ("q", "t")):
        pool = a_pool(a_job(shares, kinds=kinds), places=busy, limits={key: Limit(trials=1)})
        assert choose(pool, "e0", "a").trial == trial
    both = {"p": Limit(trials=1), "q": Limit(per_minute=6)}
    pool = a_pool(a_job(shares, kinds=kinds), places=busy, limits=both, paced={"q": 105.0})
    assert choose(pool, "e0", "a").answer is Answer.WAIT
    assert choose(replace(pool, now=105.0), "e0", "a").trial == "u"


def test_a_turn_goes_to_the_higher_priority_at_once_and_to_an_equal_after_a_while() -> None:
    mine = a_job({"a": a_share("t")}, seats={"a": Seat(worker="w", state="started", since=100.0)})
    theirs = a_job({"b": a_share("u")}, state="sent")
    assert choose(a_pool(mine, theirs), "e0", "a").answer is Answer.CLAIM
    assert choose(a_pool(mine, theirs, now=100.0 + TURN_SECONDS), "e0", "a").answer is Answer.TURN
    assert choose(a_pool(mine, replace(theirs, untouched=True)), "e0", "a").answer is Answer.TURN
    assert choose(a_pool(mine, replace(theirs, priority=1)), "e0", "a").answer is Answer.TURN
    assert choose(a_pool(mine, replace(theirs, priority=-1), now=999.0), "e0", "a").answer is Answer.CLAIM
    assert choose(a_pool(mine, replace(theirs, runs=False), now=999.0), "e0", "a").answer is Answer.CLAIM
    elsewhere = replace(theirs, seats={"b": Seat(worker="v", state="sent")})
    assert choose(a_pool(mine, elsewhere, now=999.0), "e0", "a").answer is Answer.CLAIM


def test_equals_have_equally_many_slots() -> None:
    seats = {"b": Seat(worker="w", state="started"), "c": Seat(worker="w", state="sent")}
    theirs = a_job({"b": a_share("u"), "c": a_share("v")}, seats=seats)
    mine = a_job({"a": a_share("t")})
    assert choose(a_pool(mine, theirs), "e0", "a").answer is Answer.CLAIM
    both = a_job({"a": a_share("t"), "d": a_share("s")})
    assert choose(a_pool(both, theirs), "e0", "a").answer is Answer.TURN


def test_who_cannot_run_gets_no_turn_and_who_waits_gives_its() -> None:
    kinds = {"m": Kind(model="p/one")}
    limits = {"p": Limit(trials=1)}
    busy = {"w": Place(capacity=CAPACITY, loads={("x", "y"): kinds["m"]})}
    held = a_job({"b": a_share("u", kind="m")}, kinds=kinds, state="sent", priority=9)
    mine = a_job({"a": a_share("t")})
    assert choose(a_pool(mine, held, places=busy, limits=limits), "e0", "a").answer is Answer.CLAIM
    waits = a_job({"a": a_share("t", kind="m")}, kinds=kinds, priority=9)
    usual = a_job({"b": a_share("u")}, state="sent")
    assert choose(a_pool(waits, usual, places=busy, limits=limits), "e0", "a").answer is Answer.TURN
    assert choose(a_pool(waits, places=busy, limits=limits), "e0", "a").answer is Answer.WAIT


def test_a_batch_that_arrives_lets_each_that_goes_before_it_pass_once() -> None:
    seat = Seat(worker="w", state="sent", since=50.0)
    mine = a_job({"a": a_share("t")}, seats={"a": seat})
    theirs = a_job({"b": a_share("u")}, seats={"b": replace(seat, since=60.0)})
    assert not gives_way(a_pool(mine, theirs), "e0", "a")
    high = replace(theirs, priority=1)
    assert gives_way(a_pool(mine, high), "e0", "a")
    for turned, again in ((59.0, True), (60.0, False)):
        behind = replace(mine, seats={"a": replace(seat, turned=turned)})
        assert gives_way(a_pool(behind, high), "e0", "a") is again


NEEDS = st.builds(Needs, cpus=st.sampled_from([0, 1, 3, 4]), memory_mb=st.sampled_from([0, 300, 900]))


@given(
    needs=st.lists(NEEDS, min_size=1, max_size=12),
    slots=st.integers(1, 4),
    data=st.data(),
    patience=st.sampled_from([0.0, 3.0]),
)
def test_needs_are_never_exceeded_and_no_trial_starves(
    needs: Sequence[Needs], slots: int, data: st.DataObject, patience: float
) -> None:
    """A pool of one worker, lived through: random durations, batches that ask when they are free."""
    kinds = {str(n): Kind(needs=need) for n, need in enumerate(needs)}
    left = [(f"t{n}", str(n)) for n in range(len(needs))]
    loads: dict[tuple[str, str], Kind] = {}
    running: dict[str, float] = {}
    room: Room | None = None
    now, steps = 0.0, 0
    while left:
        steps += 1
        assert steps < 2000, f"{left} starve"
        now += 1.0
        for slot in range(slots):
            batch = f"b{slot}"
            if running.get(batch, 0.0) > now:
                continue
            loads.pop(("e0", batch), None)
            queues: dict[str, list[Waiting]] = {}
            for place, (trial, kind) in enumerate(left):
                queues.setdefault(kind, []).append(Waiting(trial=trial, place=place))
            shares = {f"b{n}": Share(seconds=0, queues={}) for n in range(slots)} | {
                "": Share(seconds=1, queues=queues)
            }
            place = Place(capacity=CAPACITY, loads=dict(loads), room=room)
            pool = a_pool(a_job(shares, kinds=kinds), now=now, places={"w": place}, patience=patience)
            choice = choose(pool, "e0", batch)
            assert choice == choose(pool, "e0", batch)
            room = choice.room
            if choice.answer is Answer.CLAIM:
                ((trial, kind),) = [pair for pair in left if pair[0] == choice.trial]
                left.remove((trial, kind))
                loads["e0", batch] = kinds[kind]
                running[batch] = now + data.draw(st.integers(1, 4))
            used = [sum(column) for column in zip(*(amounts(k.needs) for k in loads.values()), strict=True)]
            assert all(u <= o for u, o in zip(used, offered(CAPACITY), strict=False))


def test_a_heavy_trial_in_a_stream_of_light_ones_runs_when_patience_ends() -> None:
    kinds = {"heavy": Kind(needs=Needs(memory_mb=900)), "light": Kind(needs=Needs(memory_mb=400))}
    heavy = [Waiting(trial="heavy", place=0.0)]
    loads = {("e0", "a"): kinds["light"], ("e0", "b"): kinds["light"]}
    room: Room | None = None
    ran: list[str] = []
    for now in range(100):
        batch = "ab"[now % 2]
        loads.pop(("e0", batch), None)
        light = [Waiting(trial=f"l{now}", place=1.0)]
        shares = {"a": Share(seconds=9, queues={"heavy": heavy, "light": light}), "b": a_share(kind="light")}
        place = Place(capacity=CAPACITY, loads=dict(loads), room=room)
        pool = a_pool(a_job(shares, kinds=kinds), now=float(now), places={"w": place}, patience=20.0)
        choice = choose(pool, "e0", batch)
        room = choice.room
        if choice.answer is Answer.CLAIM:
            ran.append(choice.trial)
            loads["e0", batch] = kinds["heavy" if choice.trial == "heavy" else "light"]
        if choice.trial == "heavy":
            break
    assert ran[-1] == "heavy"
    assert 20 <= now <= 23
