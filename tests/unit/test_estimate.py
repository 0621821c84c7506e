"""Expected durations and the time to the end, for every input."""

from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core import estimate
from aeo.core.estimate import Basis, Expected, Run
from aeo.core.model import PlannedTrial

SECONDS = st.floats(min_value=0.0, max_value=1e6)
PLANNED = st.floats(min_value=0.1, max_value=1e6)
FACTOR = st.floats(min_value=0.0, max_value=1e3)
RUNNING = st.lists(st.tuples(PLANNED, SECONDS), max_size=8)
WAITING = st.lists(PLANNED, max_size=20)


WHO = st.sampled_from(["a", "b"])
RUNS = st.lists(st.builds(Run, seconds=SECONDS, planned=PLANNED, agent=WHO, model=WHO), max_size=9)


def trial(name: str, task: str, planned: float, *, agent: str = "a", model: str = "a") -> PlannedTrial:
    labels = {"dataset": "set", "agent": agent, "model": model}
    return PlannedTrial(name=name, task=task, labels=labels, estimated_seconds=planned)


@given(PLANNED, RUNS, WHO, WHO)
def test_runs_of_the_task_beat_the_plan_and_the_same_agent_beats_others(
    planned: float, past: list[Run], agent: str, model: str
) -> None:
    one = trial("t", "task", planned, agent=agent, model=model)
    found = estimate.expect([one], {"set/task": past} if past else {}, {})["t"]
    same = [run.seconds for run in past if (run.agent, run.model) == (agent, model)]
    if same:
        assert found == Expected(seconds=median(same), basis=Basis.SAME)
    elif past:
        assert found == Expected(seconds=median(run.seconds for run in past), basis=Basis.TASK)
    else:
        assert found == Expected(seconds=planned, basis=Basis.PLAN)


def runs(factor: float, agent: str, count: int) -> list[Run]:
    return [Run(seconds=600 * factor, planned=600.0, agent=agent) for _ in range(count)]


def test_a_time_out_counts_by_what_such_time_outs_have_meant() -> None:
    new = [trial("t", "new", 900.0)]

    def of(*meant: Run) -> Expected:
        return estimate.expect(new, {}, {"set": meant, "other set": runs(9.0, "a", 9)})["t"]

    assert of(*runs(0.1, "a", 3), *runs(0.5, "b", 9)) == Expected(seconds=pytest.approx(90.0), basis=Basis.SCALED)
    # Too few of this agent: any agent's.
    assert of(*runs(0.1, "a", 2), *runs(0.5, "b", 9)) == Expected(seconds=pytest.approx(450.0), basis=Basis.SCALED)
    assert of(*runs(0.1, "a", 2)) == Expected(seconds=900.0, basis=Basis.PLAN)
    # What a run of an earlier release had been planned with is not known.
    assert of(*[Run(seconds=5.0)] * 9) == Expected(seconds=900.0, basis=Basis.PLAN)


def test_without_such_runs_the_plans_own_known_tasks_tell() -> None:
    trials = [trial(f"t{number}", f"task-{number}", 100.0) for number in range(4)]
    past = {f"set/task-{number}": [Run(seconds=20.0)] for number in range(3)}
    found = estimate.expect(trials, past, {})
    assert found["t3"] == Expected(seconds=pytest.approx(20.0), basis=Basis.SCALED)
    # Many attempts of one task are one task.
    again = [trial(f"t{number}", "task-0", 100.0) for number in range(3)] + trials[3:]
    assert estimate.expect(again, past, {})["t3"] == Expected(seconds=100.0, basis=Basis.PLAN)


def test_what_was_learned_before_is_not_scaled_again() -> None:
    """A plan that is looked at twice: its trials' own plan counts, not what was put in."""
    one = replace(trial("t", "new", 900.0), estimated_seconds=90.0, planned_seconds=900.0)
    assert estimate.expect([one], {}, {"set": runs(0.1, "a", 3)})["t"].seconds == pytest.approx(90.0)


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
