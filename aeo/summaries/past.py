"""Over every evaluation: how a dataset's tasks went so far, and which evaluations a search means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from aeo.core.estimate import Run
from aeo.core.speeds import Timed
from aeo.summaries.book import Book
from aeo.summaries.lines import like


@dataclass(frozen=True, kw_only=True)
class Past:
    """How a task went so far, over every evaluation, agent and model."""

    #: Trials with a result that ran.
    runs: int
    scored: int
    #: Share of the scored trials whose main reward is 1 or more; None when none is scored.
    pass_rate: float | None
    #: Wall time of the scored and the invalid; None when there are none.
    median_seconds: float | None


def past_tasks(book: Book, dataset: str) -> dict[str, Past]:
    """The tasks of a dataset that ever ran, by name.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = """
        SELECT task, outcome, reward, seconds FROM lines
        WHERE dataset = ? AND dataset != '' AND run > 0 AND outcome IS NOT NULL AND NOT carried"""
    runs: dict[str, int] = {}
    rewards: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    with book.read() as connection:
        for task, outcome, reward, seconds in connection.execute(query, (dataset,)):
            runs[task] = runs.get(task, 0) + 1
            if outcome == "scored" and reward is not None:
                rewards.setdefault(task, []).append(reward)
            if outcome in ("scored", "invalid") and seconds is not None:
                spent.setdefault(task, []).append(seconds)
    return {task: _past(count, rewards.get(task, []), spent.get(task, [])) for task, count in sorted(runs.items())}


def _past(runs: int, rewards: list[float], spent: list[float]) -> Past:
    return Past(
        runs=runs,
        scored=len(rewards),
        pass_rate=sum(reward >= 1 for reward in rewards) / len(rewards) if rewards else None,
        median_seconds=median(spent) if spent else None,
    )


def last_runs(book: Book, *, each: int, by_dataset: bool = False) -> dict[tuple[str, str], Sequence[Run]]:
    """The last runs of every task, newest first, at most so many of each: by executor and ``dataset/task``.

    ``by_dataset``: of every dataset, by executor and dataset.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    query = f"""
        SELECT executor, dataset, task, seconds, planned, agent, model, worker FROM (
          SELECT executor, dataset, task, seconds, planned, agent, model, committed,
            -- What is invalid says nothing of its worker.
            CASE outcome WHEN 'scored' THEN worker ELSE '' END AS worker,
            ROW_NUMBER() OVER (PARTITION BY executor, dataset{"" if by_dataset else ", task"}
              ORDER BY committed DESC) AS nth
          FROM lines l JOIN evaluations e ON e.number = l.evaluation
          WHERE outcome IN ('scored', 'invalid') AND seconds IS NOT NULL AND NOT carried)
        WHERE nth <= ? ORDER BY committed DESC"""
    found: dict[tuple[str, str], list[Run]] = {}
    with book.read() as connection:
        for executor, dataset, task, seconds, planned, agent, model, worker in connection.execute(query, (each,)):
            name = dataset if by_dataset else f"{dataset}/{task}"
            run = Run(seconds=seconds, planned=planned, agent=agent, model=model, worker=worker)
            found.setdefault((executor, name), []).append(run)
    return dict(found)


def last_timed(book: Book, *, each: int, since: float) -> dict[str, Sequence[Timed]]:
    """The last scored runs of every worker, newest first, each beside the last before it that another worker had.

    At most so many of each worker, committed since then.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    # A plan's dataset has a name; said here, or the index by task could not be used.
    query = """
        WITH latest AS (
          SELECT * FROM (
            SELECT worker, id, executor, dataset, task, agent, model, seconds, committed,
              ROW_NUMBER() OVER (PARTITION BY worker ORDER BY committed DESC) AS nth
            FROM lines l JOIN evaluations e ON e.number = l.evaluation
            WHERE outcome = 'scored' AND seconds > 0 AND worker != '' AND NOT carried AND committed > ?)
          WHERE nth <= ?),
        compared AS (
          SELECT one.worker, one.id, one.seconds, one.committed, p.worker AS other, p.seconds AS before,
            ROW_NUMBER() OVER (PARTITION BY one.worker, one.nth ORDER BY p.committed DESC) AS nth
          FROM latest one
          JOIN lines p ON p.dataset = one.dataset AND p.dataset != '' AND p.task = one.task
            AND p.agent = one.agent AND p.model = one.model AND p.worker NOT IN ('', one.worker)
            AND p.outcome = 'scored' AND p.seconds > 0 AND NOT p.carried AND p.committed < one.committed
          JOIN evaluations e ON e.number = p.evaluation AND e.executor = one.executor)
        SELECT worker, id, seconds, other, before FROM compared WHERE nth = 1 ORDER BY committed DESC"""
    found: dict[str, list[Timed]] = {}
    with book.read() as connection:
        for worker, id, seconds, other, before in connection.execute(query, (since, each)):
            found.setdefault(worker, []).append(Timed(evaluation=id, seconds=seconds, other=other, before=before))
    return dict(found)


def search(book: Book, *, text: str = "", owner: str | None = None) -> list[str]:
    """Ids of the evaluations with every word of a text in their name, id, executor, owner, agents, models or datasets.

    Newest first.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    words = text.casefold().split()
    where = ["words LIKE ? ESCAPE '\\'"] * len(words) + (["owner = ?"] if owner is not None else [])
    values = [like(word) for word in words] + ([owner] if owner is not None else [])
    query = f"SELECT id FROM evaluations WHERE {' AND '.join(where) or '1'} ORDER BY submitted DESC, id DESC"
    with book.read() as connection:
        return [id for (id,) in connection.execute(query, values)]
