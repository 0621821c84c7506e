"""What the charts of one evaluation are drawn from."""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from heapq import heappop, heappush
from operator import itemgetter
from typing import NamedTuple

from aeo.core.model import Outcome
from aeo.summaries.book import Book


class Column(NamedTuple):
    """One attempt of one agent and model."""

    agent: str
    model: str
    attempt: int


class Cell(NamedTuple):
    """One trial in the heat map."""

    #: Indices into the map's tasks and columns.
    task: int
    column: int
    trial: str
    #: "" before there is a result; then the value of an `Outcome`.
    outcome: str
    reward: float | None
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Heat:
    """Tasks against attempts."""

    #: With their dataset before them where there are several.
    tasks: tuple[str, ...]
    columns: tuple[Column, ...]
    #: In planned order.
    cells: tuple[Cell, ...]


class Bar(NamedTuple):
    """A trial's run on the slot of a worker."""

    trial: str
    worker: str
    #: From 0; runs of one worker that overlap are in different lanes.
    lane: int
    started_at: datetime
    finished_at: datetime
    outcome: Outcome


@dataclass(frozen=True)
class Bin:
    """How many values are from ``low`` on and below ``high`` (the last bin: up to it)."""

    low: float
    high: float
    count: int


def heatmap(book: Book, id: str) -> Heat:
    """Every trial of an evaluation by task, and by agent, model and attempt.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, "heat", _heat)


def _heat(connection: sqlite3.Connection, number: int) -> Heat:
    query = """
        SELECT dataset, task, agent, model, attempt, trial, COALESCE(outcome, ''), reward, seconds FROM lines
        WHERE evaluation = ? ORDER BY position"""
    found = connection.execute(query, (number,)).fetchall()
    several = len({item[0] for item in found}) > 1
    columns = sorted({item[2:5] for item in found})
    place = {column: index for index, column in enumerate(columns)}
    tasks: dict[tuple[str, str], int] = {}
    cells = tuple(Cell(tasks.setdefault(item[:2], len(tasks)), place[item[2:5]], *item[5:]) for item in found)
    names = tuple(f"{dataset}/{task}" if several and dataset else task for dataset, task in tasks)
    return Heat(tasks=names, columns=tuple(Column(*column) for column in columns), cells=cells)


def timeline(book: Book, id: str) -> list[Bar]:
    """The runs that gave an evaluation's results, by worker, lane and start; not of results that were taken over.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, "timeline", _timeline)


def _timeline(connection: sqlite3.Connection, number: int) -> list[Bar]:
    query = """
        SELECT worker, started, finished, trial, outcome FROM lines
        WHERE evaluation = ? AND started IS NOT NULL AND finished IS NOT NULL AND NOT carried
        ORDER BY worker, started, finished"""
    found = connection.execute(query, (number,)).fetchall()
    outcomes = {outcome.value: outcome for outcome in Outcome}
    bars = [
        Bar(trial, worker, lane, _moment(started), _moment(finished), outcomes[outcome])
        for (worker, started, finished, trial, outcome), lane in zip(found, _lanes(found), strict=True)
    ]
    # Within a lane they are in the order of their starts already.
    return sorted(bars, key=itemgetter(1, 2))


def _lanes(runs: Iterable[tuple[str, float, float, str, str]]) -> list[int]:
    """The first lane free for each run, of runs ordered by worker and start."""
    lanes: list[int] = []
    now = ""
    busy: list[tuple[float, int]] = []
    free: list[int] = []
    for worker, started, finished, *_ in runs:
        if worker != now or not lanes:
            now, busy, free = worker, [], []
        while busy and busy[0][0] <= started:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (finished, lane))
        lanes.append(lane)
    return lanes


def histogram(book: Book, id: str, bins: int = 30) -> list[Bin]:
    """How long an evaluation's trials took, seconds, in at most so many bins of one width; empty when none has ended.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, f"histogram {bins}", lambda connection, number: _histogram(connection, number, bins))


def _histogram(connection: sqlite3.Connection, number: int, bins: int) -> list[Bin]:
    query = "SELECT seconds FROM lines WHERE evaluation = ? AND seconds IS NOT NULL"
    values = [value for (value,) in connection.execute(query, (number,))]
    if not values:
        return []
    least, most = min(values), max(values)
    if least == most:
        return [Bin(least, most, len(values))]
    width = (most - least) / bins
    counts = [0] * bins
    for value in values:
        counts[min(bins - 1, math.floor((value - least) / width))] += 1
    return [Bin(least + index * width, least + (index + 1) * width, count) for index, count in enumerate(counts)]


def _moment(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, tz=timezone.utc)
