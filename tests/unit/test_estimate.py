"""Expected durations and the time to the end, for every input."""

from __future__ import annotations

from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core import estimate

SECONDS = st.floats(min_value=0.0, max_value=1e6)
PLANNED = st.floats(min_value=0.1, max_value=1e6)
FACTOR = st.floats(min_value=0.0, max_value=1e3)
RUNNING = st.lists(st.tuples(PLANNED, SECONDS), max_size=8)
WAITING = st.lists(PLANNED, max_size=20)


@given(PLANNED, st.lists(SECONDS, max_size=9))
def test_the_past_beats_the_plan(planned: float, past: list[float]) -> None:
    assert estimate.seconds(planned, past) == (median(past) if past else planned)


@given(st.lists(st.tuples(SECONDS, PLANNED), max_size=estimate.ENOUGH - 1))
def test_few_finished_trials_tell_nothing(finished: list[tuple[float, float]]) -> None:
    assert estimate.factor(finished) is None
    # One without an estimate tells nothing either.
    assert estimate.factor([*finished, (5.0, 0.0)]) is None


@given(st.lists(PLANNED, min_size=estimate.ENOUGH, max_size=20), FACTOR)
def test_estimates_that_are_off_alike_are_put_right(planned: list[float], off: float) -> None:
    assert estimate.factor([(seconds * off, seconds) for seconds in planned]) == pytest.approx(off)


@given(st.lists(PLANNED, min_size=estimate.ENOUGH, max_size=20), SECONDS)
def test_one_wedged_trial_does_not_count(planned: list[float], wedged: float) -> None:
    assert estimate.factor([*((seconds, seconds) for seconds in planned), (wedged, 1.0)]) == pytest.approx(1.0)


@given(WAITING, RUNNING, st.integers(0, 8), FACTOR)
def test_the_time_left_is_bounded(
    waiting: list[float], running: list[tuple[float, float]], slots: int, factor: float
) -> None:
    found = estimate.remaining(waiting, running, slots=slots, factor=factor)
    if not waiting and not running:
        assert found is None
        return
    assert found is not None
    assert found >= 1.0
    left = [max(0.0, planned * factor - so_far) for planned, so_far in running] + [one * factor for one in waiting]
    # No trial ends before itself, and one slot alone would do it in the sum.
    assert max(left) - 1e-6 <= found <= max(1.0, sum(left)) * (1 + 1e-9)


@given(WAITING, RUNNING, st.integers(1, 8), FACTOR)
def test_a_further_slot_never_takes_longer(
    waiting: list[float], running: list[tuple[float, float]], slots: int, factor: float
) -> None:
    fewer = estimate.remaining(waiting, running, slots=slots, factor=factor)
    more = estimate.remaining(waiting, running, slots=slots + 1, factor=factor)
    assert (fewer is None and more is None) or (fewer is not None and more is not None and more <= fewer)


def test_a_demo_of_ten_seconds_is_not_said_to_take_twenty_minutes() -> None:
    """Estimates from time-outs: ten trials of 380 s that take 2 s each."""
    factor = estimate.factor([(2.0, 380.0), (2.1, 380.0), (1.9, 380.0)])
    assert factor is not None
    left = estimate.remaining([380.0] * 5, [(380.0, 1.0), (380.0, 1.5)], slots=3, factor=factor)
    assert left == pytest.approx((5 * 2.0 + 1.0 + 0.5) / 3)
