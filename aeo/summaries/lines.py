"""One line for each planned trial: what every table shows, with its result once it has one."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from aeo.codec import loads
from aeo.core.model import Outcome, TrialRow
from aeo.summaries.book import Book

#: What a table can be sorted by, and the column it is.
SORTS: Mapping[str, str] = {
    "planned": "position",
    "trial": "trial",
    "task": "task",
    "agent": "agent",
    "model": "model",
    "dataset": "dataset",
    "category": "category",
    "difficulty": "difficulty",
    "attempt": "attempt",
    "estimated": "estimated",
    "outcome": "outcome",
    "reward": "reward",
    "seconds": "seconds",
    "started": "started",
    "finished": "finished",
    "tokens": "input_tokens + COALESCE(output_tokens, 0)",
    "input_tokens": "input_tokens",
    "output_tokens": "output_tokens",
    "cost": "cost",
    "error": "NULLIF(error, '')",
    "worker": "NULLIF(worker, '')",
    "run": "run",
    "committed": "committed",
}
#: Lines read at once by `each`; between two reads nobody is kept waiting.
_CHUNK = 1000
_COLUMNS = (
    "l.position, trial, task, attempt, estimated, outcome, reward_name, reward, seconds, started, finished, "
    "input_tokens, cache_tokens, output_tokens, cost, error, worker, run, committed, labels, row"
)
_JOIN = "FROM lines l JOIN texts t ON t.evaluation = l.evaluation AND t.position = l.position"
_WHICH = "evaluation = (SELECT number FROM evaluations WHERE id = ?)"


@dataclass(frozen=True, kw_only=True)
class Line:
    """A planned trial and its committed result; what comes of the result is None or empty before there is one."""

    trial: str
    task: str
    #: In the plan, from 0.
    position: int
    #: ``agent``, ``model``, ``dataset``, ``category``, ``difficulty`` and others, as planned.
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Which of the attempts of this agent and model on this task it is, from 1.
    attempt_number: int = 1
    estimated_seconds: float = 0.0
    outcome: Outcome | None = None
    #: The main reward: the one named ``reward``, else the first by name.
    reward: float | None = None
    reward_name: str = ""
    rewards: Mapping[str, float] = field(default_factory=dict)
    #: Wall time.
    seconds: float | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: Phase name to seconds, in the order they ran.
    phases: Mapping[str, float] = field(default_factory=dict)
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    #: US dollars; None is unknown.
    cost_usd: float | None = None
    error_type: str = ""
    error_message: str = ""
    worker: str = ""
    #: 1 for the first run of the trial, 2 after one requeue; 0 before any, and when it was cancelled before it ran.
    run: int = 0
    committed_at: datetime | None = None
    #: Files the transfer dropped or cut.
    notes: tuple[str, ...] = ()
    #: Evaluation and trial, ``id/name``, that the result was taken over from; empty: it ran for this evaluation.
    origin: str = ""
    #: The committed row as JSON; see `row`.
    row_text: str = field(default="", repr=False)

    @property
    def agent(self) -> str:
        return self.labels.get("agent", "")

    @property
    def model(self) -> str:
        return self.labels.get("model", "")

    @property
    def dataset(self) -> str:
        return self.labels.get("dataset", "")

    @property
    def category(self) -> str:
        return self.labels.get("category", "")

    @property
    def difficulty(self) -> str:
        return self.labels.get("difficulty", "")


def row(line: Line) -> TrialRow | None:
    """The committed row a line was made from; None before there is one."""
    return loads(TrialRow, line.row_text) if line.row_text else None


def page(
    book: Book,
    id: str,
    *,
    offset: int = 0,
    limit: int = 50,
    sort: str = "planned",
    descending: bool = False,
    search: str = "",
    outcome: Outcome | None = None,
    task: str | None = None,
    worker: str | None = None,
    error: str | None = None,
    agent: str | None = None,
    model: str | None = None,
    dataset: str | None = None,
    category: str | None = None,
    difficulty: str | None = None,
    done: bool | None = None,
    only: Collection[str] | None = None,
    without: Collection[str] = (),
    running_there: Collection[str] = (),
) -> tuple[list[Line], int]:
    """A page of an evaluation's lines, and how many match in all.

    ``sort`` is one of `SORTS`; unknown values stand last both ways. ``search`` is looked for in trial, task, error
    type, worker, agent and model. ``done``: with or without a result. ``only`` and ``without`` are trial names;
    ``running_there`` those that run at ``worker`` now, as the book only knows who finished what.

    Raises:
        KeyError: there is no such sort.
        Unavailable: the summaries cannot be read.
    """
    equal = {
        "outcome": None if outcome is None else outcome.value,
        **{"task": task, "error": error, "agent": agent, "model": model},
        **{"dataset": dataset, "category": category, "difficulty": difficulty},
    }
    where, values = [f"l.{_WHICH}"], [id]
    for column, value in equal.items():
        if value is not None:
            where.append(f"l.{column} = ?")
            values.append(value)
    if worker is not None:
        where.append("(l.worker = ? OR l.trial IN (SELECT value FROM json_each(?)))")
        values += [worker, json.dumps(list(running_there))]
    if done is not None:
        where.append(f"l.committed IS {'NOT ' if done else ''}NULL")
    if only is not None:
        where.append("l.trial IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(only)))
    if without:
        where.append("l.trial NOT IN (SELECT value FROM json_each(?))")
        values.append(json.dumps(list(without)))
    if search:
        looked = ("trial", "task", "error", "worker", "agent", "model")
        where.append("(" + " OR ".join(f"l.{column} LIKE ? ESCAPE '\\'" for column in looked) + ")")
        values += [like(search)] * len(looked)
    return _paged(book, " AND ".join(where), values, _order(sort, descending), offset, limit)


def _order(sort: str, descending: bool) -> str:
    column, way = SORTS[sort], "DESC" if descending else "ASC"
    # Planned is the order of the file itself: anything more would sort it again.
    return f"position {way}" if sort == "planned" else f"({column}) IS NULL, {column} {way}, position"


def _paged(book: Book, where: str, values: list[str], order: str, offset: int, limit: int) -> tuple[list[Line], int]:
    # The narrow table is sorted first, then only what is shown is read whole.
    chosen = f"SELECT l.evaluation, l.position FROM lines l WHERE {where} ORDER BY {order} LIMIT ? OFFSET ?"
    with book.read() as connection:
        total = connection.execute(f"SELECT COUNT(*) FROM lines l WHERE {where}", values).fetchone()[0]
        places = connection.execute(chosen, (*values, limit, offset)).fetchall()
        whole = f"SELECT {_COLUMNS} {_JOIN} WHERE l.evaluation = ? AND l.position = ?"
        found = [connection.execute(whole, place).fetchone() for place in places]
    return [_line(values) for values in found if values], int(total)


def like(text: str) -> str:
    """A pattern of LIKE for what contains this text as it is."""
    return "%" + text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"


def one(book: Book, id: str, trial: str) -> Line | None:
    """The line of one trial; None if the evaluation has no such.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    with book.read() as connection:
        return _one(connection, id, trial)


def _one(connection: sqlite3.Connection, id: str, trial: str) -> Line | None:
    query = f"SELECT {_COLUMNS} {_JOIN} WHERE l.{_WHICH} AND l.trial = ?"
    found = connection.execute(query, (id, trial)).fetchone()
    return None if found is None else _line(found)


def neighbours(book: Book, id: str, trial: str) -> tuple[str | None, str | None]:
    """The trials planned before and after one; None at the ends.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    near = f"""
        SELECT n.trial, n.position - l.position FROM lines l JOIN lines n
        ON n.evaluation = l.evaluation AND n.position IN (l.position - 1, l.position + 1)
        WHERE l.{_WHICH} AND l.trial = ?"""
    with book.read() as connection:
        found = {step: name for name, step in connection.execute(near, (id, trial))}
    return found.get(-1), found.get(1)


def each(book: Book, id: str) -> Iterator[Line]:
    """Every line in planned order, read in chunks.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = f"SELECT {_COLUMNS} {_JOIN} WHERE l.{_WHICH} AND l.position >= ? ORDER BY l.position LIMIT {_CHUNK}"
    position = 0
    while True:
        with book.read() as connection:
            found = connection.execute(query, (id, position)).fetchall()
        yield from map(_line, found)
        if len(found) < _CHUNK:
            return
        position = found[-1][0] + 1


def _line(values: tuple[Any, ...]) -> Line:
    position, trial, task, attempt, estimated, outcome, reward_name, reward, seconds, started, finished = values[:11]
    input_tokens, cache_tokens, output_tokens, cost, error, worker, run, committed, labels, text = values[11:]
    raw = json.loads(text) if text else {"summary": {}}
    summary = raw["summary"]
    return Line(
        trial=trial,
        task=task,
        position=position,
        labels=json.loads(labels),
        attempt_number=attempt,
        estimated_seconds=estimated,
        outcome=None if outcome is None else Outcome(outcome),
        reward=reward,
        reward_name=reward_name,
        rewards=summary.get("rewards", {}),
        seconds=seconds,
        started_at=moment(started),
        finished_at=moment(finished),
        phases=summary.get("phases", {}),
        input_tokens=input_tokens,
        cache_tokens=cache_tokens,
        output_tokens=output_tokens,
        cost_usd=cost,
        error_type=error,
        error_message=summary.get("error_message", ""),
        worker=worker,
        run=run,
        committed_at=moment(committed),
        notes=tuple(raw.get("notes", ())),
        origin=raw.get("origin", ""),
        row_text=text or "",
    )


def moment(seconds: float | None) -> datetime | None:
    """A time as the file has it."""
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=timezone.utc)
