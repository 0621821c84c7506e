"""Tasks of a dataset sent to workers ahead of a run: what is asked of whom, and how far each is.

The controller only publishes the folders and writes orders; workers carry them out (see `aeo.prefetching`).
"""

from __future__ import annotations

import fnmatch
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from aeo import contents, credentials, executors
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import ContentFolder, WorkerState
from aeo.datasets import configured, reading
from aeo.datasets.configured import Dataset
from aeo.executors import TaskInfo
from aeo.executors.supplies import supplies_of
from aeo.site import Site
from aeo.store import connection, prefetches
from aeo.store import workers as worker_store
from aeo.store.prefetches import Failure, Folder, Order, PrefetchState, Progress, Told
from aeo.store.workers import WorkerStatus


@dataclass(frozen=True, kw_only=True)
class WorkerPrefetch:
    """How far one worker is."""

    worker: str
    state: PrefetchState
    #: Its heartbeat comes. What a lost one was asked for it does when it is back.
    alive: bool
    tasks_total: int
    tasks_done: int
    #: None until it is known which the tasks name.
    images_total: int | None
    images_done: int
    #: How many could not be fetched, and the first of them.
    failed: int
    failures: tuple[Failure, ...]
    note: str


@dataclass(frozen=True, kw_only=True)
class Prefetch:
    """The last prefetch of a dataset, on the workers that were asked."""

    #: A worker that lives is not through with it.
    running: bool = False
    #: With the images that the tasks start from.
    images: bool = False
    #: When it was asked for last, and by whom; None if never, or longer than a week ago.
    at: datetime | None = None
    by: str = ""
    workers: tuple[WorkerPrefetch, ...] = ()


def start(
    site: Site, name: str, *, tasks: Sequence[str] = (), workers: Sequence[str] = (), images: bool = True, by: str = ""
) -> Prefetch:
    """Ask workers to fetch tasks of a dataset: those that match one of the patterns, all without; and their images.

    Without ``workers``: all that would take trials of it now. What a worker has it skips, so asking again does no harm.

    Raises:
        NotFound: no dataset, or no worker, has this name.
        Conflict: the dataset is not on the controller, or no worker can take it.
        InputError: no task matches, or its tasks have no folders that travel.
        Unavailable: the store or the executor is away.
    """
    dataset = configured.get(site.shared, name)
    chosen = _choose(site, dataset, workers)
    folder, wanted = _tasks(site, dataset, tasks)
    folders = [_publish(site, folder, task) for task in wanted]
    images = images and supplies_of(executors.load(dataset.executor)) is not None
    order = Order(
        id=secrets.token_hex(8),
        dataset=name,
        executor=dataset.executor,
        images=images,
        total=len(folders),
        at=connection.now(site.db),
        by=by,
    )
    credentials.grant_ahead(site, name, (folder.digest for folder in folders), chosen)
    for worker in chosen:
        prefetches.order(site.db, worker, order, folders)
    return show(site, name)


def show(site: Site, name: str) -> Prefetch:
    """How far the workers are that were asked.

    Raises:
        NotFound: no dataset has this name.
    """
    configured.get(site.shared, name)
    known = {status.info.id: status for status in worker_store.all(site.db)}
    told = prefetches.told(site.db, list(known), name)
    rows = tuple(_row(known[id], one) for id, one in told.items())
    orders = [one.order for one in told.values() if one.order]
    last = max(orders, key=lambda order: order.at, default=None)
    return Prefetch(
        running=any(row.alive and not row.state.final for row in rows),
        images=any(order.images for order in orders),
        at=last.at if last else None,
        by=last.by if last else "",
        workers=rows,
    )


def cancel(site: Site, name: str, *, workers: Sequence[str] = ()) -> Prefetch:
    """Ask workers, all without ``workers``, for nothing of a dataset any more; what came stays.

    Raises:
        NotFound: no dataset has this name.
    """
    for row in show(site, name).workers:
        if not row.state.final and (not workers or row.worker in workers):
            prefetches.withdraw(site.db, row.worker, name)
    return show(site, name)


def _row(status: WorkerStatus, told: Told) -> WorkerPrefetch:
    order, progress = told.order, told.progress
    alive = status.state is not WorkerState.LOST
    if order is not None and (progress is None or progress.order != order.id):
        progress = Progress(order=order.id, state=PrefetchState.WAITING, tasks_total=order.total)
    assert progress is not None  # noqa: S101 - one of both is there
    state = progress.state
    if order is None and not state.final:
        # Withdrawn; whoever was at it may be gone and never say so.
        state = PrefetchState.CANCELLED
    return WorkerPrefetch(
        worker=status.info.id,
        state=state,
        alive=alive,
        tasks_total=progress.tasks_total,
        tasks_done=progress.tasks_done,
        images_total=progress.images_total,
        images_done=progress.images_done,
        failed=progress.failed,
        failures=progress.failures,
        note=progress.note,
    )


def _choose(site: Site, dataset: Dataset, ids: Sequence[str]) -> list[str]:
    known: Mapping[str, WorkerStatus] = {status.info.id: status for status in worker_store.all(site.db)}
    for id in ids:
        if id not in known:
            raise NotFound(f"no worker {id!r} is registered.", field="workers")
        if dataset.executor not in known[id].info.executors:
            raise Conflict(f"{id} cannot run the executor {dataset.executor}.", field="workers")
    willing = [
        id
        for id, status in known.items()
        if status.state is WorkerState.ONLINE and dataset.executor in status.info.executors
    ]
    chosen = list(dict.fromkeys(ids)) or willing
    if not chosen:
        raise Conflict(
            f"no worker that is online takes trials of {dataset.executor}.",
            field="workers",
            fix="Start or resume one, or name those that shall have it.",
        )
    return chosen


def _tasks(site: Site, dataset: Dataset, patterns: Sequence[str]) -> tuple[Path, list[TaskInfo]]:
    folder = configured.source(site.shared, dataset).path
    if folder is None:
        fix = f"Fetch it first: aeo datasets download {dataset.name}"
        raise Conflict(f"{dataset.name} is not on the controller.", field="name", fix=fix)
    # What is sent must be what is there now.
    reading.forget(folder)
    found = reading.tasks(site.shared, dataset.name, configured.knowledge(dataset.executor), folder).tasks
    sound = [task for task in found if not task.problem]
    wanted = [
        task
        for task in sound
        if not patterns or any(fnmatch.fnmatchcase(name, one) for one in patterns for name in {task.name, task.folder})
    ]
    if not wanted:
        raise InputError(
            f"none of the {len(sound)} tasks matches.",
            field="tasks",
            fix="Patterns are of whole names, such as 'git-*'; see: aeo datasets show " + dataset.name,
        )
    if not all(task.content and task.folder for task in wanted):
        raise InputError(f"tasks of {dataset.name} have no folders; there is nothing to send ahead.", field="name")
    return folder, wanted


def _publish(site: Site, folder: Path, task: TaskInfo) -> Folder:
    content = ContentFolder(digest=task.content, source=str(folder / task.folder), name=task.folder)
    place = contents.publish(site.shared, content)
    with suppress(OSError):
        # Not to be pruned before it was fetched.
        os.utime(place.parent)
    return Folder(digest=task.content, name=task.folder, size=sum(_sizes(place)))


def _sizes(folder: Path) -> Iterator[int]:
    for above, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                yield Path(above, name).lstat().st_size
