"""How long a trial will take. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from math import fsum, pi, sqrt
from statistics import median, quantiles

from aeo.core.bounds import limited
from aeo.core.model import PlannedTrial
from aeo.core.pool import Limit


class Basis(str, Enum):
    """What an expected duration rests on, the surest first."""

    #: Past runs of the task with the same agent and model.
    SAME = "same"
    #: Past runs of the task.
    TASK = "task"
    #: What the plan says, by how far that was off for other tasks.
    SCALED = "scaled"
    #: What the plan says; it may come from a time-out alone.
    PLAN = "plan"


@dataclass(frozen=True, kw_only=True)
class Run:
    """A past run of a task."""

    seconds: float
    #: What the plan alone had said; 0 is not known.
    planned: float = 0.0
    agent: str = ""
    model: str = ""
    #: Who ran it; empty is not known.
    worker: str = ""


def at_usual_speed(runs: Mapping[str, Sequence[Run]], speeds: Mapping[str, float]) -> Mapping[str, Sequence[Run]]:
    """The runs with the seconds they would have taken on a worker of speed 1."""
    return {
        name: [replace(run, seconds=run.seconds * speeds.get(run.worker, 1.0)) for run in some]
        for name, some in runs.items()
    }


@dataclass(frozen=True, kw_only=True)
class Expected:
    """How long a trial is expected to take."""

    seconds: float
    basis: Basis


def expect(
    trials: Sequence[PlannedTrial], runs: Mapping[str, Sequence[Run]], meant: Mapping[str, Sequence[Run]]
) -> dict[str, Expected]:
    """Expected duration of each trial, by its name.

    ``runs``: past runs by `PlannedTrial.history_key`; ``meant``: past runs by dataset, of any of its tasks. Medians
    throughout, since durations have long tails and one wedged run must not reorder the next evaluation.
    """
    found = {trial.name: _known(trial, runs.get(trial.history_key, ())) for trial in trials}
    # One of each task, or one with many attempts would decide alone.
    ran = {trial.history_key: (known.seconds, trial.planned) for trial in trials if (known := found[trial.name])}
    here = factor(list(ran.values()))

    @cache
    def scale(dataset: str, agent: str) -> float | None:
        past = meant.get(dataset, ())
        own = factor([(run.seconds, run.planned) for run in past if run.agent == agent])
        # Evidence of this agent, of any agent, and last what the other tasks of this very plan took.
        return own or factor([(run.seconds, run.planned) for run in past]) or here

    return {trial.name: found[trial.name] or _unknown(trial, scale) for trial in trials}


def _known(trial: PlannedTrial, past: Sequence[Run]) -> Expected | None:
    who = (trial.labels.get("agent", ""), trial.labels.get("model", ""))
    same = [run.seconds for run in past if (run.agent, run.model) == who]
    if same:
        return Expected(seconds=median(same), basis=Basis.SAME)
    return Expected(seconds=median(run.seconds for run in past), basis=Basis.TASK) if past else None


def _unknown(trial: PlannedTrial, scale: Callable[[str, str], float | None]) -> Expected:
    by = scale(trial.labels.get("dataset", ""), trial.labels.get("agent", ""))
    if by is None:
        return Expected(seconds=trial.planned, basis=Basis.PLAN)
    return Expected(seconds=trial.planned * by, basis=Basis.SCALED)


#: Finished trials from which the estimates of the others are put right. Before, an estimate may come from a time-out
#: alone and be wrong by a factor of hundreds: no time to the end is better than that one.
ENOUGH = 3


def factor(finished: Sequence[tuple[float, float]]) -> float | None:
    """By how much the estimates of an evaluation are to be multiplied, from its finished trials.

    ``finished``: actual and estimated seconds of each. The median of their quotients, as one wedged trial must not
    count; None while fewer than `ENOUGH` have finished.
    """
    quotients = [actual / planned for actual, planned in finished if actual >= 0 and planned > 0]
    return median(quotients) if len(quotients) >= ENOUGH else None


@dataclass(frozen=True, kw_only=True)
class Held:
    """Trials that wait under a limit of a model provider."""

    waiting: int
    limit: Limit


def remaining(
    waiting: Sequence[float],
    running: Sequence[tuple[float, float]],
    *,
    slots: int,
    factor: float,
    held: Sequence[Held] = (),
) -> float | None:
    """Lower estimate of the time to the end, seconds; None when nothing is left, at least 1 otherwise.

    Work left over the slots, never below the longest trial left, or what a limit lets start. ``waiting``: estimates of
    the trials that wait; ``running``: estimate and seconds so far of those that run; ``slots``: how many run at once;
    ``factor``: what estimates are multiplied by; ``held``: those of the waiting that are under a limit.
    """
    if not waiting and not running:
        return None
    left = [max(0.0, planned * factor - so_far) for planned, so_far in running]
    left += [planned * factor for planned in waiting]
    # Which of those that wait they are is not known: at the earliest the shortest ones.
    shortest = sorted(planned * factor for planned in waiting) if held else []
    least = [limited(shortest[: one.waiting], one.limit) for one in held]
    return max(1.0, sum(left) / max(1, slots), max(left), *least)


#: Standard normal quantile of 90 %: four of five ends are to lie within a range.
_Z = 1.2815515655446004
#: Interquartile range of a normal distribution over its standard deviation.
_QUARTILES = 1.3489795003921634


@dataclass(frozen=True, kw_only=True)
class Range:
    """The time to the end, seconds: four of five times it lies between `low` and `high`."""

    low: float
    likely: float
    high: float


def between(
    waiting: Sequence[float],
    running: Sequence[tuple[float, float]],
    *,
    slots: int,
    finished: Sequence[tuple[float, float]],
    held: Sequence[Held] = (),
) -> Range | None:
    """`remaining` with its range; None when nothing is left, or too few trials have finished to tell.

    The range has two causes: the factor is known from ``finished`` only, and every trial left scatters around its
    estimate as those did. Their scatter is taken from the quartiles, as one wedged trial must not count.
    """
    middle = factor(finished)
    likely = None if middle is None else remaining(waiting, running, slots=slots, factor=middle, held=held)
    if middle is None or likely is None:
        return None
    quotients = sorted(actual / planned for actual, planned in finished if actual >= 0 and planned > 0)
    first, _, third = quantiles(quotients, n=4, method="inclusive")
    scatter = (third - first) / _QUARTILES
    sizes = [*waiting, *(planned for planned, _ in running)]
    whole = fsum(sizes)
    mixed = fsum(size * size for size in sizes) / whole**2 if whole > 0 else 1.0
    off = _Z * scatter * sqrt(pi / 2 / len(quotients) + mixed)  # the variance of a median, and of the sum
    low = remaining(waiting, running, slots=slots, factor=max(0.0, middle - off), held=held)
    high = remaining(waiting, running, slots=slots, factor=middle + off, held=held)
    return Range(low=low or 1.0, likely=likely, high=high or likely)
