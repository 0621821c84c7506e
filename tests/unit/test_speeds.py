"""Speeds of workers: what is learnt of runs, and what slow slots leave to fast ones."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import pytest
from benchmarks import workloads
from benchmarks.workloads import UNEVEN
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from aeo.core.allot import Offer, allot
from aeo.core.bounds import bound
from aeo.core.choose import Answer, choose
from aeo.core.estimate import Run as Past
from aeo.core.estimate import at_usual_speed
from aeo.core.leave import PATIENT, is_slow
from aeo.core.model import Capacity, Needs, PlannedTrial
from aeo.core.pool import Job, Kind, Pace, Place, Pool, Run, Seat, Share, Waiting
from aeo.core.simulate import Forecast, Machine, Work, simulate
from aeo.core.speeds import FASTEST, LEAST, SLOWEST, Timed, learn, pace

POOL = [Machine(name=one.name, slots=one.slots, speed=one.speed) for one in UNEVEN]
SPEEDS = {"fast": 1.0, "middling": 0.5, "slow": 0.25}


def trials(seconds: Sequence[float], needs: Needs | None = None, prefix: str = "t") -> list[PlannedTrial]:
    return [
        PlannedTrial(name=f"{prefix}{n}", task=f"task-{n}", estimated_seconds=one, needs=needs or Needs())
        for n, one in enumerate(seconds)
    ]


def ran(
    speeds: dict[str, float],
    counts: dict[str, int],
    *,
    off: float = 1.0,
    noise: float = 0.05,
    extra: float = 0.0,
    seed: int = 0,
) -> dict[str, list[Timed]]:
    """Runs of each worker, each beside one of another: of any that ran, as often as it did."""
    draw = random.Random(seed)

    def take(worker: str, work: float) -> float:
        return work / speeds[worker] * math.exp(draw.gauss(0, noise)) + extra

    found: dict[str, list[Timed]] = {}
    for worker, count in counts.items():
        others = [other for other in counts if other != worker]
        for _ in range(count):
            other, work = draw.choices(others, [counts[one] for one in others])[0], draw.uniform(1, 100)
            run = Timed(evaluation="e", seconds=off * take(worker, work), other=other, before=take(other, work))
            found.setdefault(worker, []).append(run)
    return found


def quotients(found: Mapping[str, float]) -> dict[str, float]:
    """Speeds as parts of the highest: which one is 1 is only a matter of units."""
    return {worker: speed / max(found.values()) for worker, speed in found.items()}


@pytest.mark.parametrize("off", [0.02, 1.0, 30.0])
def test_speeds_are_learnt_however_far_an_evaluation_is_off(off: float) -> None:
    for seed in range(20):
        found = learn(ran(SPEEDS, {"fast": 60, "middling": 20, "slow": 6}, off=off, seed=seed))
        assert quotients(found) == pytest.approx(SPEEDS, rel=0.15)


def test_the_middle_worker_is_usual_however_little_it_ran() -> None:
    found = learn(ran({"a": 1.0, "b": 1.0, "c": 4.0}, {"a": 12, "b": 12, "c": 100}))
    assert found == pytest.approx({"a": 1.0, "b": 1.0, "c": 4.0}, rel=0.15)


def test_a_worker_whose_trials_end_at_once_does_not_make_the_others_slow() -> None:
    good = {f"good{number}": 1.0 for number in range(3)}
    found = learn(ran({**good, "bad": 1e5}, {**dict.fromkeys(good, 10), "bad": 100}))
    assert found == {**good, "bad": FASTEST}
    # Of two, nobody knows which is bad.
    found = learn(ran({"good": 1.0, "bad": 1e5}, {"good": 10, "bad": 100}))
    assert found == {"good": SLOWEST, "bad": FASTEST}
    assert allot(trials([1.0] * 9), offers_of({"good": 0.0, "bad": FASTEST}), None).shares.keys() == {"good", "bad"}
    assert pace(["good", "bad"], {"good": 0.0, "bad": 1e9}) is not None
    works = [Work(trials=trials([10.0] * 9))]
    assert simulate(works, [Machine(name=name, slots=2, speed=speed) for name, speed in found.items()]).left == {}


def offers_of(speeds: Mapping[str, float]) -> list[Offer]:
    capacity = Capacity(slots=1, cpus=9, memory_mb=9)
    return [Offer(worker=worker, capacity=capacity, speed=speed) for worker, speed in speeds.items()]


def test_what_each_trial_takes_beside_its_work_is_no_speed() -> None:
    alike = {"a": 1.0, "b": 1.0}
    for extra in (20.0, 200.0):
        assert learn(ran(alike, {"a": 60, "b": 60}, extra=extra)) == alike
    # Whoever has the short ones.
    short = [Timed(evaluation="e", seconds=22.0, other="a", before=22.0)] * 30
    long = [Timed(evaluation="e", seconds=120.0, other="b", before=120.0)] * 30
    assert learn({"a": long, "b": short}) == alike


def test_workers_that_are_alike_are_of_speed_one() -> None:
    alike = dict.fromkeys("abcd", 1.0)
    for seed in range(50):
        assert learn(ran(alike, dict.fromkeys(alike, 20), noise=0.5, seed=seed)) == alike


def test_little_evidence_and_none_leave_a_speed_at_one() -> None:
    assert learn({}) == {}
    assert learn({"a": [], "b": []}) == {"a": 1.0, "b": 1.0}
    few = [Timed(evaluation="e", seconds=9.0, other="a", before=1.0)] * (LEAST - 1)
    assert learn({"a": [], "b": few}) == {"a": 1.0, "b": 1.0}
    # Quotients that say nothing, and a few runs.
    assert learn(ran({"a": 1.0, "b": 0.8}, {"a": 5, "b": 5}, noise=2.0)) == {"a": 1.0, "b": 1.0}


def test_an_evaluation_on_one_worker_says_nothing_of_it() -> None:
    alone = [Timed(evaluation="alone", seconds=90.0, other="a", before=10.0)] * 20
    assert learn({**ran({"a": 1.0, "c": 1.0}, {"a": 9, "c": 9}), "b": alone}) == {"a": 1.0, "b": 1.0, "c": 1.0}


def test_one_wedged_run_does_not_count() -> None:
    runs = ran({"a": 1.0, "b": 1.0}, {"a": 9, "b": 9})
    runs["b"][0] = Timed(evaluation="e", seconds=1e6, other="a", before=1.0)
    assert learn(runs) == {"a": 1.0, "b": 1.0}


def test_past_runs_are_taken_as_at_usual_speed() -> None:
    runs = {"t": [Past(seconds=40.0, worker="slow"), Past(seconds=10.0, worker="fast"), Past(seconds=7.0)]}
    assert [run.seconds for run in at_usual_speed(runs, SPEEDS)["t"]] == [10.0, 10.0, 7.0]


def test_a_pace_is_told_only_where_workers_differ() -> None:
    assert pace(["a", "a", "b"], {"a": 1.0, "b": 1.05}) is None
    assert pace([], SPEEDS) is None
    found = pace(["fast"] * 4 + ["slow", "new"], SPEEDS)
    assert found == Pace(speeds={"fast": 1.0, "new": 1.0, "slow": 0.25}, power=5.25)
    assert (is_slow(found, "slow"), is_slow(found, "fast"), is_slow(found, "gone"), is_slow(None, "slow")) == (
        True,
        False,
        False,
        False,
    )


def a_pool(seconds: Sequence[float], running: float = 1.0, *, leaves: float | None = None, **fields: object) -> Pool:
    """One slot that is fast and one that is slow; the fast one runs for another ``running`` seconds."""
    queue = [Waiting(trial=f"t{n}", place=n, seconds=one) for n, one in enumerate(seconds)]
    job = Job(
        kinds={"": Kind()},
        shares={"a": Share(seconds=sum(seconds), queues={"": queue})},
        seats={"a": Seat(worker="slow", state="started", leaves=leaves), "b": Seat(worker="fast", state="started")},
        running={"r": Run(batch="b", worker="fast", since=100.0, seconds=running)},
        pace=Pace(speeds={"fast": 1.0, "slow": 0.25}, power=1.25),
    )
    for name, value in fields.items():
        object.__setattr__(job, name, value)
    return Pool(now=100.0, jobs={"e": job}, places={"slow": Place(), "fast": Place()}, patience=60.0)


def test_a_slow_slot_takes_the_longest_that_it_ends_in_time() -> None:
    assert choose(a_pool([10.0]), "e", "a").answer is Answer.LEAVE
    assert choose(a_pool([10.0]), "e", "a").rests == 105.0
    assert choose(a_pool([10.0, 2.0, 1.0]), "e", "a").trial == "t1"
    # The fast slot is busy for long enough.
    assert choose(a_pool([10.0], running=41.0), "e", "a").trial == "t0"
    assert choose(a_pool([10.0, 1.0]), "e", "b").trial == "t0"


def test_what_is_left_is_not_left_for_ever() -> None:
    most = PATIENT * (10 / 0.25 - 10 / 1.0)
    assert choose(a_pool([10.0], leaves=100.0 - most + 1), "e", "a").answer is Answer.LEAVE
    assert choose(a_pool([10.0], leaves=100.0 - most - 1), "e", "a").trial == "t0"


def test_nothing_is_left_to_who_cannot_take_it() -> None:
    assert choose(a_pool([10.0], unfit={"fast": {"t0"}}), "e", "a").trial == "t0"
    assert choose(a_pool([10.0], pace=Pace(speeds={"slow": 0.25}, power=0.25)), "e", "a").trial == "t0"
    assert choose(a_pool([10.0], pace=None), "e", "a").trial == "t0"


def test_unknown_durations_make_nobody_wait() -> None:
    assert choose(a_pool([0.0, 0.0], running=0.0), "e", "a").trial == "t0"


def test_shares_are_by_slots_weight_and_speed() -> None:
    offers = [Offer(worker=m.name, capacity=Capacity(slots=m.slots, cpus=9, memory_mb=9), speed=m.speed) for m in POOL]
    shares = allot(trials([1.0] * 42), offers, None).shares
    assert {worker: sum(map(len, slots)) for worker, slots in shares.items()} == {"fast": 32, "middling": 8, "slow": 2}
    weighted = [Offer(worker="a", capacity=offers[0].capacity, weight=1.0), *offers[2:]]
    shares = allot(trials([1.0] * 50), weighted, None).shares
    assert {worker: sum(map(len, slots)) for worker, slots in shares.items()} == {"a": 40, "slow": 10}


def test_long_trials_are_dealt_where_they_end_soonest() -> None:
    offers = [Offer(worker=m.name, capacity=Capacity(slots=m.slots, cpus=9, memory_mb=9), speed=m.speed) for m in POOL]
    planned = trials([10.0] * 4 + [0.5] * 40)
    shares = allot(planned, offers, None).shares
    assert [slot[0] for slot in shares["fast"]] == ["t0", "t1", "t2", "t3"]


SECONDS = st.floats(0.1, 100.0)


@settings(max_examples=150)
@given(st.lists(SECONDS, min_size=20, max_size=120))
def test_an_uneven_pool_ends_near_the_bound_where_that_can_be_reached(seconds: list[float]) -> None:
    least = bound(seconds, POOL)
    assume(workloads.foresighted(seconds, UNEVEN) <= 1.02 * least)
    assert simulate([Work(trials=trials(seconds))], POOL).makespan <= 1.10 * least


@pytest.mark.parametrize("name", workloads.WORKLOADS)
def test_the_benchmarks_workloads_end_near_the_bound_on_an_uneven_pool(name: str) -> None:
    for seed in range(40):
        seconds = workloads.WORKLOADS[name](seed)
        assert simulate([Work(trials=trials(seconds))], POOL).makespan <= 1.06 * bound(seconds, POOL)


def starts(found: Forecast) -> list[tuple[str, str, float, float]]:
    return [(span.trial, span.worker, span.start, span.end) for span in found.spans]


@given(st.lists(SECONDS, min_size=1, max_size=60), st.integers(1, 3), st.integers(1, 3))
def test_equal_speeds_are_played_as_if_there_were_none(seconds: list[float], slots: int, count: int) -> None:
    usual = [Machine(name=f"w{n}", slots=slots) for n in range(count)]
    twice = [Machine(name=f"w{n}", slots=slots, speed=2.0) for n in range(count)]
    found = starts(simulate([Work(trials=trials(seconds))], twice))
    assert [(trial, worker, start * 2, end * 2) for trial, worker, start, end in found] == starts(
        simulate([Work(trials=trials(seconds))], usual)
    )


UNKNOWN = st.tuples(st.sampled_from([0.0, 1.0, 5.0, 60.0, 3600.0]), st.floats(0.1, 600.0))
MACHINES = st.lists(
    st.builds(
        Machine,
        name=st.uuids().map(str),
        slots=st.integers(1, 4),
        speed=st.sampled_from([0.05, 0.25, 0.5, 1.0, 2.0, 8.0]),
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=150)
@given(st.lists(UNKNOWN, min_size=1, max_size=60), MACHINES, st.integers(1, 3))
def test_nothing_starves_whatever_was_expected(
    given_trials: list[tuple[float, float]], machines: list[Machine], evaluations: int
) -> None:
    works = []
    for number in range(evaluations):
        planned = trials([expected for expected, _ in given_trials], prefix=f"e{number}-")
        actual = {trial.name: seconds for trial, (_, seconds) in zip(planned, given_trials, strict=True)}
        works.append(Work(id=f"e{number}", trials=planned, seconds=actual))
    found = simulate(works, machines)
    assert found.left == {}
    assert len(found.spans) == evaluations * len(given_trials)
    assert simulate(works, machines) == found


@given(st.lists(SECONDS, min_size=1, max_size=40))
def test_no_fast_slot_idles_while_a_trial_waits(seconds: list[float]) -> None:
    found = simulate([Work(trials=trials(seconds))], POOL)
    last = max(span.start for span in found.spans)
    busy = sum(max(0.0, min(span.end, last) - span.start) for span in found.of("fast"))
    assert busy == pytest.approx(4 * last)


SLOW_AND_FAST = (Machine(name="fast", slots=1), Machine(name="slow", slots=1, speed=0.125))


@pytest.mark.parametrize("message", [0.0, 0.001])
@pytest.mark.parametrize("priorities", [(1, 0), (0, 0), (0, 1)])
def test_who_leaves_what_waits_gives_its_slot_for_long(priorities: tuple[int, int], message: float) -> None:
    """The first leaves its last trials; the second may run on the slow slot, and is not slow there."""
    first, second = priorities
    works = [
        Work(id="first", trials=trials([100.0, 90.0, 80.0]), priority=first),
        Work(id="second", trials=trials([1.0] * 300, prefix="s"), priority=second, submitted=1.0),
    ]
    found = simulate(works, SLOW_AND_FAST, message=message)
    assert found.left == {}
    # One each few seconds while something is left, and one for each trial of an equal: never one for each message.
    assert found.turns <= 2 * len(found.spans)
    assert {span.worker for span in found.spans if span.trial.startswith("s")} == {"fast", "slow"}


def test_patience_outlives_a_turn() -> None:
    """Of priority and left: the slow slot takes it at last, however much waits behind it."""
    works = [
        Work(id="first", trials=trials([10.0] * 60), priority=1),
        Work(id="second", trials=trials([5.0] * 400, prefix="s"), submitted=1.0),
    ]
    gone = {f"t{number}": 1e5 for number in range(1)}
    works[0] = Work(id="first", trials=works[0].trials, seconds=gone, priority=1)
    machines = (*SLOW_AND_FAST, Machine(name="other", slots=2, speed=0.25))
    found = simulate(works, machines, message=0.001)
    assert found.left == {}
    most = PATIENT * (10 / 0.25 - 10 / 1.0)
    work = 60 * 10 / (0.125 + 0.5)
    last = max(span.start for span in found.spans if span.evaluation == "first")
    assert last <= work + most + 100
    assert found.turns <= 2 * len(found.spans)


@settings(max_examples=60)
@given(st.lists(UNKNOWN, min_size=1, max_size=20), MACHINES, st.lists(st.integers(0, 2), min_size=2, max_size=4))
def test_no_two_send_each_other_the_slot(
    given_trials: list[tuple[float, float]], machines: list[Machine], priorities: list[int]
) -> None:
    works = []
    for number, priority in enumerate(priorities):
        planned = trials([expected for expected, _ in given_trials], prefix=f"e{number}-")
        actual = {trial.name: seconds for trial, (_, seconds) in zip(planned, given_trials, strict=True)}
        works.append(Work(id=f"e{number}", trials=planned, seconds=actual, priority=priority, submitted=3.0 * number))
    found = simulate(works, machines, message=0.001)
    assert found.left == {}
    seats = len(works) * sum(machine.slots for machine in machines)
    # Each batch is sent again a few times until it rests for a minute, then once or twice in a minute.
    assert found.turns <= 2 * len(found.spans) + seats * (12 + found.makespan / 15)
