"""Limits while a pool is played through: starts are spread, and one that comes late does not put the next ones off."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.gates import LATE_SECONDS, Gates
from aeo.core.pool import Limit


def test_what_comes_late_is_made_up_for() -> None:
    gates = Gates({"p": Limit(per_minute=30)})
    gates.start("p/m", 100.0)
    assert gates.paced == {"p": 102.0}
    gates.start("p/m", 102.5)
    assert gates.paced == {"p": 104.0}
    gates.start("p/m", 1000.0)
    assert gates.paced == {"p": pytest.approx(1000.0 - LATE_SECONDS + 2.0)}
    assert Gates({"p": Limit(trials=1)}).opens(0.0) is None


@given(rate=st.floats(1, 1000), waits=st.lists(st.floats(0, 3), min_size=1, max_size=50))
def test_no_more_start_than_the_rate_allows(rate: float, waits: list[float]) -> None:
    gates, now, starts = Gates({"p": Limit(per_minute=rate)}), 10.0, []
    for wait in waits:
        now = max(now, gates.paced.get("p", now)) + wait
        assert not gates.shut(["p/m"], now)
        gates.start("p/m", now)
        starts.append(now)
    for number, start in enumerate(starts):
        assert start >= starts[0] + number * 60 / rate - 1e-6
