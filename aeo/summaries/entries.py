"""What goes into the summaries. Nothing here ever fails its caller: the store and the disk are what counts.

What could not be written is missing from the counts, so whoever looks next enters it again.
"""

from __future__ import annotations

import json
import logging
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from aeo.codec import dumps
from aeo.core.model import Evaluation, PlannedTrial, TrialRow
from aeo.summaries.book import Book

log = logging.getLogger(__name__)

#: SQLite has no larger whole numbers.
_MOST = 2**63 - 1

_LINE = (
    "INSERT OR IGNORE INTO lines (evaluation, position, cell, trial, attempt, estimated, planned, "
    f"agent, model, dataset, task, category, difficulty) VALUES ({', '.join('?' * 13)})"
)
_ROW = (
    "UPDATE lines SET outcome = ?, reward_name = ?, reward = ?, seconds = ?, started = ?, finished = ?, "
    "input_tokens = ?, cache_tokens = ?, output_tokens = ?, cost = ?, error = ?, worker = ?, run = ?, committed = ?, "
    "carried = ? "
    "WHERE evaluation = ? AND position = ?"
)
_GONE = (
    "SELECT evaluation, position FROM lines WHERE evaluation = ? AND committed IS NOT NULL "
    "AND trial IN (SELECT value FROM json_each(?))"
)


def enter(book: Book, evaluation: Evaluation) -> bool:
    """Enter an evaluation with its planned trials, unless it is there; False when it could not be written."""
    return _safely(book, lambda: _enter(book, evaluation))


def put(book: Book, id: str, *rows: TrialRow) -> bool:
    """Put in committed trials, once or again; False when that could not be written or a line is not there."""

    def write() -> bool:
        with book.write() as connection:
            return _put_all(connection, id, rows) == len(rows)

    return _safely(book, write)


def follow(book: Book, id: str, rows: Sequence[TrialRow], *, seen: int, last: str) -> bool:
    """Put in rows from the store's list of commits: now ``seen`` of them are in, and the last is of trial ``last``."""

    def write() -> bool:
        with book.write() as connection:
            _put_all(connection, id, rows)
            connection.execute("UPDATE evaluations SET seen = ?, last = ? WHERE id = ?", (seen, last, id))
        return True

    return _safely(book, write)


def take_back(book: Book, id: str, trials: Collection[str]) -> bool:
    """Take back the results of these trials: the store does not know them any more."""

    def write() -> bool:
        with book.write() as connection:
            number = _number(connection, id)
            gone = connection.execute(_GONE, (number, json.dumps(list(trials)))).fetchall()
            for place in gone:
                connection.execute(_ROW, (None, "", *[None] * 8, "", "", 0, None, 0, *place))
                connection.execute("UPDATE texts SET row = NULL WHERE evaluation = ? AND position = ?", place)
                connection.execute("DELETE FROM others WHERE evaluation = ? AND position = ?", place)
            update = "UPDATE evaluations SET done = done - ?, version = ? WHERE number = ?"
            connection.execute(update, (len(gone), _new_version(), number))
        return True

    return _safely(book, write)


def drop(book: Book, id: str) -> bool:
    """Forget an evaluation."""

    def write() -> bool:
        with book.write() as connection:
            number = _number(connection, id)
            for table in ("cells", "lines", "texts", "others"):
                connection.execute(f"DELETE FROM {table} WHERE evaluation = ?", (number,))
            connection.execute("DELETE FROM evaluations WHERE number = ?", (number,))
        return True

    return _safely(book, write)


def _safely(book: Book, write: Callable[[], bool]) -> bool:
    try:
        return write()
    except (sqlite3.Error, OSError) as error:
        if not book.heal(error) and book.may_complain():
            log.warning("the summaries were not written, which is made up for later: %s", error)
    except Exception:
        log.exception("the summaries were not written")
    return False


def _number(connection: sqlite3.Connection, id: str) -> int | None:
    found = connection.execute("SELECT number FROM evaluations WHERE id = ?", (id,)).fetchone()
    return None if found is None else int(found[0])


def _enter(book: Book, evaluation: Evaluation) -> bool:
    spec, trials = evaluation.spec, evaluation.plan.trials
    with book.write() as connection:
        if _number(connection, evaluation.id) is not None:
            return True
        cursor = connection.execute(
            "INSERT INTO evaluations (id, submitted, owner, executor, words, total, version) "
            f"VALUES ({', '.join('?' * 7)})",
            (
                *(evaluation.id, evaluation.submitted_at.timestamp(), _text(evaluation.owner)),
                spec.executor,
                _words(evaluation.id, spec.name, spec.executor, evaluation.owner, *_of_all(trials)),
                *(len(trials), _new_version()),
            ),
        )
        _enter_trials(connection, cursor.lastrowid, trials)
    return True


def _enter_trials(connection: sqlite3.Connection, number: int | None, trials: Sequence[PlannedTrial]) -> None:
    #: What the trials of one cell have in common, to its number and how many there are so far.
    cells: dict[tuple[str, ...], list[int]] = {}

    def line(position: int, trial: PlannedTrial) -> tuple[Any, ...]:
        label = trial.labels.get
        common = (label("agent"), label("model"), label("dataset"), trial.task, label("category"), label("difficulty"))
        key = tuple(_text(part or "") for part in common)
        cell = cells.setdefault(key, [len(cells), 0])
        cell[1] += 1
        return (number, position, cell[0], _text(trial.name), cell[1], trial.estimated_seconds, trial.planned, *key)

    connection.executemany(_LINE, (line(position, trial) for position, trial in enumerate(trials)))
    connection.executemany(
        "INSERT INTO cells VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
        ((number, cell, *key, planned) for key, (cell, planned) in cells.items()),
    )
    connection.executemany(
        "INSERT OR IGNORE INTO texts (evaluation, position, labels) VALUES (?, ?, ?)",
        ((number, position, dumps(trial.labels)) for position, trial in enumerate(trials)),
    )


def _new_version() -> int:
    return secrets.randbits(62)


def _of_all(trials: Iterable[PlannedTrial]) -> list[str]:
    return sorted({trial.labels.get(name, "") for trial in trials for name in ("agent", "model", "dataset")})


def _words(*parts: str) -> str:
    return _text("\n".join(part for part in parts if part).casefold())


def _put_all(connection: sqlite3.Connection, id: str, rows: Iterable[TrialRow]) -> int:
    """Put in rows; returns for how many there was a line."""
    found = new = 0
    number = _number(connection, id)
    for row in rows:
        line = connection.execute(
            "SELECT position, committed FROM lines WHERE evaluation = ? AND trial = ?", (number, row.summary.trial)
        ).fetchone()
        if line is not None:
            _put_one(connection, (number, line[0]), row)
            found += 1
            new += line[1] is None
    if found:
        update = "UPDATE evaluations SET done = done + ?, version = ? WHERE number = ?"
        connection.execute(update, (new, _new_version(), number))
    return found


def _put_one(connection: sqlite3.Connection, place: tuple[Any, Any], row: TrialRow) -> None:
    summary = row.summary
    main = main_reward(summary.rewards)
    connection.execute(
        _ROW,
        (
            *(summary.outcome.value, _text(main), summary.rewards.get(main), summary.seconds),
            *(_seconds(summary.started_at), _seconds(summary.finished_at)),
            *map(_whole, (summary.input_tokens, summary.cache_tokens, summary.output_tokens)),
            *(summary.cost_usd, _text(summary.error_type), _text(row.worker), _whole(row.attempt)),
            *(row.committed_at.timestamp(), bool(row.origin), *place),
        ),
    )
    connection.execute("UPDATE texts SET row = ? WHERE evaluation = ? AND position = ?", (dumps(row), *place))
    connection.execute("DELETE FROM others WHERE evaluation = ? AND position = ?", place)
    if len(summary.rewards) > 1:
        connection.executemany(
            "INSERT INTO others VALUES (?, ?, ?, ?)",
            [(*place, _text(name), value) for name, value in summary.rewards.items() if name != main],
        )


def main_reward(rewards: Mapping[str, float]) -> str:
    """Name of the reward that tables show: ``reward``, else the first by name; "" where there is none."""
    return "reward" if "reward" in rewards else min(rewards, default="")


def _seconds(moment: datetime | None) -> float | None:
    return None if moment is None else moment.timestamp()


def _whole(number: int | None) -> int | None:
    return None if number is None else max(-_MOST, min(_MOST, number))


def _text(text: str) -> str:
    """Without halves of characters, which no file takes."""
    return text.encode("utf-8", "replace").decode()
