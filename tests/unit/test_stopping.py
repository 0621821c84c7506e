"""Rules to stop by: looking again and again does not make them wrong more often than they say."""

from __future__ import annotations

import math
from collections.abc import Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core import stopping
from aeo.core.errors import InputError
from aeo.core.model import PlannedTrial, StopRule
from aeo.core.stopping import ALPHA, Watch
from aeo.submission import Submission, read

ALIKE = StopRule(compare=("a", "b"), min_trials=2)


def planned(tasks: int, agents: Sequence[str] = ("a", "b"), attempts: int = 1, model: str = "m") -> list[PlannedTrial]:
    return [
        PlannedTrial(
            name=f"{task}-{agent}-{attempt}",
            task=f"task-{task}",
            labels={"agent": agent, "model": model, "dataset": "set"},
        )
        for attempt in range(attempts)
        for task in range(tasks)
        for agent in agents
    ]


def play(rule: StopRule, random: Random, rates: dict[str, float], tasks: int) -> tuple[str, dict[str, list[float]]]:
    """Look after every trial until the rule is met; returns why, and all rewards so far."""
    trials = planned(tasks, tuple(rates))
    watch = Watch("name", rule, trials)
    hard = {trial.task: random.random() for trial in trials}
    ended: dict[str, float | None] = {}
    rewards: dict[str, list[float]] = {agent: [] for agent in rates}
    for trial in stopping.order("name", trials):
        agent = trial.labels["agent"]
        # Tasks are hard or easy for every agent: paired, as real ones are.
        reward = float(0.5 * hard[trial.task] + 0.5 * random.random() < rates[agent])
        ended[trial.name] = reward
        rewards[agent].append(reward)
        reason = watch.look(ended)
        if reason:
            return reason, rewards
    assert watch.all_in
    return "", rewards


def test_two_that_are_alike_are_told_apart_less_often_than_alpha() -> None:
    random = Random(1)
    runs = 400
    wrong = sum(bool(play(ALIKE, random, {"a": 0.5, "b": 0.5}, 120)[0]) for _ in range(runs))
    # Within three standard deviations; a test at each look that does not count its looks is wrong in every third run.
    assert wrong / runs <= ALPHA + 3 * math.sqrt(ALPHA * (1 - ALPHA) / runs)
    assert wrong / runs <= ALPHA


def test_a_test_that_forgets_its_looks_would_be_wrong_far_more_often() -> None:
    """The same simulation tells a bad rule from a good one."""
    random = Random(1)
    wrong = 0
    for _ in range(200):
        total = squares = 0.0
        for number in range(1, 121):
            difference = float(random.random() < 0.5) - float(random.random() < 0.5)
            total, squares = total + difference, squares + difference**2
            spread = math.sqrt(max(1e-9, squares - total**2 / number))
            if number >= 10 and abs(total) > 1.96 * spread:
                wrong += 1
                break
    assert wrong / 200 > 3 * ALPHA


def test_two_that_differ_are_told_apart_early_and_the_right_way_round() -> None:
    random = Random(2)
    found = [play(ALIKE, random, {"a": 0.35, "b": 0.65}, 400) for _ in range(40)]
    reasons = [reason for reason, _ in found]
    assert all(reason.startswith("b is better than a by ") for reason in reasons)
    looked = sorted(len(rewards["a"]) for _, rewards in found)
    assert looked[len(looked) // 2] < 120


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.8])
def test_an_interval_that_is_narrow_enough_holds_the_truth(rate: float) -> None:
    random = Random(3)
    rule = StopRule(interval=0.1, min_trials=30)
    runs, held, tasks = 150, 0, []
    # What share of rewards is 1 when the task's part and the agent's own are both drawn evenly.
    truth = 2 * rate * rate if rate <= 0.5 else 1 - 2 * (1 - rate) ** 2
    for _ in range(runs):
        reason, rewards = play(rule, random, {"a": rate}, 1000)
        assert reason.startswith("the mean reward is known to within 0.")
        mean = sum(rewards["a"]) / len(rewards["a"])
        held += abs(mean - truth) <= 0.1
        tasks.append(len(rewards["a"]))
    # Within three standard deviations of 95 %.
    assert held / runs >= 0.95 - 3 * math.sqrt(0.95 * 0.05 / runs)
    assert max(tasks) < 200


def test_every_agent_must_be_known_well_enough() -> None:
    rule = StopRule(interval=0.1, min_trials=5)
    trials = planned(300)
    watch = Watch("name", rule, trials)
    sure = {trial.name: 1.0 for trial in trials if trial.labels["agent"] == "a"}
    some = {trial.name: None for trial in trials if trial.labels["agent"] == "b"}
    assert watch.look({**sure, **some}) == ""
    assert watch.all_in


def test_what_ends_before_its_turn_waits_for_it() -> None:
    """Quick tasks must not be looked at before slow ones: they may be the easy ones."""
    trials = planned(100, ("a",))
    run_order = stopping.order("name", trials)
    watch = Watch("name", StopRule(interval=0.2, min_trials=10), trials)
    late = {trial.name: 1.0 for trial in run_order[1:]}
    assert watch.look(late) == ""
    assert watch.next_tasks(1) == [run_order[0].name]
    assert "after 100 trials" in watch.look({**late, run_order[0].name: 0.0})


def test_a_rule_says_what_it_saw() -> None:
    trials = planned(40)
    watch = Watch("name", StopRule(compare=("a", "b"), min_trials=8), trials)
    ended: dict[str, float | None] = {trial.name: float(trial.labels["agent"] == "b") for trial in trials}
    assert watch.look(ended) == "b is better than a by 1.000 on 8 tasks (at most 5% to be wrong)"


def test_rewards_outside_0_and_1_are_never_compared() -> None:
    trials = planned(100)
    watch = Watch("name", ALIKE, trials)
    assert watch.look({trial.name: 50.0 * (trial.labels["agent"] == "b") for trial in trials}) == ""
    assert watch.all_in


def test_without_rewards_nothing_is_decided() -> None:
    trials = planned(100)
    for rule in (ALIKE, StopRule(interval=0.2)):
        assert Watch("name", rule, trials).look(dict.fromkeys((trial.name for trial in trials), None)) == ""


@given(st.lists(st.floats(-3000.0, 3000.0), min_size=1, max_size=9))
def test_wealth_is_the_mean_and_never_overflows(logs: list[float]) -> None:
    found = stopping.wealth(logs)
    assert math.isfinite(found)
    if max(logs) < 500:
        assert found == pytest.approx(math.fsum(math.exp(log) for log in logs) / len(logs))


@given(st.integers(1, 60), st.integers(1, 3), st.text(max_size=5))
def test_the_order_is_random_by_task_and_always_the_same(tasks: int, attempts: int, name: str) -> None:
    trials = planned(tasks, attempts=attempts)
    found = stopping.order(name, trials)
    again = stopping.order(name, trials[::-1])
    assert [trial.task for trial in found] == [trial.task for trial in again]
    assert sorted(trial.name for trial in found) == sorted(trial.name for trial in trials)
    # Those of a task are together.
    runs = [trial.task for number, trial in enumerate(found) if number == 0 or found[number - 1].task != trial.task]
    assert len(runs) == len(set(runs)) == tasks
    if tasks > 30:
        assert runs != sorted(runs, key=lambda task: int(task.split("-")[1]))
        assert runs != [trial.task for trial in stopping.order(name + "x", trials)[:: 2 * attempts]]


def test_sides_may_be_agents_models_or_both() -> None:
    trials = [*planned(3, ("a",), model="x/one"), *planned(3, ("a",), model="two")]
    assert stopping.faults(StopRule(compare=("x/one", "two")), trials) == []
    assert stopping.faults(StopRule(compare=("a/x/one", "a/two")), trials) == []
    assert stopping.faults(StopRule(compare=("a", "two")), trials) == ["the two sides have trials in common"]
    assert stopping.faults(StopRule(compare=("a", "b")), trials) == ["no trial is of 'b'"]
    assert stopping.faults(StopRule(interval=0.1), trials) == []
    apart = [*planned(1, ("a",)), PlannedTrial(name="o", task="other", labels={"agent": "b", "dataset": "set"})]
    assert stopping.faults(StopRule(compare=("a", "b")), apart) == ["the two sides have no task in common"]


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({"interval": 0.05}, StopRule(interval=0.05)),
        ({"interval": "0.05", "min_trials": "50", "compare": []}, StopRule(interval=0.05, min_trials=50)),
        ({"compare": ["a", "b"], "decided": True, "interval": None}, StopRule(compare=("a", "b"))),
        ({"compare": "a, b", "min_trials": 10}, StopRule(compare=("a", "b"), min_trials=10)),
    ],
)
def test_a_rule_is_read(given: dict[str, object], rule: StopRule) -> None:
    spec, _ = read(Submission(config={"executor": "sleep", "stop_when": given}))
    assert spec.stop_when == rule


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ("soon", "stop_when"),
        ({}, "stop_when"),
        ({"interval": 0.1, "compare": ["a", "b"]}, "stop_when"),
        ({"interval": 0.1, "alpha": 0.5}, "stop_when"),
        ({"interval": 0.0}, "stop_when.interval"),
        ({"interval": "x"}, "stop_when.interval"),
        ({"interval": True}, "stop_when.interval"),
        ({"compare": ["a"]}, "stop_when.compare"),
        ({"compare": ["a", "a"]}, "stop_when.compare"),
        ({"compare": "a"}, "stop_when.compare"),
        ({"interval": 0.1, "min_trials": 1}, "stop_when.min_trials"),
    ],
)
def test_a_wrong_rule_is_refused(given: object, field: str) -> None:
    with pytest.raises(InputError) as raised:
        read(Submission(config={"executor": "sleep", "stop_when": given}))
    assert [problem.field for problem in raised.value.problems] == [field]
