"""The policy played through: nothing starves, needs and slots are never exceeded, priorities hold, always the same."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aeo.cli.trial_rows import drawn
from aeo.core import choose as choosing
from aeo.core import simulate as simulation
from aeo.core.bounds import bound, bound_of
from aeo.core.model import Capacity, Needs, PlannedTrial
from aeo.core.pool import Limit
from aeo.core.simulate import Forecast, Machine, Span, Work, simulate

SECONDS = st.floats(0.1, 1000.0)
SLOTS = st.integers(1, 5)
NEEDS = st.builds(
    Needs, cpus=st.sampled_from([0.0, 0.5, 1.0, 3.0]), memory_mb=st.sampled_from([0, 512, 4096]), disk_mb=st.just(0)
)


def trials(
    seconds: Sequence[float], needs: Sequence[Needs] = (Needs(),), prefix: str = "t", model: str = ""
) -> list[PlannedTrial]:
    return [
        PlannedTrial(
            name=f"{prefix}{number}",
            task=f"task-{number}",
            estimated_seconds=one,
            needs=needs[number % len(needs)],
            labels={"model": model} if model else {},
        )
        for number, one in enumerate(seconds)
    ]


@st.composite
def pools(draw: st.DrawFn, most: int = 4) -> list[Machine]:
    return [
        Machine(
            name=f"w{number}",
            slots=draw(SLOTS),
            speed=draw(st.sampled_from([0.25, 0.5, 1.0, 2.0])),
            capacity=Capacity(
                slots=5, cpus=draw(st.sampled_from([1.0, 4.0])), memory_mb=draw(st.sampled_from([1024, 8192]))
            ),
        )
        for number in range(draw(st.integers(1, most)))
    ]


def pool_with_slots(pool: list[Machine]) -> list[Machine]:
    """Capacity and slots of a machine say the same."""
    return [
        Machine(
            name=one.name,
            slots=one.slots,
            speed=one.speed,
            capacity=Capacity(slots=one.slots, cpus=one.holds.cpus, memory_mb=one.holds.memory_mb),
        )
        for one in pool
    ]


POOLS = pools().map(pool_with_slots)


@st.composite
def works(draw: st.DrawFn) -> list[Work]:
    found = []
    for number in range(draw(st.integers(1, 3))):
        planned = trials(
            draw(st.lists(SECONDS, min_size=1, max_size=14)),
            draw(st.lists(NEEDS, min_size=1, max_size=4)),
            f"e{number}-",
        )
        found.append(
            Work(
                id=f"e{number}",
                trials=planned,
                seconds={trial.name: draw(SECONDS) for trial in planned},
                limit=draw(st.sampled_from([None, 1, 2])),
                priority=draw(st.integers(0, 1)),
                submitted=draw(st.sampled_from([0.0, 5.0, 300.0])),
            )
        )
    return found


def at_once(spans: Sequence[Span]) -> list[list[Span]]:
    """What ran together, at each start."""
    return [[other for other in spans if other.start <= span.start < other.end] for span in spans]


def check(found: Forecast, given_works: Sequence[Work]) -> None:
    planned = {(work.id, trial.name): trial for work in given_works for trial in work.trials}
    ran = [(span.evaluation, span.trial) for span in found.spans]
    assert len(ran) == len(set(ran))
    for machine in found.machines:
        for together in at_once(found.of(machine.name)):
            needs = [planned[(span.evaluation, span.trial)].needs for span in together]
            assert len(together) <= machine.slots
            assert sum(need.cpus for need in needs) <= machine.holds.cpus + 1e-9
            assert sum(need.memory_mb for need in needs) <= machine.holds.memory_mb


@settings(max_examples=120)
@given(works(), POOLS, st.sampled_from([0.0, 10.0, 1e9]))
def test_nothing_starves_and_no_need_is_exceeded(given_works: list[Work], pool: list[Machine], patience: float) -> None:
    found = simulate(given_works, pool, patience=patience)
    check(found, given_works)
    for work in given_works:
        nowhere = {t.name for t in work.trials if all(t.needs.fit(machine.holds) < 1 for machine in pool)}
        assert set(found.left.get(work.id, ())) == nowhere
        assert all(span.start >= work.submitted for span in found.spans if span.evaluation == work.id)


@given(works(), POOLS)
def test_the_same_comes_of_the_same(given_works: list[Work], pool: list[Machine]) -> None:
    assert simulate(given_works, pool) == simulate(given_works, pool)


@given(st.lists(SECONDS, min_size=1, max_size=60), SLOTS, st.integers(1, 4), st.randoms())
def test_no_slot_idles_while_a_trial_waits(seconds: list[float], slots: int, count: int, random: object) -> None:
    """Graham's bound for lists, which holds for whatever order the trials have."""
    pool = [Machine(name=f"w{number}", slots=slots) for number in range(count)]
    expected = trials([1.0] * len(seconds))
    found = simulate([Work(trials=expected, seconds={t.name: s for t, s in zip(expected, seconds, strict=True)})], pool)
    whole = slots * count
    assert len(found.spans) == len(seconds)
    least = bound(seconds, pool)
    assert least <= found.makespan * (1 + 1e-9)
    assert found.makespan <= (math.fsum(seconds) - max(seconds)) / whole + max(seconds) + 1e-6
    assert 0 < found.utilisation <= 1 + 1e-9


@given(st.lists(SECONDS, min_size=1, max_size=60), SLOTS)
def test_the_longest_first_ends_within_a_third_of_the_best(seconds: list[float], slots: int) -> None:
    """Graham 1969: 4/3 - 1/3m of the best schedule, where what is expected is what comes."""
    pool = [Machine(name="w", slots=slots)]
    makespan = simulate([Work(trials=trials(seconds))], pool).makespan
    longest = sorted(seconds, reverse=True)
    # Of the m + 1 longest two share a slot in every schedule.
    best = max(bound(seconds, pool), sum(longest[slots - 1 : slots + 1]) if len(seconds) > slots else 0.0)
    assert makespan <= best * (4 / 3 - 1 / (3 * slots)) * (1 + 1e-9) or len(seconds) > 2 * slots
    assert makespan <= math.fsum(seconds) / slots + longest[0]


@given(
    st.lists(SECONDS, min_size=1, max_size=20),
    st.lists(SECONDS, min_size=1, max_size=20),
    SLOTS,
    st.integers(1, 3),
    st.floats(0.0, 500.0),
)
def test_a_higher_priority_goes_first(
    low: list[float], high: list[float], slots: int, count: int, submitted: float
) -> None:
    pool = [Machine(name=f"w{number}", slots=slots) for number in range(count)]
    found = simulate(
        [
            Work(id="low", trials=trials(low, prefix="l")),
            Work(id="high", trials=trials(high, prefix="h"), priority=1, submitted=submitted),
        ],
        pool,
    )
    last = max(span.start for span in found.spans if span.evaluation == "high")
    between = [span for span in found.spans if span.evaluation == "low" and submitted < span.start < last]
    # A worker's slots are the higher one's from the end of the trials that ran: it has fewer batches than slots only
    # where it has fewer trials.
    if len(high) >= slots * count:
        assert between == []
    assert found.left == {}


@given(st.lists(st.floats(2.0, 100.0), min_size=30, max_size=60), SLOTS, st.integers(1, 3), st.floats(0.0, 50.0))
def test_a_small_evaluation_starts_within_one_trials_time(
    large: list[float], slots: int, count: int, submitted: float
) -> None:
    pool = [Machine(name=f"w{number}", slots=slots) for number in range(count)]
    found = simulate(
        [
            Work(id="large", trials=trials(large, prefix="l")),
            Work(id="small", trials=trials([1.0, 1.0], prefix="s"), submitted=submitted),
        ],
        pool,
    )
    first = min(span.start for span in found.spans if span.evaluation == "small")
    assert first <= submitted + max(large)


def test_a_heavy_trial_gets_its_room() -> None:
    light, heavy = Needs(cpus=1), Needs(cpus=4)
    seconds = [5.0 + number / 100 for number in range(200)]
    planned = [*trials(seconds, [light]), *trials([1.0], [heavy], "heavy")]
    pool = [Machine(name="w", slots=4, capacity=Capacity(slots=4, cpus=4, memory_mb=1))]
    work = Work(trials=planned)
    waits = simulate([work], pool, patience=20.0)
    start = next(span.start for span in waits.spans if span.trial == "heavy0")
    # The last in its share: it is passed over from the moment it would be its turn.
    assert start < waits.makespan
    check(waits, [work])


def test_a_heavy_trial_of_another_evaluation_gets_its_room() -> None:
    light, heavy = Needs(cpus=1), Needs(cpus=4)
    seconds = [5.0 + number / 100 for number in range(200)]
    pool = [Machine(name="w", slots=4, capacity=Capacity(slots=4, cpus=4, memory_mb=1))]
    other = Work(id="heavy", trials=trials([1.0], [heavy], "heavy"), submitted=1.0)
    both = [Work(id="light", trials=trials(seconds, [light])), other]
    found = simulate(both, pool, patience=20.0)
    check(found, both)
    start = next(span.start for span in found.spans if span.evaluation == "heavy")
    assert start <= 1.0 + 20.0 + 4 * max(seconds)


def test_evaluations_that_have_not_begun_do_not_give_way_to_each_other_for_ever() -> None:
    found = simulate(
        [Work(id=f"e{number}", trials=trials([1.0, 1.0], prefix=f"e{number}-")) for number in range(3)],
        [Machine(name="w", slots=1)],
    )
    assert [span.evaluation for span in found.spans][:3] == ["e0", "e1", "e2"]
    assert found.makespan == pytest.approx(6.0)


def test_caps_of_a_model_hold_over_the_pool() -> None:
    pool = [Machine(name="a", slots=4), Machine(name="b", slots=4)]
    planned = trials([10.0] * 20, model="openai/gpt")
    found = simulate([Work(trials=planned)], pool, limits={"openai": Limit(trials=3)})
    assert max(map(len, at_once(found.spans))) == 3
    assert found.makespan == pytest.approx(70.0)
    paced = simulate([Work(trials=planned)], pool, limits={"openai/gpt": Limit(per_minute=6)})
    starts = sorted(span.start for span in paced.spans)
    assert [after - before for before, after in pairwise(starts)] == pytest.approx([10.0] * 19)


@settings(max_examples=60)
@given(
    st.lists(st.floats(0.1, 30.0), min_size=1, max_size=12),
    st.floats(1.0, 600.0),
    st.sampled_from([0, 1, 2]),
    SLOTS,
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_a_limit_is_never_beaten(seconds: list[float], rate: float, cap: int, slots: int, speed: float) -> None:
    """Starts are evenly spread, as the store spreads them: the last is (n - 1) intervals after the first."""
    pool = [Machine(name="a", slots=slots, speed=speed), Machine(name="b", slots=2, speed=speed)]
    limits = {"p": Limit(trials=cap, per_minute=rate)}
    work = Work(trials=[*trials(seconds, model="p/m"), *trials([1.0, 2.0], prefix="free", model="q/m")])
    found = simulate([work], pool, limits=limits)
    assert found.left == {}
    held = [span for span in found.spans if not span.trial.startswith("free")]
    least = (len(seconds) - 1) * 60 / rate + min(seconds) / speed
    assert max(span.end for span in held) >= least * (1 - 1e-9)
    assert not cap or max(map(len, at_once(held))) <= cap
    assert least <= bound_of(work, pool, limits) * (1 + 1e-9) <= found.makespan * (1 + 1e-6)
    # Nothing else holds them back.
    if not cap and slots + 2 >= len(seconds) + 2:
        assert found.makespan <= (len(seconds) - 1) * 60 / rate + max([*seconds, 2.0]) * 2 / speed + 1e-6


def test_three_trials_at_thirty_a_minute_take_five_seconds() -> None:
    work, limits = Work(trials=trials([1.0] * 3, model="p/m")), {"p": Limit(per_minute=30)}
    pool = [Machine(name="w", slots=3)]
    assert simulate([work], pool, limits=limits).makespan == pytest.approx(5.0)
    assert bound_of(work, pool, limits) == pytest.approx(5.0)
    assert bound_of(work, pool, limits, without={"t0"}) == pytest.approx(3.0)
    assert bound_of(work, pool, {}) == bound_of(work, [], {}) + 1.0


def counted(monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> list[object]:
    """Calls of a function, which still does what it does."""
    real, calls = getattr(owner, name), []

    def call(*args: object) -> object:
        calls.append(args)
        return real(*args)

    monkeypatch.setattr(owner, name, call)
    return calls


def test_who_is_held_by_a_limit_is_not_asked_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = counted(monkeypatch, simulation, "choose")
    pool = [Machine(name=f"w{number}", slots=10) for number in range(10)]
    found = simulate([Work(trials=trials([1.0] * 100, model="p/m"))], pool, limits={"p": Limit(trials=1)})
    assert found.makespan == pytest.approx(100.0)
    # At the start of each trial, and at its end.
    assert len(calls) <= 2 * 100


def test_a_limit_is_looked_at_once_for_all_shares(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, asks = counted(monkeypatch, choosing._View, "_has_place"), counted(monkeypatch, simulation, "choose")
    # Of two evaluations, whoever waits is asked.
    both = [Work(id=id, trials=trials([1.0] * 20, prefix=id, model="p/m")) for id in ("a", "b")]
    simulate(both, [Machine(name="w", slots=20)], limits={"p": Limit(trials=1)})
    assert 0 < len(looks) <= 2 * len(asks)


@settings(max_examples=60)
@given(works(), POOLS, st.integers(0, 2), st.sampled_from([0.0, 6.0, 60.0]), st.integers(0, 1))
def test_who_is_not_asked_would_have_been_told_to_wait(
    given_works: list[Work], pool: list[Machine], cap: int, rate: float, free: int
) -> None:
    """Those that a limit holds are passed over to save time alone."""
    models = ["p/m", "q/m" if free else "p/n"]
    planned = [
        replace(trial, labels={"model": models[at % 2]})
        for work in given_works[:1]
        for at, trial in enumerate(work.trials)
    ]
    work, limits = replace(given_works[0], trials=planned), {"p": Limit(trials=cap, per_minute=rate)}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulation._Play, "_is_held", lambda _: False)
        asked = simulate([work], pool, limits=limits)
    assert simulate([work], pool, limits=limits) == asked


def test_a_long_leave_is_played_through_in_no_time() -> None:
    pool = [Machine(name="fast", slots=1), Machine(name="slow", slots=8, speed=0.001)]
    found = simulate([Work(trials=trials([1e9, 1e9, 5.0]))], pool)
    assert found.left == {}


def test_speeds_count() -> None:
    pool = [Machine(name="fast", slots=4), Machine(name="middling", slots=2, speed=0.5)]
    found = simulate([Work(trials=trials([10.0] * 50))], pool)
    assert bound([10.0] * 50, pool) == pytest.approx(100.0)
    assert found.makespan == pytest.approx(100.0)
    assert len(found.of("fast")) == 40


def test_what_a_slot_does_beside_costs_time() -> None:
    pool = [Machine(name="w", slots=1)]
    assert simulate([Work(trials=trials([1.0] * 10))], pool, overhead=0.5).makespan == pytest.approx(15.0)


def test_a_drawn_workload_is_of_its_seed() -> None:
    first = drawn(60.0, 1.0, 2001, 7)
    assert first == drawn(60.0, 1.0, 2001, 7)
    assert first != drawn(60.0, 1.0, 2001, 8)
    assert median(first) == pytest.approx(60.0, rel=0.1)
    assert drawn(5.0, 0.0, 3, 1) == [5.0] * 3


def test_nothing_to_do_and_nobody_to_do_it() -> None:
    assert simulate([], [Machine(name="w", slots=1)]).makespan == 0.0
    found = simulate([Work(trials=trials([1.0]))], [])
    assert (found.makespan, found.utilisation, found.left) == (0.0, 0.0, {"evaluation": ("t0",)})
    assert bound([1.0], []) == 0.0
