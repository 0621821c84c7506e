"""Datasets as pages, API and command line show them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aeo import summaries
from aeo.core.errors import AeoError, InputError
from aeo.core.model import Needs
from aeo.datasets import checking, configured, downloads, reading
from aeo.datasets.configured import Dataset
from aeo.datasets.downloads import Download
from aeo.datasets.reading import TaskList
from aeo.executors import Datasets, Source, TaskInfo
from aeo.site import Site
from aeo.store import held, workers
from aeo.summaries import Past

#: By what the tasks of a dataset can be sorted.
SORTS = ("name", "category", "difficulty", "pass_rate", "median", "runs", "cpus", "memory", "storage", "timeout")
_DIFFICULTIES = {"trivial": 0, "easy": 1, "medium": 2, "hard": 3, "very hard": 4, "expert": 5}


@dataclass(frozen=True, kw_only=True)
class DatasetView:
    """One dataset in short. Of one that is not here, only what is configured is known."""

    dataset: Dataset
    #: Where it is on the controller; empty if it is not here.
    folder: str = ""
    #: The part of a configuration that means it.
    config: Mapping[str, Any] = field(default_factory=dict)
    #: Tasks that can be run, and that cannot.
    tasks: int = 0
    broken: int = 0
    #: Label to how many tasks have it, the most frequent first.
    categories: Mapping[str, int] = field(default_factory=dict)
    difficulties: Mapping[str, int] = field(default_factory=dict)
    #: The most that one of its tasks declares.
    needs: Needs = field(default_factory=Needs)
    storage_mb: int = 0
    #: The longest time-out of each phase, seconds.
    timeouts: Mapping[str, float] = field(default_factory=dict)
    #: Of the whole; changes with every task.
    digest: str = ""
    #: Worker id to how many of the tasks it holds already; the others it fetches when it needs them.
    present: Mapping[str, int] = field(default_factory=dict)
    #: The last download; None if there was none.
    download: Download | None = None
    #: Why it cannot be read; empty if it can, or is not here.
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class TaskRow:
    """One task, and how it went so far."""

    info: TaskInfo
    #: None if it never ran.
    past: Past | None = None
    #: Ids of the workers that hold it.
    workers: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class DatasetDetail:
    """One dataset with its tasks."""

    view: DatasetView
    tasks: tuple[TaskRow, ...]


def list_all(site: Site) -> list[DatasetView]:
    """Every configured dataset, by name."""
    ids = _worker_ids(site)
    return [_view(site, dataset, _Here(site, dataset), ids)[0] for dataset in configured.read(site.shared).values()]


def show(site: Site, name: str) -> DatasetDetail:
    """One dataset with its tasks, in the order of their names.

    Raises:
        NotFound: none has this name.
    """
    dataset = configured.get(site.shared, name)
    here = _Here(site, dataset)
    view, holders = _view(site, dataset, here, _worker_ids(site))
    past = _past(site, here)
    rows = tuple(
        TaskRow(
            info=task,
            past=past.get(task.name),
            workers=tuple(id for id, digests in holders.items() if task.content in digests),
        )
        for task in (here.list.tasks if here.list else ())
    )
    return DatasetDetail(view=view, tasks=tuple(sorted(rows, key=lambda row: row.info.name)))


def start(site: Site, name: str, *, by: str = "") -> Download:
    """Download a dataset, or go on with it; see `downloads.start`."""
    dataset = configured.get(site.shared, name)
    source = replace(configured.source(site.shared, dataset), path=None)
    folder = site.shared.dataset(name)

    def read() -> None:
        """So that the first page after it need not wait."""
        reading.forget(folder)
        _Here(site, dataset)

    return downloads.start(site.shared, name, configured.knowledge(dataset.executor), source, by=by, then=read)


def status(site: Site, name: str) -> Download | None:
    """How a dataset's last download is doing.

    Raises:
        NotFound: no dataset has this name.
    """
    return downloads.status(site.shared, configured.get(site.shared, name).name)


def cancel(site: Site, name: str) -> Download:
    """Stop a download; see `downloads.cancel`."""
    return downloads.cancel(site.shared, configured.get(site.shared, name).name)


def select(
    rows: Iterable[TaskRow],
    *,
    search: str = "",
    category: str = "",
    difficulty: str = "",
    sort: str = "name",
    descending: bool = False,
) -> list[TaskRow]:
    """Those of ``rows`` with all words of ``search`` in name or labels, sorted; what is not known comes last.

    Raises:
        InputError: it cannot be sorted so.
    """
    if sort not in SORTS:
        raise InputError(f"{sort!r} is nothing to sort by.", field="sort", fix=f"Known: {', '.join(SORTS)}.")
    words = search.lower().split()
    chosen = [
        row
        for row in rows
        if all(word in " ".join((row.info.name, *row.info.labels.values())).lower() for word in words)
        and category in ("", row.info.labels.get("category"))
        and difficulty in ("", row.info.labels.get("difficulty"))
    ]
    known = [row for row in chosen if _key(row, sort) is not None]
    unknown = sorted((row for row in chosen if _key(row, sort) is None), key=lambda row: row.info.name)
    # Twice, as names go upwards always.
    known.sort(key=lambda row: row.info.name, reverse=sort == "name" and descending)
    if sort != "name":
        known.sort(key=lambda row: _key(row, sort), reverse=descending)
    return [*known, *unknown]


def _key(row: TaskRow, sort: str) -> Any:
    """What is sorted by; None is not known."""
    info, past = row.info, row.past
    if sort == "difficulty":
        word = info.labels.get("difficulty")
        return (_DIFFICULTIES.get(word.lower(), len(_DIFFICULTIES)), word) if word else None
    values: Mapping[str, Any] = {
        "name": info.name,
        "category": info.labels.get("category"),
        "pass_rate": past.pass_rate if past else None,
        "median": past.median_seconds if past else None,
        "runs": past.runs if past else None,
        "cpus": info.needs.cpus or None,
        "memory": info.needs.memory_mb or None,
        "storage": info.storage_mb or None,
        "timeout": info.timeouts.get("agent"),
    }
    return values[sort]


class _Here:
    """A dataset and what lies on the controller of it."""

    def __init__(self, site: Site, dataset: Dataset):
        self.problem = ""
        self.list: TaskList | None = None
        self.knows: Datasets | None = None
        self.source = configured.source(site.shared, dataset)
        try:
            self.knows = configured.knowledge(dataset.executor)
            if self.source.path is not None:
                self.list = reading.tasks(site.shared, dataset.name, self.knows, self.source.path)
                checking.record_first(site.shared, dataset.name, self.list)
        except AeoError as error:
            self.problem = str(error)


def _view(
    site: Site, dataset: Dataset, here: _Here, ids: Sequence[str]
) -> tuple[DatasetView, Mapping[str, frozenset[str]]]:
    """A dataset in short, and which of its content folders each worker holds."""
    sound = [task for task in (here.list.tasks if here.list else ()) if not task.problem]
    holders = held.which(site.db, ids, sorted({task.content for task in sound if task.content}))
    folder = here.source.path
    view = DatasetView(
        dataset=dataset,
        folder=str(folder) if folder is not None else "",
        config=_config(here),
        tasks=len(sound),
        broken=len(here.list.tasks) - len(sound) if here.list else 0,
        categories=_counts(task.labels.get("category") for task in sound),
        difficulties=_counts(task.labels.get("difficulty") for task in sound),
        needs=Needs(
            cpus=max((task.needs.cpus for task in sound), default=0.0),
            memory_mb=max((task.needs.memory_mb for task in sound), default=0),
        ),
        storage_mb=max((task.storage_mb for task in sound), default=0),
        timeouts=_longest(task.timeouts for task in sound),
        digest=here.list.digest if here.list else "",
        present={id: sum(task.content in digests for task in sound) for id, digests in holders.items() if digests},
        download=downloads.status(site.shared, dataset.name),
        problem=here.problem,
    )
    return view, holders


def _config(here: _Here) -> Mapping[str, Any]:
    try:
        return here.knows.config(here.source) if here.knows else {}
    except InputError:
        return {}


def _counts(values: Iterable[str | None]) -> dict[str, int]:
    return dict(Counter(value for value in values if value).most_common())


def _longest(all_timeouts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    longest: dict[str, float] = {}
    for timeouts in all_timeouts:
        for phase, seconds in timeouts.items():
            longest[phase] = max(seconds, longest.get(phase, 0.0))
    return longest


def _worker_ids(site: Site) -> list[str]:
    return [worker.info.id for worker in workers.all(site.db)]


def _past(site: Site, here: _Here) -> Mapping[str, Past]:
    """How tasks went, under each name that trials of this dataset carry; of a task, where it ran most."""
    if here.knows is None:
        return {}
    unplaced = Source(reference=here.source.reference, registry=here.source.registry)
    labels = {here.knows.label(here.source), *([here.knows.label(unplaced)] if unplaced.reference else [])}
    best: dict[str, Past] = {}
    for label in sorted(labels):
        for task, past in summaries.past_tasks(site.book, label).items():
            if task not in best or past.runs > best[task].runs:
                best[task] = past
    return best
