"""Trials to play through, as `aeo simulate` is told them: from a table, drawn from a distribution, or all alike."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from random import Random

from aeo.cli import numbers
from aeo.cli.answers import clean
from aeo.core.errors import InputError
from aeo.core.model import Needs
from aeo.core.words import count, plain

#: Columns of a table: the first two must be there.
COLUMNS = ("task", "seconds", "cpus", "memory_mb", "estimated")
#: Longest trial, seconds: 30 years. Sums and speeds stay finite with it.
LONGEST = 10**9
#: Most trials.
MOST = 1_000_000
#: Widest spread: already at 4 the longest of a thousand trials is some 100,000 times the median.
WIDEST = 10
#: Largest number of the other columns.
_LARGEST = {"seconds": LONGEST, "estimated": LONGEST, "cpus": 10**6, "memory_mb": 10**9}
_FIX = f"The columns are {','.join(COLUMNS)}; the first two must be there."


@dataclass(frozen=True, kw_only=True)
class Row:
    """A trial."""

    task: str
    #: What it takes at speed 1, and what it is expected to.
    seconds: float
    expected: float
    needs: Needs
    #: ``provider/model``; empty if there is none.
    model: str = ""


def alike(seconds: Iterable[float]) -> list[Row]:
    """Trials of which only the durations are known."""
    return [
        Row(task=f"task-{number}", seconds=one, expected=one, needs=Needs()) for number, one in enumerate(seconds, 1)
    ]


def drawn(median: float, sigma: float, number: int, seed: int) -> list[float]:
    """Seconds of so many trials, log-normal: half are shorter than ``median``; ``sigma`` 0 makes all alike."""
    random = Random(seed)  # noqa: S311 - no secret
    return [median * math.exp(random.gauss(0.0, sigma)) for _ in range(number)]


def of_distribution(text: str, number: int, seed: int) -> list[float]:
    """Seconds of so many trials, of the distribution that ``MEDIAN,SIGMA`` says.

    Raises:
        InputError: it says none, or one whose trials are too long.
    """
    parts = text.split(",")
    median = numbers.read(parts[0], 0, LONGEST, above=True)
    sigma = numbers.read(parts[1], 0, WIDEST) if len(parts) == 2 else None
    if median is None or sigma is None:
        raise InputError(
            f"{clean(text)!r} is not MEDIAN,SIGMA such as 300,1.2.",
            field="--lognormal",
            fix=f"MEDIAN is {numbers.allowed(0, LONGEST, above=True)} (seconds), SIGMA {numbers.allowed(0, WIDEST)}.",
        )
    seconds = drawn(median, sigma, number, seed)
    if max(seconds) > LONGEST:
        raise InputError(
            f"draws trials of more than {plain(LONGEST)} seconds.",
            field="--lognormal",
            fix="Give a smaller MEDIAN or SIGMA.",
        )
    return seconds


def read(file: str) -> list[Row]:
    """The trials of a table: comma-separated, with a header; ``-`` is standard input.

    Raises:
        InputError: it cannot be read, or is no such table; the message has the line.
    """
    with ExitStack() as stack:
        lines: Iterable[str] = sys.stdin
        try:
            if file != "-":
                lines = stack.enter_context(Path(file).open(newline="", encoding="utf-8-sig"))
            return _rows(file, lines)
        except UnicodeDecodeError:
            raise InputError("is no UTF-8 text.", field=file, fix="Save the table as CSV in UTF-8.") from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise InputError(f"cannot be read: {reason}.", field=file) from None


def _rows(file: str, lines: Iterable[str]) -> list[Row]:
    reader = csv.reader(lines)
    found: list[Row] = []
    try:
        first = next(reader, None)
        if first is None:
            raise InputError("is empty.", field=file, fix=_FIX)
        names = _names(f"{file}:{reader.line_num}", first)
        for cells in reader:
            # Programs that write tables leave lines without anything at their end.
            if not any(map(str.strip, cells)):
                continue
            found.append(_row(f"{file}:{reader.line_num}", names, cells))
            if len(found) > MOST:
                raise InputError(f"has more than {MOST} trials.", field=file, fix="Leave some out.")
    except csv.Error as error:
        raise InputError(f"is no CSV: {error}.", field=f"{file}:{reader.line_num}") from None
    if not found:
        raise InputError("has a header and no trial.", field=file, fix="Give a line for each trial below it.")
    return found


def _names(place: str, cells: Sequence[str]) -> list[str]:
    # Standard input is read as it is, with the mark that some programs begin a text with.
    names = [cell.removeprefix("\ufeff").strip() for cell in cells]
    if not any(names):
        raise InputError("has no header.", field=place, fix=_FIX)
    for mark, what in ((";", "';'"), ("\t", "tabs"), ("|", "'|'")):
        if len(names) == 1 and mark in names[0]:
            raise InputError(f"has {what} between its columns.", field=place, fix="Separate them with ','.")
    for name in names:
        if name not in COLUMNS:
            raise InputError(
                f"has the unknown column {clean(name)!r}." if name else "has a column without a name.",
                field=place,
                fix=f"Leave it out or rename it. {_FIX}",
            )
        if names.count(name) > 1:
            raise InputError(f"has the column {name!r} twice.", field=place, fix="Leave one out.")
    missing = [name for name in COLUMNS[:2] if name not in names]
    if missing:
        raise InputError(f"lacks the column {missing[0]!r}.", field=place, fix=_FIX)
    return names


def _row(place: str, names: Sequence[str], cells: Sequence[str]) -> Row:
    if len(cells) != len(names):
        fix = "Give one for each column, empty ones too; a ',' inside a field needs quotes around the field."
        raise InputError(f"has {count(len(cells), 'field')}, the header {len(names)}.", field=place, fix=fix)
    row = dict(zip(names, map(str.strip, cells), strict=True))
    if not row["seconds"]:
        raise InputError("has no seconds.", field=place, fix="Give what the trial takes.")
    seconds = _number(place, row, "seconds")
    return Row(
        task=row["task"],
        seconds=seconds,
        expected=_number(place, row, "estimated", seconds),
        needs=Needs(cpus=_number(place, row, "cpus"), memory_mb=math.ceil(_number(place, row, "memory_mb"))),
    )


def _number(place: str, row: Mapping[str, str], name: str, otherwise: float = 0.0) -> float:
    text = row.get(name, "")
    if not text:
        return otherwise
    value = numbers.read(text, 0, _LARGEST[name])
    if value is None:
        raise InputError(f"{clean(text)!r} is not {numbers.allowed(0, _LARGEST[name])}.", field=f"{place}: {name}")
    return value
