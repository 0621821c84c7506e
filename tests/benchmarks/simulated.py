"""What the live policy, played through by `aeo.core.simulate`, says of the same work on the same pool."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import ours, workloads
from benchmarks.figures import Moments

from aeo.core.model import PlannedTrial
from aeo.core.simulate import Machine, Work, simulate

#: Trials for each slot, and seconds of each at speed 1, of the work by which losses are measured.
TRIALS, SECONDS = 15, 0.2


@dataclass(frozen=True, kw_only=True)
class Losses:
    """What our own work costs beside the trials' own time, as measured on the pool in the same run."""

    #: Seconds between two trials of a slot: what ``aeo simulate --overhead`` takes.
    between: float
    #: Seconds from the last trial's end to its result being stored.
    after: float


def calibrated(pool: ours.Pool, machines: Sequence[workloads.Machine], dataset: str = "calibration") -> Losses:
    """Measure the losses with work of its own, all trials alike."""
    count = TRIALS * sum(machine.slots for machine in machines)
    return losses(pool.sleep([SECONDS] * count, dataset=dataset), sum(machine.slots for machine in machines))


def losses(moments: Moments, slots: int) -> Losses:
    """Read them from a run in which every slot is busy to the end."""
    ended: list[float] = []
    gaps = []
    # A slot that ended is taken by the next that starts, in the order of their ends.
    for start, end in sorted(moments.spans):
        if len(ended) == slots:
            gaps.append(max(0.0, start - heapq.heappop(ended)))
        heapq.heappush(ended, end)
    return Losses(between=median(gaps), after=moments.stored - max(end for _, end in moments.spans))


def facts(lost: Losses) -> dict[str, str]:
    """What was measured, for the head of a table."""
    return {
        "seconds lost between two trials": f"{lost.between:.4f}",
        "seconds from the last end to its result stored": f"{lost.after:.4f}",
    }


def makespan(
    seconds: Sequence[float], pool: Sequence[workloads.Machine], lost: Losses = Losses(between=0.0, after=0.0)
) -> float:
    """Seconds from the first start to the last result stored."""
    trials = [
        PlannedTrial(name=f"trial-{number}", task=f"task-{number}", estimated_seconds=one)
        for number, one in enumerate(seconds)
    ]
    machines = [Machine(name=machine.name, slots=machine.slots, speed=machine.speed) for machine in pool]
    found = simulate([Work(trials=trials)], machines, overhead=lost.between)
    # The last trial is followed by no other.
    return found.makespan - lost.between + lost.after
