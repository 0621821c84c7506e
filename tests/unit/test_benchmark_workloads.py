"""The benchmark's work: the same for a seed, shaped as its names say, and judged by bounds nobody can beat."""

from __future__ import annotations

from statistics import median

import pytest
from benchmarks.figures import Line, Row, moments, row
from benchmarks.rows.many_workers import waiting_idle
from benchmarks.workloads import APART, EVEN, UNEVEN, WORKLOADS, bound, foresighted, heavy, heavy_last, split
from hypothesis import given
from hypothesis import strategies as st


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_seed_says_it_all(name: str) -> None:
    assert WORKLOADS[name](3) == WORKLOADS[name](3)
    assert len(WORKLOADS[name](3)) == 40


@given(seed=st.integers(0, 1000))
def test_heavy_tails(seed: int) -> None:
    seconds = heavy(seed)
    long = [one for one in seconds if one >= 10 * median(seconds) * 0.7]
    assert len(long) == 4
    assert sorted(heavy_last(seed)) == sorted(seconds)
    assert heavy_last(seed)[-1] == max(seconds)
    # On even slots the bound is the sum by slots, and a planner that knows all comes near it.
    assert bound(seconds, EVEN) == pytest.approx(sum(seconds) / 4)
    assert 1 <= foresighted(seconds, EVEN) / bound(seconds, EVEN) + 1e-9 < 1.03


def test_bounds() -> None:
    assert bound([1.0] * 8, EVEN) == bound([1.0] * 8, APART) == 2
    assert bound([4.0, 1.0], EVEN) == 4
    # 4 x 1 + 2 x 0.5 + 1 x 0.25 slots of speed 1.
    assert bound([1.0] * 21, UNEVEN) == 4


@given(count=st.integers(0, 60), by_speed=st.booleans())
def test_a_split_gives_each_trial_once_and_by_weight(count: int, by_speed: bool) -> None:
    shares = split(count, UNEVEN, by_speed=by_speed)
    assert sorted(index for share in shares for index in share) == list(range(count))
    weights = [4, 1, 0.25] if by_speed else [4, 2, 1]
    for share, weight in zip(shares, weights, strict=True):
        assert abs(len(share) - count * weight / sum(weights)) < 2


def test_idle_while_trials_wait() -> None:
    # Two slots; the second one rests from 1 to 2, when trials still wait.
    spans = [(0.0, 2.0), (0.0, 1.0), (2.0, 4.0), (2.0, 4.0), (4.0, 9.0)]
    assert waiting_idle(spans, 2) == (0.125, 0.125)
    # What is over when the last has started counts no more.
    assert waiting_idle([(0.0, 1.0), (0.0, 9.0), (1.0, 2.0)], 2) == (0.0, 0.0)


def test_a_line_is_judged_by_its_median() -> None:
    line = Line(what="w", system="s", unit="s", values=(1.0, 9.0, 2.0), at_most=2.0)
    assert (line.value, line.met, line.reach) == (2.0, True, "≤ 2")
    assert Line(what="w", system="s", unit="s", values=(1.0,), at_least=1.2).met is False
    assert Line(what="w", system="s", unit="s", values=(1.0,)).met is None


def test_rows_are_kept_as_they_were() -> None:
    line = Line(what="w", system="s", unit="s", values=(1.0, 2.0), at_least=1.0, note="n")
    kept = Row(name="makespan", title="t", lines=(line,), facts={"slots": 4}, repeats=2, revision="r")
    assert row(kept.plain()) == kept


def test_moments() -> None:
    told = moments({"called": 10.0, "spans": [[12.0, 13.0], [11.0, 14.0]], "stored": 14.5, "returned": 16.0})
    assert (told.wait, told.makespan, told.whole) == (1.0, 3.5, 6.0)
