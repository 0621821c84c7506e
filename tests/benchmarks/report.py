"""What was measured, for people: a table on the terminal, and RESULTS.md."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Line, Row
from rich.console import Console
from rich.table import Table

#: Why reaches are missed, by "row, what, system" or by row; written by hand, from a profile.
EXPLAINED = Path(__file__).with_name("explained.json")
_VERDICTS = {True: "met", False: "MISSED", None: ""}


def number(value: float) -> str:
    """Three digits that matter."""
    return (
        f"{value:,.0f}"
        if abs(value) >= 100
        else f"{value:.3g}"
        if abs(value) >= 10
        else f"{value:.3f}".rstrip("0").rstrip(".")
    )


def _spread(line: Line) -> str:
    return f"{number(min(line.values))} to {number(max(line.values))}" if len(line.values) > 1 else ""


def show(rows: Sequence[Row], console: Console, *, old: Mapping[str, str]) -> None:
    """Print every row; ``old`` ones, by name, with the time they were measured at."""
    for row in rows:
        kept = f" (not measured now, but {old[row.name]})" if row.name in old else ""
        table = Table(title=row.title + kept, title_justify="left", title_style="bold")
        for head in ("what", "system", "median", "unit", "range", "reach", "", "note"):
            table.add_column(head, justify="right" if head in ("median", "range") else "left")
        for line in row.lines:
            verdict = {True: "[green]met[/]", False: "[red]MISSED[/]", None: ""}[line.met]
            table.add_row(
                line.what, line.system, number(line.value), line.unit, _spread(line), line.reach, verdict, line.note
            )
        console.print(table)
        if row.failure:
            console.print(f"not measured: {row.failure}", style="red", markup=False)
    for text in _missed(rows):
        console.print(text, markup=False)


def markdown(rows: Sequence[Row], about: Mapping[str, Any]) -> str:
    """RESULTS.md."""
    return "\n".join(_markdown(rows, about)) + "\n"


def _markdown(rows: Sequence[Row], about: Mapping[str, Any]) -> Iterator[str]:
    yield "# Results of the benchmark\n"
    yield f"Written by `{about['command']}`; do not edit. What each row does and how to run it: [README](README.md).\n"
    for key, value in about["machine"].items():
        yield f"- {key}: {value}"
    yield ""
    yield from _summary(rows)
    for row in rows:
        yield f"\n## {row.title}\n"
        if row.failure:
            yield f"Not measured: {row.failure.splitlines()[-1]}\n"
            continue
        runs = "one run" if row.repeats == 1 else f"medians of {row.repeats}"
        facts = ", ".join(f"{key}: {value}" for key, value in row.facts.items() if value != "")
        yield f"`{row.name}`, {runs}, {row.at}, {row.seconds:.0f} s, load before it {row.load:.1f}. {facts}\n"
        yield "| what | system | median | unit | range | reach | |"
        yield "|---|---|--:|---|--:|---|---|"
        for line in row.lines:
            cells = (
                line.what,
                line.system,
                number(line.value),
                line.unit,
                _spread(line),
                line.reach,
                _VERDICTS[line.met],
            )
            note = f" ({line.note})" if line.note else ""
            yield "| " + " | ".join((cells[0], cells[1] + note, *cells[2:])) + " |"


def summary(row: Row) -> str:
    """One row in half a line."""
    judged = [line.met for line in row.lines if line.met is not None]
    return f"not measured: {row.failure}" if row.failure else f"{sum(judged)} of {len(judged)} reaches met"


def _summary(rows: Sequence[Row]) -> Iterator[str]:
    judged = [(row, line) for row in rows for line in row.lines if line.met is not None]
    yield f"{sum(bool(line.met) for _, line in judged)} of {len(judged)} reaches are met."
    yield from _missed(rows)


def _missed(rows: Sequence[Row]) -> Iterator[str]:
    """What was missed, each with why that is."""
    why = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    missed = [(row, line) for row in rows for line in row.lines if line.met is False]
    for row, line in missed:
        yield f"- missed: {row.name}, {line.what}, {line.system}: {number(line.value)} {line.unit}, reach {line.reach}"
        if found := why.get(f"{row.name}, {line.what}, {line.system}") or why.get(row.name):
            yield f"  {found}"
