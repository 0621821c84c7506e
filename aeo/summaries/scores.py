"""Scores: mean rewards with their 95 % interval, never without how many of the planned trials they rest on."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aeo.core.model import Outcome
from aeo.core.statistics import Cluster, Interval, interval
from aeo.summaries.book import Book

#: What trials can be grouped by.
GROUPS = ("category", "difficulty", "agent", "model", "dataset", "task")
_SUMS = "COUNT(*), SUM({0}), SUM({0} * {0}), MIN({0}), MAX({0})"


@dataclass(frozen=True, kw_only=True)
class Score:
    """One reward of one agent and model on one dataset."""

    #: Of ``agent``, ``model`` and ``dataset`` those that are known.
    labels: Mapping[str, str]
    #: The reward's name; "" while nothing is scored.
    reward: str
    #: None while nothing is scored.
    mean: float | None
    #: The 95 % interval, clustered by task (see `aeo.core.statistics`); None where nothing can be said.
    low: float | None
    high: float | None
    #: Trials that have this reward: tasks may give different ones.
    count: int
    scored: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class Group:
    """The trials that have something in common."""

    #: What they have in common: a category, an agent...; "" where it is not known.
    name: str
    planned: int
    #: Every outcome with how many had it.
    outcomes: Mapping[Outcome, int] = field(default_factory=dict)
    #: Of the main reward over the scored trials, as in `Score`.
    mean: float | None = None
    low: float | None = None
    high: float | None = None
    #: Mean wall time of the trials that ran.
    seconds: float | None = None
    #: Sum of what is known.
    cost_usd: float | None = None

    @property
    def done(self) -> int:
        return sum(self.outcomes.values())

    @property
    def scored(self) -> int:
        return self.outcomes.get(Outcome.SCORED, 0)


class Tally(NamedTuple):
    """What the scored attempts of one agent and model on one task came to, of one reward."""

    agent: str
    model: str
    dataset: str
    task: str
    category: str
    difficulty: str
    #: The reward's name.
    reward: str
    number: int
    #: Of the rewards, see `Cluster`; None where there are none.
    total: float | None
    squares: float | None
    least: float | None
    most: float | None
    #: Whether the reward is one beside the main one: the trials were counted already.
    beside: bool


class Tallies(NamedTuple):
    """All that scores are made from."""

    #: Planned trials by agent, model and dataset.
    planned: Mapping[tuple[str, ...], int]
    scored: Sequence[Tally]


def _tallies(book: Book, id: str) -> Tallies:
    return book.known(id, "tallies", _tally)


def _tally(connection: sqlite3.Connection, number: int) -> Tallies:
    cells: dict[int, list[str]] = {}
    planned: Counter[tuple[str, ...]] = Counter()
    query = "SELECT cell, agent, model, dataset, task, category, difficulty, planned FROM cells WHERE evaluation = ?"
    for cell, *common, count in connection.execute(query, (number,)):
        cells[cell] = common
        planned[tuple(common[:3])] += count
    own = f"""
        SELECT cell, reward_name, {_SUMS.format("reward")} FROM lines
        WHERE evaluation = ? AND outcome = 'scored' GROUP BY cell, reward_name"""
    others = f"""
        SELECT cell, name, {_SUMS.format("value")} FROM others o JOIN lines l
        ON l.evaluation = o.evaluation AND l.position = o.position
        WHERE o.evaluation = ? AND outcome = 'scored' GROUP BY cell, name"""
    found = [Tally._make((*cells[cell], *sums, False)) for cell, *sums in connection.execute(own, (number,))]
    found += [Tally._make((*cells[cell], *sums, True)) for cell, *sums in connection.execute(others, (number,))]
    return Tallies(planned=planned, scored=found)


def scores(book: Book, id: str) -> tuple[Score, ...]:
    """The scores of each agent, model and dataset; a reward named ``reward`` first, then by name.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, "scores", lambda *_: _scores(_tallies(book, id)))


def _scores(tallies: Tallies) -> tuple[Score, ...]:
    scored: Counter[tuple[str, ...]] = Counter()
    clusters: dict[tuple[str, ...], dict[str, list[Cluster]]] = {}
    for tally in tallies.scored:
        key = tally[:3]
        if not tally.beside:
            scored[key] += tally.number
        known = _cluster(tally)
        if known is not None:
            clusters.setdefault(key, {}).setdefault(tally.reward, []).append(known)
    return tuple(
        _score(key, name, clusters.get(key, {}).get(name, []), scored[key], tallies.planned[key])
        for key in sorted(tallies.planned)
        # Tasks may give different rewards, so one may be main in some and beside it in others.
        for name in sorted(clusters.get(key, ()), key=lambda name: (name != "reward", name)) or [""]
    )


def _score(key: tuple[str, ...], name: str, clusters: list[Cluster], scored: int, planned: int) -> Score:
    known = interval(clusters)
    return Score(
        labels={label: value for label, value in zip(("agent", "model", "dataset"), key, strict=True) if value},
        reward=name,
        mean=known.mean if known else None,
        low=known.low if known else None,
        high=known.high if known else None,
        count=sum(item.number for item in clusters),
        scored=scored,
        planned=planned,
    )


def groups(book: Book, id: str, by: str = "category") -> list[Group]:
    """An evaluation's trials by one of `GROUPS`, by name; those without it last.

    Raises:
        ValueError: it is none of them.
        Unavailable: the summaries cannot be read.
    """
    if by not in GROUPS:
        raise ValueError(f"{by!r} is none of {', '.join(GROUPS)}")

    def look(connection: sqlite3.Connection, number: int) -> list[Group]:
        return _groups(connection, number, _tallies(book, id), by)

    return book.known(id, f"groups {by}", look)


def _groups(connection: sqlite3.Connection, number: int, tallies: Tallies, by: str) -> list[Group]:
    query = f"""
        SELECT {by}, outcome, COUNT(*), SUM(seconds), COUNT(seconds), SUM(cost) FROM lines WHERE evaluation = ?
        GROUP BY {by}, outcome"""
    counts: dict[str, list[tuple[Any, ...]]] = {}
    for name, *counted in connection.execute(query, (number,)):
        counts.setdefault(name, []).append(tuple(counted))
    clusters: dict[str, dict[tuple[str, str], Cluster]] = {}
    place = Tally._fields.index(by)
    for tally in tallies.scored:
        known = None if tally.beside else _cluster(tally)
        if known is not None:
            # Agents and models on one task are as alike as its attempts.
            of_name, task = clusters.setdefault(str(tally[place]), {}), (tally.dataset, tally.task)
            of_name[task] = of_name[task].with_(known) if task in of_name else known
    return [
        _group(name, counts[name], interval(clusters.get(name, {}).values()))
        for name in sorted(counts, key=lambda name: (not name, name))
    ]


def _group(name: str, counts: Sequence[tuple[Any, ...]], known: Interval | None) -> Group:
    timed = sum(item[3] for item in counts)
    costs = [item[4] for item in counts if item[4] is not None]
    return Group(
        name=name,
        planned=sum(item[1] for item in counts),
        outcomes={Outcome(item[0]): item[1] for item in counts if item[0] is not None},
        mean=known.mean if known else None,
        low=known.low if known else None,
        high=known.high if known else None,
        seconds=sum(item[2] or 0.0 for item in counts) / timed if timed else None,
        cost_usd=sum(costs) if costs else None,
    )


def _cluster(tally: Tally) -> Cluster | None:
    if tally.total is None or tally.squares is None or tally.least is None or tally.most is None:
        return None
    return Cluster(tally.number, tally.total, tally.squares, tally.least, tally.most)
