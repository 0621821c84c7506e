"""What the charts of an evaluation are drawn from, small enough for a browser however many trials there are."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from operator import attrgetter
from typing import NamedTuple

from aeo import summaries
from aeo.core.model import Outcome, TrialState
from aeo.site import Site
from aeo.store import trials
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import Book, Cell, Column

#: Bars beyond which neighbours too short to see are drawn as one.
MOST_BARS = 4000
#: Parts of the whole time that are still told apart then: with few lanes and with many.
MOST_PARTS, LEAST_PARTS = 600, 40
#: Cells of one page of a heat map, about.
CELLS = 3000
#: Tasks on it at least, however many attempts each has.
LEAST_TASKS = 20


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How large the heat map of an evaluation is. It is planned once, so this never changes."""

    #: Tasks in all.
    tasks: int
    #: Attempts, by agent and model.
    columns: tuple[Column, ...]

    @property
    def limit(self) -> int:
        """Tasks of one page."""
        return max(LEAST_TASKS, CELLS // max(1, len(self.columns)))


@dataclass(frozen=True, kw_only=True)
class HeatPage:
    """A part of the heat map: some of the tasks, all attempts of each."""

    #: Tasks in all.
    total: int
    tasks: tuple[str, ...]
    columns: tuple[Column, ...]
    #: Their `task` counts from the page's first. Where there is no outcome yet, the value of the trial's state.
    cells: tuple[Cell, ...]


class Run(NamedTuple):
    """One trial on its worker, or several too short to be told apart."""

    worker: str
    started_at: datetime
    finished_at: datetime
    #: None while it runs; of several, what most of them are.
    outcome: Outcome | None
    #: Empty when there are several.
    trial: str = ""
    size: int = 1


@dataclass(frozen=True, kw_only=True)
class Lane:
    """What stands for a worker's slot: runs that do not overlap."""

    worker: str
    #: From 1 on, within its worker.
    slot: int
    runs: tuple[Run, ...]


def extent(site: Site, status: EvaluationStatus) -> Extent:
    """The size of the heat map.

    Raises:
        Unavailable: the summaries cannot be read.
    """
    try:
        return _extent(site.book, status.id)
    except LookupError:
        return Extent(tasks=0, columns=())


@lru_cache(maxsize=512)
def _extent(book: Book, id: str) -> Extent:
    whole = summaries.heatmap(book, id)
    if not whole.tasks:
        raise LookupError("not entered yet; not to be remembered")
    return Extent(tasks=len(whole.tasks), columns=whole.columns)


def heat(site: Site, status: EvaluationStatus, *, offset: int = 0, limit: int | None = None) -> HeatPage:
    """A page of the heat map; ``limit`` is in tasks, None as many as can be seen.

    Raises:
        Unavailable: the summaries or the store are away.
    """
    whole = summaries.heatmap(site.book, status.id)
    size = Extent(tasks=len(whole.tasks), columns=whole.columns)
    end = offset + (limit or size.limit)
    states = {} if status.state.final else trials.states_of(site.db, status.id, list(trials.claims(site.db, status.id)))
    cells = tuple(
        cell._replace(
            task=cell.task - offset,
            outcome=cell.outcome or states.get(cell.trial, TrialState.PENDING).value,
        )
        for cell in whole.cells
        if offset <= cell.task < end
    )
    return HeatPage(total=size.tasks, tasks=whole.tasks[offset:end], columns=whole.columns, cells=cells)


def gantt(site: Site, status: EvaluationStatus) -> list[Lane]:
    """What ran where and when, and what runs now, by worker.

    Raises:
        Unavailable: the summaries or the store are away.
    """
    ended = [
        Run(
            worker=bar.worker,
            started_at=bar.started_at,
            finished_at=bar.finished_at,
            outcome=bar.outcome,
            trial=bar.trial,
        )
        for bar in summaries.timeline(site.book, status.id)
    ]
    now = trials.now(site.db)
    # One may be committed between the two reads.
    known = {run.trial for run in ended}
    running = [
        Run(
            worker=run.claim.worker,
            started_at=run.started_at,
            finished_at=max(now, run.started_at),
            outcome=None,
            trial=run.claim.trial,
        )
        for run in ([] if status.state.final else trials.running(site.db, status.id))
        if run.claim.trial not in known
    ]
    return lanes([*ended, *running])


def lanes(runs: Iterable[Run], *, most: int = MOST_BARS) -> list[Lane]:
    """Lay runs out without overlaps, by worker; above ``most`` those too short to see are joined with the next."""
    by_worker: dict[str, list[Run]] = {}
    for run in sorted(runs, key=attrgetter("worker", "started_at", "trial")):
        by_worker.setdefault(run.worker, []).append(run)
    found = [(worker, lane) for worker, all_its in by_worker.items() for lane in _without_overlaps(all_its)]
    least = _least([lane for _, lane in found], most)
    slots: Counter[str] = Counter()
    made = []
    for worker, lane in found:
        slots[worker] += 1
        made.append(Lane(worker=worker, slot=slots[worker], runs=tuple(_joined(lane, least))))
    return made


def _without_overlaps(runs: Sequence[Run]) -> list[list[Run]]:
    """Runs in order of their starts, each in the first lane that is free then."""
    made: list[list[Run]] = []
    busy: list[tuple[datetime, int]] = []
    free: list[int] = []
    for run in runs:
        while busy and busy[0][0] <= run.started_at:
            heapq.heappush(free, heapq.heappop(busy)[1])
        if not free:
            free.append(len(made))
            made.append([])
        lane = heapq.heappop(free)
        made[lane].append(run)
        heapq.heappush(busy, (run.finished_at, lane))
    return made


def _least(found: Sequence[Sequence[Run]], most: int) -> timedelta:
    """The shortest time that is told apart; 0 when there are few enough to tell all of them apart."""
    if sum(map(len, found)) <= most:
        return timedelta(0)
    begin = min(lane[0].started_at for lane in found)
    end = max(run.finished_at for lane in found for run in lane)
    # Any two neighbours together are at least that long: twice as many bars as parts.
    return (end - begin) / max(LEAST_PARTS, min(MOST_PARTS, most // (2 * len(found))))


def _joined(lane: Sequence[Run], least: timedelta) -> list[Run]:
    """Runs of a lane, those of which several fit into ``least`` as one."""
    groups: list[list[Run]] = []
    for run in lane:
        group = groups[-1] if groups else None
        # What runs stays apart.
        if group and run.outcome and group[0].outcome and run.finished_at - group[0].started_at < least:
            group.append(run)
        else:
            groups.append([run])
    return [group[0] if len(group) == 1 else _one(group) for group in groups]


def _one(group: Sequence[Run]) -> Run:
    return Run(
        worker=group[0].worker,
        started_at=group[0].started_at,
        finished_at=group[-1].finished_at,
        outcome=Counter(run.outcome for run in group).most_common(1)[0][0],
        size=len(group),
    )
