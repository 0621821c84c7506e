"""What the live policy, played through by `aeo.core.simulate`, says of the same work on the same pool."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks import workloads

from aeo.core.model import PlannedTrial
from aeo.core.simulate import Machine, Work, simulate


def makespan(seconds: Sequence[float], pool: Sequence[workloads.Machine]) -> float:
    """Seconds from the first start to the last end, with nothing lost between trials."""
    trials = [
        PlannedTrial(name=f"trial-{number}", task=f"task-{number}", estimated_seconds=one)
        for number, one in enumerate(seconds)
    ]
    machines = [Machine(name=machine.name, slots=machine.slots, speed=machine.speed) for machine in pool]
    return simulate([Work(trials=trials)], machines).makespan
