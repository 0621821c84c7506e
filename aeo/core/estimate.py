"""How long a trial will take. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median


def seconds(planned: float, past: Sequence[float]) -> float:
    """Expected duration in seconds: the median of past runs of the task, else what the plan says.

    The median, since durations have long tails and one wedged run must not reorder the next evaluation.
    """
    return median(past) if past else planned


def remaining(open_seconds: float, slots: int, longest: float) -> float:
    """Lower estimate of the time to the end: work left over the slots, never below the longest trial left."""
    return max(open_seconds / max(1, slots), longest)
