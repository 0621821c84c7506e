"""When an evaluation may stop early, by a rule that was stated before it ran. Pure.

Trials run in an order drawn at random before the start (`order`), all trials of a task together. A rule looks at tasks
in that order only: one that has ended before its turn counts when all before it have ended. So what it looks at is a
random sample, whatever quick or slow tasks score, and looking again is looking at a longer prefix of the same sample.

``interval``: every agent and model's mean main reward on every dataset is known to within so much, by its 95 % interval
(`aeo.core.statistics`). It is the width that decides, not where the interval lies, so its coverage at the moment of
stopping tends to 95 % (Chow and Robbins, "On the asymptotic theory of fixed-width sequential confidence intervals for
the mean", 1965); with few trials it does not, therefore a least number of them.

``compare``: two agents differ. What is looked at is the difference d of their mean rewards, task by task, in [-1, 1].
If there were none on average, the wealth of whoever bets the share b of it on each next difference, the product of
(1 + b d), would be a fair game for every b, and so would the mean of such wealths be. By Ville's inequality (1939) it
exceeds 1/alpha with a probability of at most alpha, at any time, however often one looks: no correction is needed, and
no number of looks is planned (Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024;
Robbins' mixtures, 1970). It holds for any number of tasks.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from aeo.core.model import PlannedTrial, StopRule
from aeo.core.statistics import Cluster, interval

#: Probability of deciding for a difference that is not there.
ALPHA = 0.05
#: The shares that are bet, both ways.
_BETS = tuple(sign * share / 20 for share in range(1, 20) for sign in (1, -1))


def order(name: str, trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """The trials in the order they are to run under a rule: tasks at random, those of a task together.

    ``name`` is the evaluation's: what is drawn is drawn from it, so that everybody finds the same order.
    """

    def place(trial: PlannedTrial) -> bytes:
        return hashlib.sha256(f"{name}/{trial.history_key}".encode()).digest()

    return sorted(trials, key=place)


def matches(name: str, trial: PlannedTrial) -> bool:
    """Whether a side of a comparison, an agent, a model or ``agent/model``, is a trial's."""
    agent, model = trial.labels.get("agent", ""), trial.labels.get("model", "")
    return name in (agent, model, f"{agent}/{model}")


def faults(rule: StopRule, trials: Sequence[PlannedTrial]) -> list[str]:
    """Why a rule cannot be used on a plan; nothing when it can."""
    if not rule.compare:
        return []
    sides = [{trial.history_key for trial in trials if matches(name, trial)} for name in rule.compare]
    found = [f"no trial is of {name!r}" for name, tasks in zip(rule.compare, sides, strict=True) if not tasks]
    if not found and any(all(matches(name, trial) for name in rule.compare) for trial in trials):
        found = ["the two sides have trials in common"]
    if not found and not sides[0] & sides[1]:
        found = ["the two sides have no task in common"]
    return found


class Watch:
    """Follows one evaluation's trials in their order, and says when its rule is met."""

    def __init__(self, name: str, rule: StopRule, trials: Sequence[PlannedTrial]) -> None:
        self.rule = rule
        self._order = order(name, trials)
        self._at = 0
        #: By agent, model and dataset, each task's trials.
        self._groups: dict[tuple[str, ...], list[Cluster]] = {_group(trial): [] for trial in trials if not rule.compare}
        self._differences: list[float] = []
        self._wealth = [0.0] * len(_BETS)
        self._bounded = True

    def next_tasks(self, most: int) -> list[str]:
        """Trials of the tasks whose turn is next, at least so many where there are."""
        names: list[str] = []
        at = self._at
        while at < len(self._order) and len(names) < most:
            names += [trial.name for trial in self._task(at)]
            at += len(self._task(at))
        return names

    def look(self, ended: Mapping[str, float | None]) -> str:
        """Take in the tasks that have ended as far as it is their turn; returns why to stop, "" when not to.

        ``ended``: main rewards of those of `next_tasks` that have ended; None, which counts nowhere, if there is none.
        """
        while task := self._task(self._at):
            if any(trial.name not in ended for trial in task):
                break
            self._at += len(task)
            self._take(task, ended)
            # Every task is a look: what came after the first that decides decides no more.
            if self.rule.compare and (reason := self._compared()):
                return reason
        return "" if self.rule.compare else self._narrow()

    @property
    def all_in(self) -> bool:
        """Whether every trial has been looked at."""
        return self._at == len(self._order)

    def _task(self, at: int) -> list[PlannedTrial]:
        if at >= len(self._order):
            return []
        key = self._order[at].history_key
        end = at
        while end < len(self._order) and self._order[end].history_key == key:
            end += 1
        return self._order[at:end]

    def _take(self, task: Sequence[PlannedTrial], ended: Mapping[str, float | None]) -> None:
        rewards = {trial.name: ended[trial.name] for trial in task}
        if self.rule.compare:
            self._take_pair(task, rewards)
            return
        for group in dict.fromkeys(map(_group, task)):
            values = [value for trial in task if _group(trial) == group and (value := rewards[trial.name]) is not None]
            if values:
                squares = math.fsum(value * value for value in values)
                total = math.fsum(values)
                self._groups[group].append(Cluster(len(values), total, squares, min(values), max(values)))

    def _take_pair(self, task: Sequence[PlannedTrial], rewards: Mapping[str, float | None]) -> None:
        sides = [
            [value for trial in task if matches(name, trial) and (value := rewards[trial.name]) is not None]
            for name in self.rule.compare
        ]
        if not all(sides):
            return
        self._bounded = self._bounded and all(0 <= value <= 1 for side in sides for value in side)
        means = [math.fsum(side) / len(side) for side in sides]
        difference = max(-1.0, min(1.0, means[0] - means[1]))
        self._differences.append(difference)
        self._wealth = [log + math.log1p(bet * difference) for log, bet in zip(self._wealth, _BETS, strict=True)]

    def _compared(self) -> str:
        count = len(self._differences)
        if count < self.rule.min_trials or not self._bounded or wealth(self._wealth) < 1 / ALPHA:
            return ""
        mean = math.fsum(self._differences) / count
        better, worse = self.rule.compare if mean > 0 else self.rule.compare[::-1]
        return f"{better} is better than {worse} by {abs(mean):.3f} on {count} tasks (at most {ALPHA:.0%} to be wrong)"

    def _narrow(self) -> str:
        widest = 0.0
        for clusters in self._groups.values():
            if sum(cluster.number for cluster in clusters) < self.rule.min_trials:
                return ""
            known = interval(clusters)
            if known is None or known.low is None or known.high is None:
                return ""
            widest = max(widest, known.high - known.mean, known.mean - known.low)
        if not self._groups or self.rule.interval is None or widest > self.rule.interval:
            return ""
        count = sum(cluster.number for clusters in self._groups.values() for cluster in clusters)
        return (
            f"the mean reward is known to within {widest:.3f} after {count} trials ({self.rule.interval:g} was asked)"
        )


def wealth(logs: Iterable[float]) -> float:
    """The mean of wealths of which these are the logarithms."""
    values = list(logs)
    most = max(values)
    # Far above any threshold; not a number that overflows.
    return math.exp(min(most, 700.0)) * math.fsum(math.exp(log - most) for log in values) / len(values)


def _group(trial: PlannedTrial) -> tuple[str, ...]:
    return tuple(trial.labels.get(name, "") for name in ("agent", "model", "dataset"))


def alike(trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    """The trials as if all took the same time: shared out, they stay in the order they have."""
    return [replace(trial, estimated_seconds=1.0) for trial in trials]
