"""The breaker trips on too many failures among the last runs, and on nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from aeo.core.breaker import tripped


@given(recent=st.lists(st.booleans(), max_size=40), runs=st.integers(1, 30), share=st.floats(0.01, 1))
def test_it_trips_only_above_its_share_of_enough_runs(recent: list[bool], runs: int, share: float) -> None:
    failed = sum(recent[:runs])
    assert tripped(recent, runs, share) == (len(recent) >= runs and failed > share * runs)


def test_it_can_be_off_and_looks_at_the_latest_only() -> None:
    assert not tripped([True] * 50, 0, 0.1)
    assert not tripped([True] * 4, 5, 0.1)
    assert tripped([True] * 5, 5, 0.9)
    assert not tripped([False] * 5 + [True] * 50, 5, 0.1)
