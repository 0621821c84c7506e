"""What was measured: moments of one run, lines of a row, and the row as it is kept."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Moments:
    """One run of one system, in seconds since the epoch."""

    #: When it was asked to run, all programs being up and all modules loaded.
    called: float
    #: Start and end of each trial, told by the trial itself.
    spans: tuple[tuple[float, float], ...]
    #: When the last result was safely stored, as far as the system tells.
    stored: float
    #: When the whole was complete: aggregated, merged, closed.
    returned: float

    @property
    def first_start(self) -> float:
        """When the first trial began."""
        return min(start for start, _ in self.spans)

    @property
    def makespan(self) -> float:
        """Seconds from the first trial's start to the last result stored."""
        return self.stored - self.first_start

    @property
    def wait(self) -> float:
        """Seconds from the call to the first trial's start."""
        return self.first_start - self.called

    @property
    def whole(self) -> float:
        """Seconds from the call to the end of everything."""
        return self.returned - self.called


def moments(raw: Mapping[str, Any]) -> Moments:
    """As a peer's program prints them."""
    spans = tuple((start, end) for start, end in raw["spans"])
    return Moments(called=raw["called"], spans=spans, stored=raw["stored"], returned=raw["returned"])


@dataclass(frozen=True, kw_only=True)
class Line:
    """One figure of a table: a value for each repetition, of which the median counts."""

    #: What is measured, and on which system.
    what: str
    system: str
    unit: str
    values: tuple[float, ...]
    #: The median has to be at most, or at least, this; None: only shown.
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The median."""
        return median(self.values)

    @property
    def met(self) -> bool | None:
        """Whether the reach is met; None if there is none."""
        if self.at_most is None and self.at_least is None:
            return None
        low = -float("inf") if self.at_least is None else self.at_least
        return low <= self.value <= (float("inf") if self.at_most is None else self.at_most)

    @property
    def reach(self) -> str:
        """The reach for people; empty if there is none."""
        most = "" if self.at_most is None else f"≤ {self.at_most:g}"
        least = "" if self.at_least is None else f"≥ {self.at_least:g}"
        return " ".join(part for part in (least, most) if part)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A row of the issue's table, measured."""

    name: str
    title: str
    lines: tuple[Line, ...] = ()
    #: Sizes, and whatever helps to understand the figures.
    facts: Mapping[str, Any] = field(default_factory=dict)
    #: Why there are no figures; empty if there are.
    failure: str = ""
    repeats: int = 0
    #: How long measuring took, seconds; when it ended, UTC; the load of the machine before it.
    seconds: float = 0.0
    at: str = ""
    load: float = 0.0
    #: Version of what was measured; rows of others are not kept by ``--resume``.
    revision: str = ""

    def plain(self) -> dict[str, Any]:
        """As JSON."""
        lines = [{**asdict(line), "value": line.value, "met": line.met} for line in self.lines]
        return {**asdict(self), "lines": lines}


def row(raw: Mapping[str, Any]) -> Row:
    """Read what `Row.plain` wrote."""
    derived = ("value", "met")
    lines = tuple(
        Line(**{key: tuple(value) if key == "values" else value for key, value in line.items() if key not in derived})
        for line in raw["lines"]
    )
    return Row(**{**raw, "lines": lines})


@dataclass(kw_only=True)
class Series:
    """Collects values over repetitions, by what and system, in the order they first came."""

    unit: str
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)

    def add(self, what: str, system: str, value: float) -> None:
        """One more repetition's."""
        self.values.setdefault((what, system), []).append(value)

    def of(self, what: str, system: str) -> tuple[float, ...]:
        """All repetitions of one figure."""
        return tuple(self.values.get((what, system), ()))

    def line(self, what: str, system: str, **more: Any) -> Line:
        """One figure as a line."""
        return Line(what=what, system=system, unit=self.unit, values=self.of(what, system), **more)


def ratios(above: Sequence[float], below: Sequence[float]) -> tuple[float, ...]:
    """Repetition by repetition: what was measured beside each other is compared."""
    return tuple(one / other for one, other in zip(above, below, strict=True))


def in_turn(systems: Sequence[str], repetition: int) -> Iterable[str]:
    """The systems in this repetition's order: each is first as often as last."""
    return systems if repetition % 2 == 0 else tuple(reversed(systems))


def now() -> str:
    """UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
