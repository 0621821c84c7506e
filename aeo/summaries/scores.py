"""Scores: mean rewards with their 95 % interval, never without how many of the planned trials they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aeo.core.model import Outcome
from aeo.core.statistics import Cluster, Interval, interval
from aeo.summaries.book import Book

#: What trials can be grouped by.
GROUPS = ("category", "difficulty", "agent", "model", "dataset", "task", "worker")
_WHICH = "evaluation = (SELECT number FROM evaluations WHERE id = ?)"
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


def scores(book: Book, id: str) -> tuple[Score, ...]:
    """The scores of each agent, model and dataset, the main reward of each first, then by name.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    own = f"""
        SELECT agent, model, dataset, reward_name, {_SUMS.format("reward")} FROM lines
        WHERE {_WHICH} AND outcome = 'scored' AND reward IS NOT NULL
        GROUP BY agent, model, dataset, reward_name, task"""
    others = f"""
        SELECT agent, model, dataset, name, {_SUMS.format("value")} FROM others o JOIN lines l
        ON l.evaluation = o.evaluation AND l.position = o.position
        WHERE o.{_WHICH} AND outcome = 'scored'
        GROUP BY agent, model, dataset, name, task"""
    counts = f"""
        SELECT agent, model, dataset, COUNT(*), SUM(outcome IS 'scored') FROM lines WHERE {_WHICH}
        GROUP BY agent, model, dataset"""
    clusters: dict[tuple[str, ...], dict[str, list[Cluster]]] = {}
    with book.read() as connection:
        groups = connection.execute(counts, (id,)).fetchall()
        for query in (own, others):
            for agent, model, dataset, name, *sums in connection.execute(query, (id,)):
                clusters.setdefault((agent, model, dataset), {}).setdefault(name, []).append(_cluster(sums))
    found = []
    for *key, planned, scored in sorted(groups):
        by_name = clusters.get(tuple(key), {})
        # Tasks may give different rewards, so one may be main in some and beside it in others.
        for name in sorted(by_name, key=lambda name: (name != "reward", name)) or [""]:
            found.append(_score(key, name, by_name.get(name, []), scored, planned))
    return tuple(found)


def _score(key: list[str], name: str, clusters: list[Cluster], scored: int, planned: int) -> Score:
    known = interval(clusters)
    return Score(
        labels={label: value for label, value in zip(("agent", "model", "dataset"), key, strict=True) if value},
        reward=name,
        mean=known.mean if known else None,
        low=known.low if known else None,
        high=known.high if known else None,
        count=sum(item.count for item in clusters),
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
    counts = f"""
        SELECT {by}, outcome, COUNT(*), SUM(seconds), COUNT(seconds), SUM(cost) FROM lines WHERE {_WHICH}
        GROUP BY {by}, outcome"""
    rewards = f"""
        SELECT {by}, {_SUMS.format("reward")} FROM lines
        WHERE {_WHICH} AND outcome = 'scored' AND reward IS NOT NULL GROUP BY {by}, dataset, task"""
    with book.read() as connection:
        counted = connection.execute(counts, (id,)).fetchall()
        clusters: dict[str, list[Cluster]] = {}
        for name, *sums in connection.execute(rewards, (id,)):
            clusters.setdefault(name, []).append(_cluster(sums))
    by_name: dict[str, list[tuple[Any, ...]]] = {}
    for name, *counts_of in counted:
        by_name.setdefault(name, []).append(tuple(counts_of))
    return [
        _group(name, by_name[name], interval(clusters.get(name, ())))
        for name in sorted(by_name, key=lambda name: (not name, name))
    ]


def _group(name: str, counts: list[tuple[Any, ...]], known: Interval | None) -> Group:
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


def _cluster(sums: list[Any]) -> Cluster:
    count, total, squares, least, most = sums
    return Cluster(count=count, total=total, squares=squares, least=least, most=most)
