"""Means and their intervals: what must hold for any rewards, and how often the truth lies within."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.statistics import Interval, Z, cluster, interval, student

shares = st.floats(0, 1, allow_subnormal=False)
passes = st.sampled_from([0.0, 1.0])
any_reward = st.floats(-1e6, 1e6, allow_subnormal=False)


def tasks_of(values: st.SearchStrategy[float]) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(values, min_size=1, max_size=8), min_size=1, max_size=30)


def of(tasks: Sequence[Sequence[float]]) -> Interval:
    found = interval(map(cluster, tasks))
    assert found is not None
    return found


def wilson(passed: int, count: int) -> tuple[float, float]:
    """As Wilson wrote it down, 1927."""
    share = passed / count
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return middle - half, middle + half


def width(known: Interval) -> float:
    assert known.low is not None
    assert known.high is not None
    return known.high - known.low


def test_no_trials_have_no_mean() -> None:
    assert interval([]) is None


@given(tasks_of(shares))
def test_the_interval_holds_the_mean_and_stays_within_zero_and_one(tasks: list[list[float]]) -> None:
    known = of(tasks)
    assert known.mean == pytest.approx(fmean(value for task in tasks for value in task), abs=1e-9)
    assert known.low is not None
    assert known.high is not None
    assert 0 <= known.low <= known.mean <= known.high <= 1
    # Nothing is ever quite sure.
    assert known.high > known.low


@given(tasks_of(any_reward))
def test_rewards_beyond_zero_and_one_have_an_interval_around_their_mean(tasks: list[list[float]]) -> None:
    known = of(tasks)
    everything = [value for task in tasks for value in task]
    assert min(everything) <= known.mean <= max(everything)
    if known.low is None or known.high is None:
        assert len(tasks) == 1
        return
    assert known.low <= known.mean <= known.high
    assert math.isfinite(known.low)
    assert math.isfinite(known.high)


@given(st.lists(passes, min_size=1, max_size=200))
def test_one_trial_of_each_task_is_wilsons_interval(values: list[float]) -> None:
    known = of([[value] for value in values])
    low, high = wilson(int(sum(values)), len(values))
    assert known.low == pytest.approx(max(0.0, low), abs=1e-9)
    assert known.high == pytest.approx(min(1.0, high), abs=1e-9)


@given(tasks_of(shares), st.randoms(use_true_random=False))
def test_the_order_of_tasks_and_trials_does_not_matter(tasks: list[list[float]], chance: random.Random) -> None:
    shuffled = [chance.sample(task, len(task)) for task in tasks]
    chance.shuffle(shuffled)
    first, second = of(tasks), of(shuffled)
    assert second.mean == pytest.approx(first.mean, abs=1e-9)
    assert second.low == pytest.approx(first.low, abs=1e-6)
    assert second.high == pytest.approx(first.high, abs=1e-6)


@given(tasks_of(passes))
def test_failed_and_passed_are_mirrored(tasks: list[list[float]]) -> None:
    known, other = of(tasks), of([[1 - value for value in task] for task in tasks])
    assert known.low is not None
    assert known.high is not None
    assert other.mean == pytest.approx(1 - known.mean, abs=1e-9)
    assert other.low == pytest.approx(1 - known.high, abs=1e-6)
    assert other.high == pytest.approx(1 - known.low, abs=1e-6)


@given(st.lists(passes, min_size=2, max_size=30), st.integers(2, 10))
def test_repeating_what_always_ends_the_same_teaches_nothing(values: list[float], attempts: int) -> None:
    """Trials of a task that are all alike count as one."""
    once, often = of([[value] for value in values]), of([[value] * attempts for value in values])
    assert often.mean == pytest.approx(once.mean)
    assert width(often) >= width(once) - 1e-9


@pytest.mark.parametrize("count", [1, 2, 5, 20, 89, 500])
@pytest.mark.parametrize("attempts", [1, 5])
@pytest.mark.parametrize("value", [0.0, 1.0])
def test_none_and_all_passed_have_honest_intervals(count: int, attempts: int, value: float) -> None:
    known = of([[value] * attempts for _ in range(count)])
    # The exact chance of seeing this is 2.5 % at 1 - 0.025^(1/n); Wilson's is near it.
    exact = 1 - 0.025 ** (1 / count)
    assert known.mean == value
    assert (known.low, known.high)[int(value)] == value
    assert width(known) == pytest.approx(exact, rel=0.35)


def test_more_tasks_are_surer_and_more_attempts_too() -> None:
    half = [[0.0, 1.0]]
    widths = [width(of(half * count)) for count in (2, 5, 20, 100)]
    assert widths == sorted(widths, reverse=True)
    mixed = [width(of([[0.0, 1.0] * attempts for _ in range(20)])) for attempts in (1, 2, 5)]
    assert mixed == sorted(mixed, reverse=True)


def test_tasks_that_are_alike_within_are_less_sure_than_trials_that_are_not() -> None:
    alike = of([[1.0] * 5, [0.0] * 5] * 10)
    mixed = of([[1.0, 0.0, 1.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0, 0.0]] * 10)
    assert alike.mean == mixed.mean == 0.5
    assert width(alike) > 1.8 * width(mixed)


def test_the_variance_is_that_of_the_paper() -> None:
    """The formula of Miller 2024 as it stands there, double sum and all, through the usual interval."""
    tasks = [[2.0, 4.0, 3.0], [0.0, 1.0], [5.0], [-1.0, 0.5, 0.0, 2.0]]
    values = [value for task in tasks for value in task]
    mean, count = fmean(values), len(values)
    pairs = sum((a - mean) * (b - mean) for task in tasks for a in task for b in task)
    half = student(3) * math.sqrt(pairs) / count * math.sqrt(4 / 3)
    known = of(tasks)
    assert known.low == pytest.approx(mean - half)
    assert known.high == pytest.approx(mean + half)


@pytest.mark.parametrize(
    ("freedom", "table"),
    [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (9, 2.2622), (30, 2.0423), (1000, 1.9623)],
)
def test_students_quantiles_are_those_of_the_tables(freedom: int, table: float) -> None:
    assert student(freedom) == pytest.approx(table, rel=0.002)


@pytest.mark.parametrize(("tasks", "attempts"), [(10, 1), (10, 5), (30, 5), (89, 3)])
@pytest.mark.parametrize("alike", [(0.3, 0.3), (2.0, 2.0), (4.0, 1.0)])
def test_the_truth_lies_within_nearly_as_often_as_said(tasks: int, attempts: int, alike: tuple[float, float]) -> None:
    """Tasks of any difficulty (beta), each tried a few times: of 400 evaluations, 95 % are said to hold the truth."""
    chance = random.Random(5)
    truth, within = alike[0] / sum(alike), 0
    for _ in range(400):
        difficulties = [chance.betavariate(*alike) for _ in range(tasks)]
        known = of([[float(chance.random() < one) for _ in range(attempts)] for one in difficulties])
        assert known.low is not None
        assert known.high is not None
        within += known.low <= truth <= known.high
    assert within / 400 >= 0.91
