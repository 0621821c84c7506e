"""How long the controller keeps what is finished: `keep`, `find` what is old, `remove` it.

An evaluation is removed by one rename, of its folder into ``pruned/``. What is left to do then can be done again by
anybody, any number of times, as that folder says what it was: `finish` does it, here and after a crash.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

from aeo import lock, records, summaries
from aeo.core.errors import InputError, NotFound, Unavailable
from aeo.core.model import Evaluation
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health
from aeo.store.evaluations import EvaluationStatus

log = logging.getLogger(__name__)

#: Seconds to wait for submissions that are just being made.
PATIENCE = 30.0
_TASKS = "tasks."


@dataclass(frozen=True, kw_only=True)
class Old:
    """An evaluation that may go."""

    id: str
    name: str
    finished_at: datetime
    #: What its folders take, job included.
    bytes: int
    #: Its job folder; None where it is not there, or another evaluation's by now.
    job_dir: Path | None


@dataclass(frozen=True, kw_only=True)
class Found:
    """What is old."""

    evaluations: tuple[Old, ...] = ()
    #: Digests of task folders that no evaluation needs which stays.
    tasks: tuple[str, ...] = ()
    #: What those take.
    task_bytes: int = 0
    #: Ids of old ones that stay as somebody keeps them.
    kept: tuple[str, ...] = ()
    #: Why some were not looked at.
    notes: tuple[str, ...] = ()


def keep(site: Site, id_or_name: str, wanted: bool = True) -> EvaluationStatus:
    """Keep an evaluation from being pruned, or no longer.

    Raises:
        NotFound: there is none of this id or name.
    """
    status = store.find(site.db, id_or_name)
    mark = site.shared.keep_mark(status.id)
    # A prune that is just removing it is over, or comes after.
    with site.shared.submitting():
        try:
            if wanted:
                mark.touch(mode=0o600)
            else:
                mark.unlink(missing_ok=True)
        except FileNotFoundError:
            raise NotFound(f"No evaluation {id_or_name!r} on disk.") from None
    return status


def find(site: Site, older_than: timedelta) -> Found:
    """Find what ended longer ago than that; removes nothing.

    Raises:
        Unavailable: the store is away, or not in line with the disk.
    """
    if not health.mark(site.db):
        raise Unavailable("The store was wiped and knows not all evaluations: start the controller, or `aeo recover`.")
    before = datetime.now(timezone.utc) - older_than
    known = _Known(site.shared)
    known.look()
    old, kept = [], []
    for id in sorted(known.headers):
        status = _status(site, id)
        ended = _ended(site, status) if status else None
        if ended is None or ended >= before:
            continue
        if site.shared.keep_mark(id).exists():
            kept.append(id)
            continue
        job_dir = known.job_of(id)
        size = _size(site.shared.evaluation(id)) + (_size(job_dir) if job_dir else 0)
        name = known.headers[id].spec.name
        old.append(Old(id=id, name=name, finished_at=ended, bytes=size, job_dir=job_dir))
    tasks = _unneeded(site.shared, known, {one.id for one in old}, before)
    return Found(
        evaluations=tuple(old),
        tasks=tasks,
        task_bytes=sum(_size(site.shared.tasks / digest) for digest in tasks),
        kept=tuple(kept),
        notes=tuple(f"{id} cannot be read, so it and all tasks stay" for id in sorted(known.damaged)),
    )


def remove(site: Site, found: Found, *, jobs: bool = True) -> Found:
    """Remove what was found, as far as it may still go; returns what is gone. ``jobs``: their job folders too.

    Raises:
        Conflict: another prune runs.
        Unavailable: the store is away, or submissions do not end. What is left is removed by the next call.
    """
    site.shared.pruned.mkdir(exist_ok=True, mode=0o700)
    with lock.hold(site.shared.root / "prune.lock", "prune", field="--shared-root"):
        known = _Known(site.shared)
        _finish_left_overs(site, known)
        gone = tuple(one for one in found.evaluations if _remove(site, known, one.id, jobs=jobs))
        tasks = tuple(digest for digest in found.tasks if _remove_tasks(site, known, digest))
        _forget_strays(site)
    return Found(evaluations=gone, tasks=tasks, task_bytes=found.task_bytes, kept=found.kept, notes=found.notes)


@dataclass
class _Known:
    """What the evaluations on disk need; looked at again it reads only new ones, as headers never change."""

    shared: Shared
    headers: dict[str, Evaluation] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)

    def look(self) -> None:
        names = {folder.name for folder in self.shared.born()}
        self.headers = {id: header for id, header in self.headers.items() if id in names}
        self.damaged &= names
        for id in names - self.headers.keys() - self.damaged:
            try:
                self.headers[id] = records.header(self.shared.evaluation(id))
            except NotFound:
                continue
            except InputError:
                self.damaged.add(id)

    def job_of(self, id: str) -> Path | None:
        return self.job_at(id, self.headers[id].job_dir)

    def job_at(self, id: str, job_dir: str) -> Path | None:
        """An evaluation's job folder, if it is there and no other evaluation's: a name is used again."""
        path = Path(job_dir)
        others = any(header.job_dir == job_dir for other, header in self.headers.items() if other != id)
        return path if job_dir and path.is_dir() and not path.is_symlink() and not others else None


def _status(site: Site, id: str) -> EvaluationStatus | None:
    with suppress(NotFound):
        return store.get(site.db, id)
    return None


def _ended(site: Site, status: EvaluationStatus) -> datetime | None:
    """When it ended; None while it has not."""
    if not status.state.final:
        return None
    if status.finished_at is not None:
        return status.finished_at
    # Entered again after a wipe: the last that was written of it.
    with suppress(OSError):
        return datetime.fromtimestamp(site.shared.events(status.id).stat().st_mtime, tz=timezone.utc)
    return None


def _unneeded(shared: Shared, known: _Known, going: Iterable[str], before: datetime) -> tuple[str, ...]:
    if known.damaged:
        return ()
    going = set(going)
    needed = {
        content.digest for id, header in known.headers.items() if id not in going for content in header.plan.contents
    }
    return tuple(
        sorted(
            path.name
            for path in shared.tasks.iterdir()
            # Also what a submission that died left, and what was published for none.
            if path.is_dir() and path.name not in needed and path.stat().st_mtime < before.timestamp()
        )
    )


def _remove(site: Site, known: _Known, id: str, *, jobs: bool) -> bool:
    """Remove one evaluation, if it may still go."""
    shared, trash = site.shared, site.shared.pruned / (f"{id}.job" if jobs else id)
    with _alone(shared):
        status = _status(site, id)
        folder = shared.evaluation(id)
        if status is None or not status.state.final or shared.keep_mark(id).exists() or not folder.is_dir():
            return False
        shutil.rmtree(trash, ignore_errors=True)
        folder.rename(trash)
    _finish(site, known, trash)
    return True


def _finish_left_overs(site: Site, known: _Known) -> None:
    for trash in sorted(site.shared.pruned.iterdir()):
        if trash.name.startswith(_TASKS):
            shutil.rmtree(trash, ignore_errors=True)
        else:
            _finish(site, known, trash)


def _finish(site: Site, known: _Known, trash: Path) -> None:
    """Do what is left of removing an evaluation whose folder is ``trash``. Can be done again."""
    id, _, job = trash.name.partition(".")
    store.delete(site.db, id)
    summaries.drop(site.book, id)
    with suppress(NotFound, InputError):
        # Once more than half is removed it cannot be read, but then its job is gone.
        job_dir = records.header(trash).job_dir
        if job:
            _remove_job(site.shared, known, id, job_dir)
    shutil.rmtree(site.shared.inbox / id, ignore_errors=True)
    shutil.rmtree(trash, ignore_errors=True)


def _remove_job(shared: Shared, known: _Known, id: str, job_dir: str) -> None:
    # By a rename, or what was left of it after a crash would look like another evaluation's.
    hidden = Path(job_dir).with_name(f".pruned.{id}")
    with _alone(shared):
        known.look()
        path = known.job_at(id, job_dir)
        if path is not None:
            path.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def _remove_tasks(site: Site, known: _Known, digest: str) -> bool:
    trash = site.shared.pruned / f"{_TASKS}{digest}"
    with _alone(site.shared):
        known.look()
        if digest not in _unneeded(site.shared, known, (), datetime.now(timezone.utc)):
            return False
        shutil.rmtree(trash, ignore_errors=True)
        (site.shared.tasks / digest).rename(trash)
    shutil.rmtree(trash, ignore_errors=True)
    return True


def _forget_strays(site: Site) -> None:
    """Forget what ended and has no folder: a recovery beside a prune may enter one again that is just removed."""
    for id in store.ids(site.db):
        if site.shared.evaluation(id).exists():
            continue
        with _alone(site.shared):
            status = _status(site, id)
            if status is not None and status.state.final and not site.shared.evaluation(id).exists():
                store.delete(site.db, id)
                summaries.drop(site.book, id)


@contextmanager
def _alone(shared: Shared) -> Iterator[None]:
    """Keep evaluations from being made, and from being marked, for a moment.

    Raises:
        Unavailable: some are being made all the time.
    """
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        with shared.nobody_submits() as alone:
            if alone:
                yield
                return
        time.sleep(0.05)
    raise Unavailable("Evaluations are being made all the time: try again.")


def _size(path: Path) -> int:
    total = 0
    for item in path.rglob("*"):
        with suppress(OSError):
            total += item.lstat().st_blocks * 512
    return total
