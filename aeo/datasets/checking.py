"""Is a dataset still what it was: what lies on the controller beside what was recorded, and beside what is listed.

Recorded is what was there when it was read first, when it was downloaded, or when a person last accepted it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timezone
from enum import Enum

from aeo import codec, folders
from aeo.core.errors import AeoError, Conflict, InputError
from aeo.core.model import WorkerState
from aeo.datasets import configured, downloads, reading
from aeo.datasets.configured import Dataset
from aeo.datasets.downloads import DownloadState
from aeo.datasets.reading import TaskList
from aeo.executors import Listed, TaskInfo
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import held
from aeo.store import workers as worker_store

_FILE = "recorded.json"


class Verdict(str, Enum):
    """What a check found."""

    #: All of it is as recorded and as listed, and can be run.
    SOUND = "sound"
    #: Something differs, is missing, or cannot be run.
    FAULTY = "faulty"
    #: It is not on the controller.
    ABSENT = "absent"


@dataclass(frozen=True, kw_only=True)
class Broken:
    """A task that its executor refuses."""

    name: str
    problem: str


@dataclass(frozen=True, kw_only=True)
class Differences:
    """Tasks here beside those of a record or a list, by folder."""

    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        """Whether there are some."""
        return bool(self.changed or self.missing or self.added)


@dataclass(frozen=True, kw_only=True)
class Presence:
    """What one worker holds."""

    worker: str
    state: WorkerState
    held: int
    #: Names of tasks that it would have to fetch.
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a check found of one dataset."""

    dataset: str
    verdict: Verdict
    folder: str = ""
    #: Why it cannot be read; empty if it can.
    problem: str = ""
    tasks: int = 0
    #: Tasks that the executor refuses.
    broken: tuple[Broken, ...] = ()
    recorded_at: datetime | None = None
    #: Against what was recorded.
    recorded: Differences = field(default_factory=Differences)
    #: Who else says what is in it, in words; empty where nobody here knows.
    listed_by: str = ""
    #: How many tasks it has there; None if that is not known.
    listed_total: int | None = None
    #: Against that.
    listed: Differences = field(default_factory=Differences)
    workers: tuple[Presence, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _Record:
    at: datetime
    path: str
    #: Folder, or name where there is none, to digest.
    digests: Mapping[str, str]


def record(shared: Shared, name: str, found: TaskList) -> None:
    """Record what is there now as what should be there."""
    _write(shared, name, _Record(at=datetime.now(timezone.utc), path=found.path, digests=_digests(found)))


def record_first(shared: Shared, name: str, found: TaskList) -> None:
    """Record what is there, if nothing was recorded of this folder yet, or it was downloaded anew since."""
    known, download = _read(shared, name), downloads.status(shared, name)
    anew = download is not None and download.state is DownloadState.DONE
    if known is None or known.path != found.path or (anew and download and download.updated_at > known.at):
        # Whoever only looks need not be told that the disk is full.
        with suppress(OSError):
            record(shared, name, found)


def check(site: Site, name: str) -> Report:
    """Look at a dataset as it is now, file by file.

    Raises:
        NotFound: none has this name.
    """
    dataset = configured.get(site.shared, name)
    try:
        found = _look(site, dataset)
    except AeoError as error:
        return Report(dataset=name, verdict=Verdict.FAULTY, problem=str(error))
    if found is None:
        return Report(dataset=name, verdict=Verdict.ABSENT)
    record_first(site.shared, name, found)
    return _report(site, dataset, found)


def check_all(site: Site) -> list[Report]:
    """Look at every configured dataset, by name."""
    return [check(site, name) for name in configured.read(site.shared)]


def accept(site: Site, name: str) -> Report:
    """Record what is there now as right.

    Raises:
        NotFound: none has this name.
        Conflict: it is not on the controller.
        InputError, Unavailable: it cannot be read.
    """
    dataset = configured.get(site.shared, name)
    found = _look(site, dataset)
    if found is None:
        raise Conflict(f"{name} is not on the controller.", field="name")
    record(site.shared, name, found)
    return _report(site, dataset, found)


def _look(site: Site, dataset: Dataset) -> TaskList | None:
    folder = configured.source(site.shared, dataset).path
    if folder is None:
        return None
    # All of it: what changed on a disk by itself has kept its time and its size.
    return reading.tasks(site.shared, dataset.name, configured.knowledge(dataset.executor), folder, anew=True)


def _report(site: Site, dataset: Dataset, found: TaskList) -> Report:
    source = configured.source(site.shared, dataset)
    knows = configured.knowledge(dataset.executor)
    listed: Listed | None = getattr(knows, "listed", lambda _source: None)(source)
    known = _read(site.shared, dataset.name)
    digests = _digests(found)
    against_record = _compare(digests, known.digests) if known else Differences()
    against_list = _compare(digests, listed.tasks) if listed and listed.tasks else Differences()
    total = None if listed is None else listed.total if listed.total is not None else len(listed.tasks) or None
    broken = tuple(Broken(name=_key(task), problem=task.problem) for task in found.tasks if task.problem)
    faulty = against_record.any or against_list.any or broken or (total is not None and total != len(found.tasks))
    return Report(
        dataset=dataset.name,
        verdict=Verdict.FAULTY if faulty else Verdict.SOUND,
        folder=found.path,
        tasks=len(found.tasks),
        broken=broken,
        recorded_at=known.at if known else None,
        recorded=against_record,
        listed_by=listed.by if listed else "",
        listed_total=total,
        listed=against_list,
        workers=_presence(site, found),
    )


def _compare(here: Mapping[str, str], there: Mapping[str, str]) -> Differences:
    """A digest that is not known differs from none."""
    both = here.keys() & there.keys()
    return Differences(
        changed=tuple(sorted(name for name in both if there[name] and here[name] != there[name])),
        missing=tuple(sorted(there.keys() - here.keys())),
        added=tuple(sorted(here.keys() - there.keys())),
    )


def _presence(site: Site, found: TaskList) -> tuple[Presence, ...]:
    sound = [task for task in found.tasks if task.content and not task.problem]
    known = {status.info.id: status.state for status in worker_store.all(site.db)}
    holders = held.which(site.db, list(known), sorted({task.content for task in sound}))
    rows = []
    for id, state in known.items():
        missing = tuple(sorted(_key(task) for task in sound if task.content not in holders[id]))
        rows.append(Presence(worker=id, state=state, held=len(sound) - len(missing), missing=missing))
    return tuple(rows) if sound else ()


def _key(task: TaskInfo) -> str:
    return task.folder or task.name


def _digests(found: TaskList) -> dict[str, str]:
    return {_key(task): task.digest for task in found.tasks}


def _read(shared: Shared, name: str) -> _Record | None:
    try:
        return codec.loads(_Record, (shared.dataset_state(name) / _FILE).read_bytes())
    except (OSError, InputError):
        return None


def _write(shared: Shared, name: str, kept: _Record) -> None:
    path = shared.dataset_state(name) / _FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    folders.write(path, codec.dumps(kept))
