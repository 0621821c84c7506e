"""Counts over an evaluation's results."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from aeo.core.model import Outcome
from aeo.summaries.book import Book

#: Trials from which durations are learned: more would teach nothing further.
RECENT = 1000
_WHICH = "evaluation = (SELECT number FROM evaluations WHERE id = ?)"


@dataclass(frozen=True)
class ErrorCount:
    """How many results have this error type and outcome."""

    type: str
    count: int
    outcome: Outcome


@dataclass(frozen=True, kw_only=True)
class WorkerCount:
    """What one worker gave an evaluation."""

    #: Every outcome with how many had it.
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    #: Wall time of its results in all.
    seconds: float = 0.0

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())


def errors(book: Book, id: str) -> list[ErrorCount]:
    """Error types of an evaluation's results, the most frequent first.

    Raises:
        Unavailable: the summaries cannot be read.
    """

    def look(connection: sqlite3.Connection, number: int) -> list[ErrorCount]:
        query = """
            SELECT error, COUNT(*), outcome FROM lines WHERE evaluation = ? AND error != ''
            GROUP BY error, outcome ORDER BY COUNT(*) DESC, error, outcome"""
        found = connection.execute(query, (number,))
        return [ErrorCount(type, count, Outcome(outcome)) for type, count, outcome in found]

    return book.known(id, "errors", look)


def worker_counts(book: Book, id: str) -> dict[str, WorkerCount]:
    """Results by worker; those of no worker, and those taken over, are left out.

    Raises:
        Unavailable: the summaries cannot be read.
    """

    def look(connection: sqlite3.Connection, number: int) -> dict[str, WorkerCount]:
        query = """
            SELECT worker, outcome, COUNT(*), SUM(COALESCE(seconds, 0)) FROM lines
            WHERE evaluation = ? AND outcome IS NOT NULL AND worker != '' AND NOT carried
            GROUP BY worker, outcome ORDER BY worker"""
        outcomes: dict[str, dict[Outcome, int]] = {}
        spent: dict[str, float] = {}
        for worker, outcome, count, seconds in connection.execute(query, (number,)):
            outcomes.setdefault(worker, {})[Outcome(outcome)] = count
            spent[worker] = spent.get(worker, 0.0) + seconds
        return {worker: WorkerCount(outcomes=outcomes[worker], seconds=spent[worker]) for worker in outcomes}

    return book.known(id, "workers", look)


def waiting_estimates(book: Book, id: str) -> dict[str, float]:
    """Estimated seconds of the trials without a result, by name.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = f"SELECT trial, estimated FROM lines WHERE {_WHICH} AND committed IS NULL"
    with book.read() as connection:
        return dict(connection.execute(query, (id,)).fetchall())


def durations(book: Book, id: str) -> list[tuple[float, float]]:
    """Actual and estimated seconds of the trials that ran to their end, the `RECENT` last ones.

    Raises:
        Unavailable: the summaries cannot be read.
    """

    def look(connection: sqlite3.Connection, number: int) -> list[tuple[float, float]]:
        query = f"""
            SELECT seconds, estimated FROM lines
            WHERE evaluation = ? AND seconds IS NOT NULL AND outcome IN ('scored', 'invalid')
            ORDER BY committed DESC LIMIT {RECENT}"""
        return connection.execute(query, (number,)).fetchall()

    return book.known(id, "durations", look)


def ended(book: Book, id: str, names: Collection[str]) -> dict[str, float | None]:
    """Main rewards of those of these trials that have a result, by name; None where there is none to score by.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = f"""
        SELECT trial, CASE outcome WHEN 'scored' THEN reward END FROM lines
        WHERE {_WHICH} AND committed IS NOT NULL AND trial IN (SELECT value FROM json_each(?))"""
    with book.read() as connection:
        return dict(connection.execute(query, (id, json.dumps(list(names)))).fetchall())


def took(book: Book, id: str) -> dict[str, tuple[float, str]]:
    """Seconds and worker of the trials that ran, by name; those that were taken over did not.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    ran = f"{_WHICH} AND seconds IS NOT NULL AND run > 0 AND NOT carried"
    query = f"SELECT trial, seconds, worker FROM lines WHERE {ran}"
    with book.read() as connection:
        return {trial: (seconds, worker) for trial, seconds, worker in connection.execute(query, (id,))}
