"""Scores: mean rewards with their 95 % interval, never without how many of the planned trials they rest on."""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from aeo.core.model import Outcome
from aeo.core.statistics import Cluster, interval
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
    """What the attempts of one agent and model on one task came to, of one outcome and one reward's name."""

    agent: str
    model: str
    dataset: str
    task: str
    category: str
    difficulty: str
    #: None for those without a result.
    outcome: str | None
    reward: str
    number: int
    #: Of the rewards, see `Cluster`; None where there are none.
    total: float | None
    squares: float | None
    least: float | None
    most: float | None
    #: Sum of the wall times, and how many there are.
    seconds: float | None
    timed: int
    cost: float | None
    #: Whether the reward is one beside the main one: the trials were counted already.
    beside: bool


def tallies(book: Book, id: str) -> list[Tally]:
    """All that scores and groups are made from.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, "tallies", _tallies)


def _tallies(connection: sqlite3.Connection, number: int) -> list[Tally]:
    cells: dict[int, list[str]] = {
        cell: common
        for cell, *common in connection.execute(
            "SELECT cell, agent, model, dataset, task, category, difficulty FROM cells WHERE evaluation = ?", (number,)
        )
    }
    own = f"""
        SELECT cell, outcome, reward_name, {_SUMS.format("reward")}, SUM(seconds), COUNT(seconds), SUM(cost) FROM lines
        WHERE evaluation = ? GROUP BY cell, outcome, reward_name"""
    others = f"""
        SELECT cell, outcome, name, {_SUMS.format("value")}, NULL, 0, NULL FROM others o JOIN lines l
        ON l.evaluation = o.evaluation AND l.position = o.position WHERE o.evaluation = ?
        GROUP BY cell, outcome, name"""
    found = [Tally._make((*cells[cell], *sums, False)) for cell, *sums in connection.execute(own, (number,))]
    found += [Tally._make((*cells[cell], *sums, True)) for cell, *sums in connection.execute(others, (number,))]
    return found


def scores(book: Book, id: str) -> tuple[Score, ...]:
    """The scores of each agent, model and dataset; a reward named ``reward`` first, then by name.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    return book.known(id, "scores", lambda *_: _scores(tallies(book, id)))


def _scores(found: Iterable[Tally]) -> tuple[Score, ...]:
    planned: Counter[tuple[str, ...]] = Counter()
    scored: Counter[tuple[str, ...]] = Counter()
    clusters: dict[tuple[str, ...], dict[str, list[Cluster]]] = {}
    for tally in found:
        key = tally[:3]
        if not tally.beside:
            planned[key] += tally.number
        if tally.outcome == Outcome.SCORED:
            if not tally.beside:
                scored[key] += tally.number
            known = _cluster(tally)
            if known is not None:
                clusters.setdefault(key, {}).setdefault(tally.reward, []).append(known)
    return tuple(
        _score(key, name, clusters.get(key, {}).get(name, []), scored[key], planned[key])
        for key in sorted(planned)
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
    return book.known(id, f"groups {by}", lambda *_: _groups(tallies(book, id), by))


def _groups(found: Iterable[Tally], by: str) -> list[Group]:
    place = Tally._fields.index(by)
    by_name: dict[str, list[Tally]] = {}
    for tally in found:
        if not tally.beside:
            by_name.setdefault(str(tally[place]), []).append(tally)
    return [_group(name, by_name[name]) for name in sorted(by_name, key=lambda name: (not name, name))]


def _group(name: str, tallies: Sequence[Tally]) -> Group:
    outcomes: Counter[Outcome] = Counter()
    clusters: dict[tuple[str, str], Cluster] = {}
    for tally in tallies:
        if tally.outcome is not None:
            outcomes[Outcome(tally.outcome)] += tally.number
        known = _cluster(tally) if tally.outcome == Outcome.SCORED else None
        if known is not None:
            # Agents and models on one task are as alike as its attempts.
            task = (tally.dataset, tally.task)
            clusters[task] = clusters[task].with_(known) if task in clusters else known
    mean = interval(clusters.values())
    timed = sum(tally.timed for tally in tallies)
    costs = [tally.cost for tally in tallies if tally.cost is not None]
    return Group(
        name=name,
        planned=sum(tally.number for tally in tallies),
        outcomes=dict(outcomes),
        mean=mean.mean if mean else None,
        low=mean.low if mean else None,
        high=mean.high if mean else None,
        seconds=sum(tally.seconds or 0.0 for tally in tallies) / timed if timed else None,
        cost_usd=sum(costs) if costs else None,
    )


def _cluster(tally: Tally) -> Cluster | None:
    if tally.total is None or tally.squares is None or tally.least is None or tally.most is None:
        return None
    return Cluster(tally.number, tally.total, tally.squares, tally.least, tally.most)
