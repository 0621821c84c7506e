"""The table of what a fault did: one row a test, printed at the end of the session and kept in ``table.md``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

#: Name of a row among a test's properties, which also travel from the processes of pytest-xdist.
PROPERTY = "chaos"
_HEADS = ("fault", "trials", "lost", "run twice", "committed twice", "seconds to recover", "why twice, or what else")


@dataclass(frozen=True, kw_only=True)
class Row:
    """What became of the trials under one fault."""

    fault: str
    #: Planned trials.
    trials: int
    #: Planned and not in the job, nor cancelled.
    lost: int
    #: A run began, or came to an end, though an earlier one was not known dead.
    run_twice: int
    #: More than one run counted.
    committed_twice: int
    #: From the fault to the first progress that needed the repair; None: there was nothing to repair.
    seconds: float | None
    #: Why a trial may run twice here; else what is to know.
    note: str = ""

    def cells(self) -> tuple[str, ...]:
        values = (getattr(self, item.name) for item in fields(self))
        return tuple(
            "-" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value) for value in values
        )


def render(rows: Iterable[Row]) -> str:
    """The rows as a Markdown table with aligned columns."""
    lines: list[Sequence[str]] = [_HEADS, *sorted(row.cells() for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(_HEADS))]
    texts = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) + " |" for line in lines
    ]
    texts.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(texts) + "\n"
