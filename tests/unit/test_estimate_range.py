"""The time to the end with its range."""

from __future__ import annotations

import random

import pytest

from aeo.core import estimate
from aeo.core.pool import Limit


def test_too_little_is_known_or_nothing_is_left() -> None:
    assert estimate.between([10.0], [], slots=1, finished=[(1.0, 1.0)] * (estimate.ENOUGH - 1)) is None
    assert estimate.between([], [], slots=1, finished=[(1.0, 1.0)] * 10) is None


def test_equal_trials_leave_no_doubt() -> None:
    found = estimate.between([10.0] * 4, [(10.0, 5.0)], slots=1, finished=[(20.0, 10.0)] * 5)
    assert found == estimate.Range(low=95.0, likely=95.0, high=95.0)


def test_what_a_limit_lets_start_is_waited_for() -> None:
    finished = [(20.0, 10.0)] * 5

    def likely(held: list[estimate.Held]) -> float:
        found = estimate.between([10.0] * 4, [], slots=4, finished=finished, held=held)
        assert found is not None
        return found.likely

    assert likely([]) == pytest.approx(20.0)
    assert likely([estimate.Held(waiting=4, limit=Limit(per_minute=6))]) == pytest.approx(50.0)
    assert likely([estimate.Held(waiting=4, limit=Limit(trials=1))]) == pytest.approx(80.0)
    assert likely([estimate.Held(waiting=0, limit=Limit(trials=1, per_minute=0.1))]) == pytest.approx(20.0)


def test_a_limit_of_the_short_ones_is_not_taken_for_one_of_the_long() -> None:
    waiting, finished = [1.0] * 100 + [1000.0] * 100, [(10.0, 10.0)] * 5
    held = [estimate.Held(waiting=100, limit=Limit(trials=1))]
    found = estimate.between(waiting, [], slots=100, finished=finished, held=held)
    assert found is not None
    assert found.likely == pytest.approx(1001.0)


def test_more_finished_trials_narrow_the_range() -> None:
    def width(count: int) -> float:
        finished = [(seconds, 10.0) for seconds in (8.0, 9.0, 10.0, 11.0, 12.0) * count]
        found = estimate.between([10.0] * 400, [], slots=4, finished=finished)
        assert found is not None
        assert found.low < found.likely < found.high
        return found.high - found.low

    assert width(1) > 2 * width(8)


def test_one_wedged_trial_does_not_count() -> None:
    usual = [(9.0, 10.0), (10.0, 10.0), (11.0, 10.0)] * 4
    found = estimate.between([10.0] * 20, [], slots=2, finished=[*usual, (100_000.0, 10.0)])
    assert found is not None
    assert found.high < 150


def test_low_is_never_below_a_second() -> None:
    found = estimate.between([0.01], [], slots=1, finished=[(0.0, 1.0), (5.0, 1.0), (20.0, 1.0)])
    assert found is not None
    assert found.low == 1.0


@pytest.mark.parametrize("known", [8, 40])
def test_four_of_five_ends_lie_within(known: int) -> None:
    chance = random.Random(7)
    within = 0
    for _ in range(300):
        finished = [(chance.gauss(10, 2), 10.0) for _ in range(known)]
        left = sum(chance.gauss(10, 2) for _ in range(60))
        found = estimate.between([10.0] * 60, [], slots=1, finished=finished)
        assert found is not None
        within += found.low <= left <= found.high
    assert 0.65 < within / 300 < 0.92
