"""Means of rewards and how sure they are. Pure.

Trials of one task are alike, so a task and not a trial is what was drawn at random. The variance of a mean m over n
trials is therefore clustered by task (Miller, "Adding Error Bars to Evals", 2024, arXiv:2411.00640, section 2.2)::

    V = sum over tasks of (sum over its trials of (s - m))^2 / n^2

Around it an interval as of Wilson, for which an effective number of trials takes the place of n (Korn and Graubard,
"Confidence intervals for proportions with small expected number of positive counts", 1998; with few tasks adjusted by
quantiles of Student's t as in Dean and Pagano, "Evaluating confidence interval methods for binomial proportions in
clustered surveys", 2015)::

    n* = m (1 - m) / V * (t[n - 1] / t[tasks - 1])^2
    (m + z^2 / 2n* -+ z sqrt(m (1 - m) / n* + (z / 2n*)^2)) / (1 + z^2 / n*)

With one trial of each task, all 0 or 1, it is Wilson's interval itself. It stays within [0, 1], and is honest where
every trial failed or every trial passed: then nothing is known of how alike the trials of a task are, and n* is the
number of tasks. V is never taken below what trials that are not alike would give, with one further trial of the largest
variance counted in, so that a few equal rewards do not claim to be sure.

Rewards outside [0, 1] have the usual interval m -+ t[tasks - 1] sqrt(V tasks / (tasks - 1)), and none with one task.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

#: Standard normal quantile of 97.5 %.
Z = 1.959963984540054


class Cluster(NamedTuple):
    """The trials of one task, as their sums. There may be thousands, of which each is looked at several times."""

    number: int
    #: Of the rewards, and of their squares.
    total: float
    squares: float
    least: float
    most: float

    def with_(self, other: Cluster) -> Cluster:
        """Both as one, where they are of the same task."""
        return Cluster(
            self.number + other.number,
            self.total + other.total,
            self.squares + other.squares,
            min(self.least, other.least),
            max(self.most, other.most),
        )


@dataclass(frozen=True, kw_only=True)
class Interval:
    """A mean and its 95 % interval."""

    mean: float
    #: Both None where one task with rewards outside [0, 1] says nothing of others.
    low: float | None
    high: float | None


def cluster(values: Iterable[float]) -> Cluster:
    """Sum up one task's rewards.

    Raises:
        ValueError: there are none.
    """
    known = list(values)
    return Cluster(len(known), math.fsum(known), math.fsum(value * value for value in known), min(known), max(known))


def interval(clusters: Iterable[Cluster]) -> Interval | None:
    """The mean over all trials with its interval; None when there are no trials. See the module for the formulas."""
    tasks = [item for item in clusters if item.number]
    count = sum(item.number for item in tasks)
    if not count:
        return None
    mean = math.fsum(item.total for item in tasks) / count
    least, most = min(item.least for item in tasks), max(item.most for item in tasks)
    # Rounding must not put the mean of equal rewards beside them.
    mean = min(most, max(least, mean))
    variance = math.fsum((item.total - item.number * mean) ** 2 for item in tasks) / count**2
    if least < 0 or most > 1:
        return _usual(mean, variance, len(tasks))
    return _wilson(mean, _effective(tasks, count, mean, variance))


def _usual(mean: float, variance: float, tasks: int) -> Interval:
    if tasks < 2:
        return Interval(mean=mean, low=None, high=None)
    half = student(tasks - 1) * math.sqrt(variance * tasks / (tasks - 1))
    return Interval(mean=mean, low=mean - half, high=mean + half)


def _effective(tasks: list[Cluster], count: int, mean: float, variance: float) -> float:
    """How many independent trials, each passed or failed, would be as sure of the mean."""
    largest = mean * (1 - mean)
    if largest <= 0 or len(tasks) == 1:
        return float(len(tasks))
    spread = max(0.0, math.fsum(item.squares for item in tasks) - count * mean * mean)
    alone = (spread + largest) / (count * (count + 1))
    return largest / max(variance, alone) * (student(count - 1) / student(len(tasks) - 1)) ** 2


def _wilson(mean: float, count: float) -> Interval:
    share = Z * Z / count
    middle = (mean + share / 2) / (1 + share)
    half = math.sqrt(share * mean * (1 - mean) + share * share / 4) / (1 + share)
    return Interval(mean=mean, low=max(0.0, min(mean, middle - half)), high=min(1.0, max(mean, middle + half)))


def student(freedom: int) -> float:
    """The 97.5 % quantile of Student's t with so many degrees of freedom, from 1 on, to 0.1 %.

    Exact for 1 and 2, then Fisher and Cornish's expansion (Abramowitz and Stegun 26.7.5).
    """
    if freedom == 1:
        return math.tan(0.475 * math.pi)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (1 - 0.95**2))
    z, n = Z, float(freedom)
    return (
        z
        + (z**3 + z) / (4 * n)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * n**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * n**3)
        + (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * n**4)
    )
