"""How fast workers are, learnt from what they ran; and what of that a choice looks at. Pure.

Runs of one task, with one agent and model, are compared in pairs: one, and the last before it that another worker had.
So what each trial takes beside its work (a start, a download) does not look like speed, whoever gets the short ones. A
pair's quotient has four parts: its two workers, its evaluation (all may wait longer for a model today), and chance.
They are told apart by medians in turn (after Tukey's median polish), in logarithms. An evaluation that ran on one
worker only says nothing then, and neither do trials that wait for a model: every worker's speed stays 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log, pi, sqrt
from statistics import median

from aeo.core.leave import LEAST_SPEED
from aeo.core.pool import Pace

#: Runs of a worker that count, the latest; fewer than the second tell nothing.
RECENT, LEAST = 100, 3
#: Workers whose speeds differ by less are alike.
ALIKE = 1.1
#: Seconds for which a batch that was sent counts as one that works: its slot may be free.
SOON_SECONDS = 5.0
#: No worker's speed is told to be beyond these. Who is further off does not run what others do.
SLOWEST, FASTEST = 1 / 8, 8.0
#: Seconds for which the runs of a worker count, if it has no later ones.
REMEMBERED_SECONDS = 30 * 86400.0
_ROUNDS = 10
#: Speeds of workers lie a factor of e apart or less, most of them: few runs that say otherwise are believed by halves.
_SPREAD = 1.0
#: Scatter of quotients below which no estimate is to be believed, however alike a few of them are.
_LEAST_SCATTER = 0.05
#: A speed is told in steps, or every run would change it a little.
_STEP = 0.05


@dataclass(frozen=True, kw_only=True)
class Timed:
    """A run that was scored, beside one of another worker: what ends otherwise may end early, wherever it runs."""

    evaluation: str
    seconds: float
    #: The other worker, and what the same took there.
    other: str
    before: float


def learn(runs: Mapping[str, Sequence[Timed]]) -> dict[str, float]:
    """Each worker's speed, from its last runs: 1 is that of the middle worker, 0.5 takes twice as long.

    1 for those of whom too little is known, or that are not surely different; from `SLOWEST` to `FASTEST`.
    """
    pairs = [
        (worker, one.other, one.evaluation, log(one.seconds / one.before))
        for worker, some in sorted(runs.items())
        for one in some[:RECENT]
        if one.seconds > 0 and one.before > 0 and one.other != worker
    ]
    by_evaluation: dict[str, list[int]] = {}
    by_worker: dict[str, list[int]] = {}
    weights: Counter[tuple[str, str]] = Counter()
    for at, (worker, other, evaluation, _) in enumerate(pairs):
        by_evaluation.setdefault(evaluation, []).append(at)
        by_worker.setdefault(worker, []).append(at)
        by_worker.setdefault(other, []).append(at)
        weights[evaluation, worker] += 1
    slower, off = dict.fromkeys(by_worker, 0.0), dict.fromkeys(by_evaluation, 0.0)

    def rest(at: int) -> float:
        worker, other, evaluation, quotient = pairs[at]
        return quotient - off[evaluation] - slower[worker] + slower[other]

    both = {evaluation: _both_ways([pairs[at] for at in some]) for evaluation, some in by_evaluation.items()}
    off |= {evaluation: found for evaluation, found in both.items() if found is not None}
    for _ in range(_ROUNDS):
        for evaluation, some in by_evaluation.items():
            if both[evaluation] is not None:
                continue
            # Workers weigh the same, however much each ran of it: one whose trials end at once runs most of all.
            off[evaluation] += _middle((rest(at), 1 / weights[evaluation, pairs[at][0]]) for at in some)
        for worker, some in by_worker.items():
            if len(some) >= LEAST:
                slower[worker] += median(rest(at) if pairs[at][0] == worker else -rest(at) for at in some)
    known = [worker for worker in runs if len(by_worker.get(worker, ())) >= LEAST]
    usual = median(slower[worker] for worker in known) if known else 0.0
    # The median of what is left over, as the standard deviation of a normal distribution.
    scatter = max(_LEAST_SCATTER, 1.4826 * median(abs(rest(at)) for at in range(len(pairs)))) if pairs else 0.0
    return {
        worker: _factor(slower.get(worker, usual) - usual, scatter, len(by_worker.get(worker, ()))) for worker in runs
    }


def _both_ways(pairs: Sequence[tuple[str, str, str, float]]) -> float | None:
    """How much longer all took in an evaluation, from workers compared both ways, as speeds cancel out there.

    None if there are none.
    """
    quotients: dict[tuple[str, str], list[float]] = {}
    for worker, other, _, quotient in pairs:
        quotients.setdefault((worker, other), []).append(quotient)
    found = [
        ((median(there) + median(back)) / 2, float(min(len(there), len(back))))
        for (worker, other), there in quotients.items()
        if worker < other and (back := quotients.get((other, worker)))
    ]
    return _middle(found) if found else None


def bounded(speed: float) -> float:
    """A speed that choices can use, whatever was learnt or kept."""
    return min(max(speed, SLOWEST), FASTEST)


def _middle(weighed: Iterable[tuple[float, float]]) -> float:
    """The weighted median."""
    some = sorted(weighed)
    half, below = sum(weight for _, weight in some) / 2, 0.0
    for at, (value, weight) in enumerate(some):
        below += weight
        if below > half + 1e-9:
            return value
        if below > half - 1e-9 and at + 1 < len(some):
            return (value + some[at + 1][0]) / 2
    return some[-1][0] if some else 0.0


def _factor(slower: float, scatter: float, count: int) -> float:
    if count < LEAST:
        return 1.0
    error = scatter * sqrt(pi / 2 / count)
    believed = slower * _SPREAD**2 / (_SPREAD**2 + error**2)
    if abs(believed) < max(log(ALIKE), 3 * error):
        return 1.0
    return round(bounded(exp(-round(believed / _STEP) * _STEP)), 3)


def pace(slots: Iterable[str], speeds: Mapping[str, float]) -> Pace | None:
    """What choices for an evaluation look at; None where all are alike.

    ``slots``: the worker of each slot that works on it, or soon will.
    """
    at = [(worker, max(speeds.get(worker, 1.0), LEAST_SPEED)) for worker in slots]
    if not at or max(speed for _, speed in at) <= ALIKE * min(speed for _, speed in at):
        return None
    return Pace(speeds=dict(sorted(at)), power=sum(speed for _, speed in at))
