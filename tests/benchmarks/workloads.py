"""The work every system gets: lists of durations, made by pure functions of a seed, and the least time they take.

A list is in the order in which a system without our ideas takes it. Durations are seconds on a machine of speed 1.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

#: Trials of a workload, and the seconds of a usual one where some are long.
TRIALS, UNIFORM_SECONDS, USUAL_SECONDS = 40, 0.5, 0.2
#: How many of a heavy-tailed workload are long, and how many times the usual.
LONG, LONGER = 4, (10.0, 20.0)


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Part of a pool."""

    name: str
    slots: int
    #: A trial takes its seconds divided by this.
    speed: float = 1.0


#: One machine; the same as four, for a system that splits before it starts.
EVEN = (Machine(name="even", slots=4),)
APART = tuple(Machine(name=f"even-{number}", slots=1) for number in range(4))
#: Different in number and speed.
UNEVEN = (
    Machine(name="fast", slots=4),
    Machine(name="middling", slots=2, speed=0.5),
    Machine(name="slow", slots=1, speed=0.25),
)


def uniform(seed: int = 0) -> list[float]:
    """All alike; ``seed`` changes nothing."""
    return [UNIFORM_SECONDS] * TRIALS


def heavy(seed: int = 0) -> list[float]:
    """Most around the usual, some 10 to 20 times as long, anywhere in the list."""
    draw = random.Random(seed)
    usual = [USUAL_SECONDS * draw.uniform(0.5, 1.5) for _ in range(TRIALS - LONG)]
    seconds = usual + [USUAL_SECONDS * draw.uniform(*LONGER) for _ in range(LONG)]
    draw.shuffle(seconds)
    return [round(one, 3) for one in seconds]


def heavy_last(seed: int = 0) -> list[float]:
    """The same with the longest at the end of the list, where a queue finds it last."""
    seconds = heavy(seed)
    longest = max(seconds)
    seconds.remove(longest)
    return [*seconds, longest]


#: By the names they have in tables.
WORKLOADS: Mapping[str, Callable[[int], list[float]]] = {
    "uniform": uniform,
    "heavy-tailed": heavy,
    "longest last": heavy_last,
}


def bound(seconds: Sequence[float], pool: Sequence[Machine]) -> float:
    """No schedule ends sooner: all slots busy to the end, and the longest trial on the fastest machine."""
    power = sum(machine.slots * machine.speed for machine in pool)
    return max(sum(seconds) / power, max(seconds) / max(machine.speed for machine in pool))


def split(count: int, pool: Sequence[Machine], *, by_speed: bool = False) -> list[list[int]]:
    """Who gets which trials when all is decided before the start: list indices per machine, dealt by weight in turn.

    A machine's weight is its slots; ``by_speed``: slots times speed, as if somebody had measured them.
    """
    weights = [machine.slots * (machine.speed if by_speed else 1.0) for machine in pool]
    shares: list[list[int]] = [[] for _ in pool]
    for index in range(count):
        # The one that has least for its weight; the earlier one where two are equal.
        place = min(range(len(pool)), key=lambda at: ((len(shares[at]) + 1) / weights[at], at))
        shares[place].append(index)
    return shares


def foresighted(seconds: Sequence[float], pool: Sequence[Machine]) -> float:
    """What a planner reaches that knows every duration and speed: longest first, each where it ends soonest.

    No least possible, but near it: where this is above the bound, so is everybody.
    """
    free = [0.0 for machine in pool for _ in range(machine.slots)]
    speeds = [machine.speed for machine in pool for _ in range(machine.slots)]
    for one in sorted(seconds, reverse=True):
        slot = min(range(len(free)), key=lambda at: free[at] + one / speeds[at])
        free[slot] += one / speeds[slot]
    return max(free)
