"""The small drawings that templates write as SVG themselves: progress by outcome, sparklines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from aeo.core.model import Outcome
from aeo.store.evaluations import EvaluationStatus

#: Width of a drawing in its own units; the page stretches it.
WIDTH = 100.0
#: Height of a sparkline in the same way.
HEIGHT = 24.0

#: What a progress bar shows, from the left: CSS kind and where its number is.
_ORDER = (Outcome.SCORED, Outcome.INVALID, Outcome.INFRA_ERROR, Outcome.CANCELLED)


@dataclass(frozen=True, kw_only=True)
class Segment:
    """One part of a stacked bar."""

    #: An outcome or a trial state, as in the CSS (``fill-<kind>``).
    kind: str
    count: int
    x: float
    width: float


def segments(status: EvaluationStatus) -> list[Segment]:
    """Return the parts of the progress bar of ``status``, none of them empty; what is pending is the ground."""
    counts = [(outcome.value, status.outcomes.get(outcome, 0)) for outcome in _ORDER]
    counts += [("pushed", status.pushed), ("running", status.running)]
    total = max(status.total, sum(count for _, count in counts), 1)
    made: list[Segment] = []
    x = 0.0
    for kind, count in counts:
        if count > 0:
            width = WIDTH * count / total
            made.append(Segment(kind=kind, count=count, x=round(x, 3), width=round(width, 3)))
            x += width
    return made


def sparkline(values: Sequence[float | None], low: float | None = None, high: float | None = None) -> list[str]:
    """Return the ``points`` of polylines for ``values`` at even distances; a gap at each None.

    ``low`` and ``high`` bound the scale; without them the values do, and equal values lie in the middle.
    """
    known = [value for value in values if value is not None]
    if not known:
        return []
    bottom = min(known) if low is None else low
    top = max(known) if high is None else high
    step = WIDTH / max(len(values) - 1, 1)
    lines: list[list[str]] = [[]]
    for index, value in enumerate(values):
        if value is None:
            lines.append([])
            continue
        share = 0.5 if top <= bottom else min(max((value - bottom) / (top - bottom), 0.0), 1.0)
        # One unit of room, so that the stroke is not cut.
        lines[-1].append(f"{index * step:.1f},{1 + (HEIGHT - 2) * (1 - share):.1f}")
    # A lone point is drawn as a short stroke.
    return [" ".join(line if len(line) > 1 else line * 2) for line in lines if line]
