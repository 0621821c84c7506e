"""How much is measured, and what a row's measuring gives back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks.figures import Line


@dataclass(frozen=True, kw_only=True)
class Size:
    """Repetitions and sizes. The defaults are those of the issue, but for `growth_part`."""

    repeats: int = 5
    #: Trials of 0 s in the row of costs.
    zero_trials: int = 2000
    harbor_tasks: int = 40
    #: Trials of each evaluation of the row of growth, and which of them is run to its end to time the merge.
    growth: tuple[int, ...] = (1000, 10_000, 100_000)
    merged: int = 20_000
    #: Trials of the largest that are run before it is cancelled; None: all.
    growth_part: int | None = 10_000
    #: Slots for growth.
    growth_slots: int = 4
    workers: int = 50
    slots: int = 8
    #: Trials for each slot, and seconds of each.
    waves: int = 3
    wave_seconds: float = 10.0


#: For developing and for a first look: one repetition, small sizes.
QUICK = Size(
    repeats=1,
    zero_trials=400,
    harbor_tasks=12,
    growth=(500, 2000, 10_000),
    merged=2000,
    growth_part=1000,
    workers=6,
    waves=2,
    wave_seconds=3.0,
)


@dataclass(frozen=True, kw_only=True)
class Found:
    """What measuring a row gave."""

    lines: tuple[Line, ...]
    facts: Mapping[str, Any] = field(default_factory=dict)
