"""Allotment: every trial exactly once, shares within one of exact, long trials first, nothing where it cannot fit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.allot import Offer, allot, concurrency, largest_remainder, room
from aeo.core.model import Capacity, Needs, PlannedTrial

BIG = Capacity(slots=64, cpus=1e6, memory_mb=10**9)


def planned(count: int, seconds: list[float] | None = None) -> list[PlannedTrial]:
    return [
        PlannedTrial(name=f"t{i}", task=f"t{i}", estimated_seconds=(seconds or [60.0])[i % len(seconds or [0])])
        for i in range(count)
    ]


weights = st.lists(st.floats(0.1, 50), min_size=1, max_size=8)
durations = st.lists(st.floats(0, 5000), min_size=1, max_size=30)


@given(count=st.integers(0, 200), values=weights)
def test_largest_remainder_is_within_one_of_exact_and_adds_up(count: int, values: list[float]) -> None:
    shares = largest_remainder(count, {str(i): w for i, w in enumerate(values)})
    assert sum(shares.values()) == count
    for i, weight in enumerate(values):
        assert abs(shares[str(i)] - count * weight / sum(values)) < 1


@given(count=st.integers(1, 120), values=weights, seconds=durations)
def test_every_trial_once_shares_within_one_longest_first(
    count: int, values: list[float], seconds: list[float]
) -> None:
    trials = planned(count, seconds)
    offers = [Offer(worker=f"w{i}", capacity=BIG, weight=w) for i, w in enumerate(values)]
    result = allot(trials, offers, None)
    names = [name for batches in result.shares.values() for batch in batches for name in batch]
    assert sorted(names) == sorted(trial.name for trial in trials)
    estimate = {trial.name: trial.estimated_seconds for trial in trials}
    for i, weight in enumerate(values):
        batches = result.shares[f"w{i}"]
        sizes = [len(batch) for batch in batches]
        assert abs(sum(sizes) - count * weight / sum(values)) < 1
        assert max(sizes) - min(sizes) <= 1
        for batch in batches:
            assert [estimate[n] for n in batch] == sorted((estimate[n] for n in batch), reverse=True)


needs = st.builds(Needs, cpus=st.sampled_from([0, 1, 2, 4, 8]), memory_mb=st.sampled_from([0, 512, 4096, 16384]))
capacities = st.builds(
    Capacity,
    slots=st.integers(1, 8),
    cpus=st.sampled_from([1, 2, 4, 8]),
    memory_mb=st.sampled_from([1024, 8192, 32768]),
)


@given(
    wants=st.lists(needs, min_size=1, max_size=60),
    pool=st.lists(capacities, min_size=1, max_size=5),
    limit=st.one_of(st.none(), st.integers(1, 8)),
)
def test_nobody_gets_a_trial_it_cannot_hold(wants: list[Needs], pool: list[Capacity], limit: int | None) -> None:
    trials = [PlannedTrial(name=f"t{i}", task="t", needs=need) for i, need in enumerate(wants)]
    offers = [Offer(worker=f"w{i}", capacity=c) for i, c in enumerate(pool)]
    result = allot(trials, offers, limit)
    need = {trial.name: trial.needs for trial in trials}
    given_out: list[str] = []
    for i, capacity in enumerate(pool):
        batches = result.shares.get(f"w{i}", ())
        assert len(batches) <= capacity.slots
        assert limit is None or len(batches) <= limit
        for name in (name for batch in batches for name in batch):
            assert need[name].fit(capacity) >= 1
            given_out.append(name)
    assert len(given_out) == len(set(given_out))
    assert set(given_out) | set(result.homeless) == set(need)
    for name in result.homeless:
        assert all(need[name].fit(capacity) < 1 for capacity in pool)


def test_equal_input_gives_equal_output() -> None:
    trials = planned(50, [5.0, 1.0, 9.0])
    offers = [Offer(worker=w, capacity=BIG) for w in "abc"]
    assert allot(trials, offers, 2) == allot(trials, offers, 2)


def test_default_concurrency_gives_equal_shares_and_all_gives_shares_by_slots() -> None:
    offers = [
        Offer(worker="small", capacity=Capacity(slots=1, cpus=64, memory_mb=1 << 20)),
        Offer(worker="large", capacity=Capacity(slots=3, cpus=64, memory_mb=1 << 20)),
    ]
    one = allot(planned(40), offers, 1)
    assert {w: sum(map(len, b)) for w, b in one.shares.items()} == {"small": 20, "large": 20}
    every = allot(planned(40), offers, None)
    assert {w: [len(x) for x in b] for w, b in every.shares.items()} == {"small": [10], "large": [10, 10, 10]}


def test_memory_bounds_concurrency() -> None:
    trials = [PlannedTrial(name=f"t{i}", task="t", needs=Needs(cpus=1, memory_mb=4096)) for i in range(20)]
    assert concurrency(trials, Capacity(slots=8, cpus=16, memory_mb=16384), None) == 4
    assert concurrency(trials, Capacity(slots=8, cpus=2, memory_mb=1 << 20), None) == 2
    assert concurrency(trials, Capacity(slots=8, cpus=16, memory_mb=1 << 20), 3) == 3


def test_long_trials_are_spread_over_workers() -> None:
    trials = planned(20, [1000.0] * 4 + [1.0] * 16)
    result = allot(trials, [Offer(worker=w, capacity=BIG, weight=1) for w in "abcd"], 1)
    for batches in result.shares.values():
        assert sum(name in {"t0", "t1", "t2", "t3"} for name in batches[0]) == 1
        assert batches[0][0] in {"t0", "t1", "t2", "t3"}


def test_weight_zero_gets_no_share() -> None:
    result = allot(planned(5), [Offer(worker="a", capacity=BIG, weight=0), Offer(worker="b", capacity=BIG)], 1)
    assert list(result.shares) == ["b"]
    assert result.homeless == ()


seats = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 9), max_size=5)


@pytest.mark.parametrize(
    ("slots", "taken", "priorities", "more"),
    [
        (4, {}, {"a": 0}, 4),
        (4, {"b": 4}, {"a": 5, "b": 0}, 4),
        (4, {"b": 4}, {"a": 0, "b": 5}, 0),
        (4, {"b": 1}, {"a": 0, "b": 5}, 3),
        (4, {"b": 4}, {"a": 0, "b": 0}, 2),
        (3, {"b": 3}, {"a": 0, "b": 0}, 2),
        (1, {"b": 1}, {"a": 0, "b": 0}, 1),
        (1, {"a": 1, "b": 1}, {"a": 0, "b": 0}, 0),
        (4, {"a": 4, "b": 4}, {"a": 0, "b": 0}, 0),
        (4, {"b": 2, "c": 2, "d": 4}, {"a": 0, "b": 5, "c": 0, "d": -1}, 1),
        (2, {"gone": 2}, {"a": 0}, 1),
    ],
)
def test_room_beside_others(slots: int, taken: dict[str, int], priorities: dict[str, int], more: int) -> None:
    assert room(slots, "a", taken, priorities) == more


@given(slots=st.integers(1, 12), taken=seats, ranks=st.lists(st.integers(-1, 1), min_size=5, max_size=5))
def test_room_is_there_where_an_evaluation_has_a_right_to_a_slot(
    slots: int, taken: dict[str, int], ranks: list[int]
) -> None:
    priorities = dict(zip("abcde", ranks, strict=True))
    ahead = sum(count for id, count in taken.items() if priorities[id] > priorities["a"])
    more = room(slots, "a", taken, priorities)
    assert 0 <= more <= slots
    if ahead >= slots:
        assert more == 0
    elif "a" not in taken:
        assert more > 0
    without = {id: count for id, count in taken.items() if priorities[id] >= priorities["a"]}
    assert more == room(slots, "a", without, priorities)
