"""How fast workers are, learnt from what they ran; and what of that a choice looks at. Pure.

A trial's quotient of actual and expected seconds has three parts: how far the estimates of its evaluation are off, how
fast its worker is, and chance. The first two are told apart by medians in turn (Tukey's median polish), in logarithms.
So an evaluation that ran on one worker only says nothing, and neither do trials that wait for a model: these take as
long anywhere, and every worker's speed stays 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from statistics import median

from aeo.core.pool import Pace

#: Runs of a worker that count, the latest; fewer than the second tell nothing.
RECENT, LEAST = 100, 3
#: Workers whose speeds differ by less are alike.
ALIKE = 1.1
#: Seconds for which a batch that was sent counts as one that works: its slot may be free.
SOON_SECONDS = 5.0
_ROUNDS = 8
#: Speeds of workers lie a factor of e apart or less, most of them: few runs that say otherwise are believed by halves.
_SPREAD = 1.0
#: Scatter of quotients below which no estimate is to be believed, however alike a few of them are.
_LEAST_SCATTER = 0.05
#: A speed is told in steps, or every run would change it a little.
_STEP = 0.05


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run that came to its end."""

    evaluation: str
    seconds: float
    #: What was expected of it, on a worker of speed 1.
    expected: float


def learn(runs: Mapping[str, Sequence[Timed]]) -> dict[str, float]:
    """Each worker's speed, from its last runs: 1 is usual, 0.5 takes twice as long.

    1 for those of whom too little is known, or that are not surely different.
    """
    logs = {
        worker: [
            (one.evaluation, log(one.seconds / one.expected))
            for one in some[:RECENT]
            if one.seconds > 0 and one.expected > 0
        ]
        for worker, some in runs.items()
    }
    slower = dict.fromkeys(runs, 0.0)
    off: dict[str, float] = {}
    for _ in range(_ROUNDS):
        seen: dict[str, list[float]] = {}
        for worker, some in logs.items():
            for evaluation, quotient in some:
                seen.setdefault(evaluation, []).append(quotient - slower[worker])
        off = {evaluation: median(values) for evaluation, values in seen.items()}
        slower = {
            worker: median(quotient - off[evaluation] for evaluation, quotient in some) if len(some) >= LEAST else 0.0
            for worker, some in logs.items()
        }
    rests = [
        abs(quotient - off[evaluation] - slower[worker])
        for worker, some in logs.items()
        for evaluation, quotient in some
    ]
    # The median of what is left over, as the standard deviation of a normal distribution.
    scatter = max(_LEAST_SCATTER, 1.4826 * median(rests)) if rests else 0.0
    return {worker: _factor(slower[worker], scatter, len(some)) for worker, some in logs.items()}


def _factor(slower: float, scatter: float, count: int) -> float:
    if count < LEAST:
        return 1.0
    error = scatter * sqrt(pi / 2 / count)
    believed = slower * _SPREAD**2 / (_SPREAD**2 + error**2)
    if abs(believed) < max(log(ALIKE), 3 * error):
        return 1.0
    return round(exp(-round(believed / _STEP) * _STEP), 3)


def pace(slots: Iterable[str], speeds: Mapping[str, float]) -> Pace | None:
    """What choices for an evaluation look at; None where all are alike.

    ``slots``: the worker of each slot that works on it, or soon will.
    """
    at = [(worker, speeds.get(worker, 1.0)) for worker in slots]
    if not at or max(speed for _, speed in at) <= ALIKE * min(speed for _, speed in at):
        return None
    return Pace(speeds=dict(sorted(at)), power=sum(speed for _, speed in at))
