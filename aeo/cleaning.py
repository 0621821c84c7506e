"""Room on a worker's disk: above a watermark, what no open evaluation needs and nobody used for long is removed.

Nothing of an evaluation that has a batch here, and nothing that the store calls open, whatever its age. What this
worker needs again it fetches again; only files in ``kept/`` are nowhere else, so those of an evaluation that somebody
keeps on the controller (`aeo.retention`) stay.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from aeo import contents, executors, records
from aeo.core.errors import AeoError, NotFound, TransferFailed, Unavailable
from aeo.executors import care
from aeo.site import WorkerSite
from aeo.store import access, evaluations, health
from aeo.store.connection import Denied
from aeo.transfer import move

log = logging.getLogger(__name__)

#: Seconds between two looks at the disk.
ROUND_SECONDS = 3600.0
#: Seconds until the next look when nobody could say what is still needed; doubling.
RETRY_SECONDS = 10.0
_DAY = 86400.0
#: Days that a copy is kept at least which was fetched ahead of a run that has not come yet (see `aeo.prefetching`).
AHEAD_DAYS = 1.0
_MARK = "keep"


@dataclass(frozen=True, kw_only=True)
class Cleaned:
    """What was removed."""

    evaluations: tuple[str, ...] = ()
    #: Digests of task copies.
    tasks: tuple[str, ...] = ()
    #: Ids of evaluations whose large files were removed.
    kept: tuple[str, ...] = ()
    images: tuple[str, ...] = ()


def keep_clean(site: WorkerSite, stop: threading.Event) -> None:
    """Look at the disk at once, then each hour until ``stop``."""
    wait, retry = 0.0, RETRY_SECONDS
    while not stop.wait(wait):
        wait = ROUND_SECONDS
        try:
            clean(site)
            retry = RETRY_SECONDS
        except AeoError as error:
            log.debug("not cleaned up: %s", error)
            wait, retry = retry, min(retry * 2, ROUND_SECONDS)
        except Exception:  # it must not end for a fault of today
            log.exception("the disk could not be cleaned up")


def clean(site: WorkerSite) -> Cleaned:
    """Clean up the disks that are above the watermark, images first: tasks name them.

    Raises:
        Unavailable: the store cannot say what is open.
    """
    # What a worker that died then had begun to remove.
    shutil.rmtree(site.local.aside, ignore_errors=True)
    images = tuple(_reclaim(site))
    if not _full(site.local.root, site.config.clean_above):
        return Cleaned(images=images)
    gone, tasks, kept = _clean_root(site)
    done = Cleaned(evaluations=gone, tasks=tasks, kept=kept, images=images)
    if not (gone or tasks or kept or images):
        return done
    log.warning(
        "the disk is %.0f %% full; removed, as nobody used them for long: task copies %d, evaluations' records %d, "
        "their large files %d, images %d",
        *(100 * _used(site.local.root), len(tasks), len(gone), len(kept), len(images)),
    )
    return done


def _used(path: Path) -> float:
    usage = psutil.disk_usage(str(path))
    return 1 - usage.free / max(usage.total, 1)


def _full(path: Path, watermark: float) -> bool:
    return watermark < 1 and _used(path) > watermark


def _reclaim(site: WorkerSite) -> Iterator[str]:
    for name in executors.installed():
        try:
            found = care.care_of(executors.load(name))
            if found and any(_full(folder, site.config.clean_above) for folder in found.folders()):
                yield from found.reclaim(site.local.root, site.config.clean_days * _DAY)
        except Exception:  # a plug-in's fault
            log.exception("executor %s could not clean up", name)


def _clean_root(site: WorkerSite) -> tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]:
    """Remove evaluations' records, task copies and large files; returns which.

    Raises:
        Unavailable: the store cannot say what is open.
    """
    local, before = site.local, time.time() - site.config.clean_days * _DAY
    if not health.mark(site.db):
        raise Unavailable("The store was wiped or is new, and does not know yet what is open.")
    here = {path.name for root in (local.evaluations, local.all_kept) for path in _folders(root)}
    busy = {path.name.rpartition("-")[0] for path in _folders(local.batches)}
    busy |= {id for id in here if _is_open(site, id)}
    needed = _needed(local.evaluations, busy)
    kept = tuple(
        path.name
        for path in _folders(local.all_kept)
        if path.name not in busy and _age(path) < before and _may_go(site, path.name) and _drop(site, path)
    )
    tasks: tuple[str, ...] = ()
    if needed is not None:
        old = (path.name for path in _folders(local.tasks) if path.name not in needed)
        ahead = min(before, time.time() - AHEAD_DAYS * _DAY)
        tasks = tuple(
            digest
            for digest in old
            if contents.drop(local, digest, ahead if local.ahead_mark(digest).exists() else before)
        )
    gone = tuple(
        path.name
        for path in _folders(local.evaluations)
        if path.name not in busy and _age(path) < before and _drop(site, path)
    )
    return gone, tasks, kept


def _is_open(site: WorkerSite, id: str) -> bool:
    try:
        return evaluations.is_open(site.db, id)
    except Denied:
        # A worker is let into what is open and has a batch for it.
        return False


def _folders(root: Path) -> list[Path]:
    if not root.is_dir():
        return []
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def _age(path: Path) -> float:
    """When something was last put in."""
    try:
        return max(item.lstat().st_mtime for item in (path, *path.iterdir()))
    except OSError:
        return time.time()


def _needed(root: Path, busy: set[str]) -> set[str] | None:
    """Digests of the task copies these evaluations need, as far as they were fetched; None if that cannot be read."""
    found: set[str] = set()
    for path in _folders(root):
        if path.name in busy:
            try:
                found.update(content.digest for content in records.header(path).plan.contents)
            except AeoError:
                return None
    return found


def _may_go(site: WorkerSite, id: str) -> bool:
    """Whether nobody keeps this evaluation; asked of the controller's disk, which decides."""
    try:
        evaluations.get(site.db, id)
    except NotFound:
        return True
    except Denied:
        # It is over, and so out of sight: asked for, and looked at the next time.
        access.ask_for(site.db, site.config.worker_id, id)
        return False
    password = site.config.transfer_password
    with tempfile.TemporaryDirectory() as asked:
        try:
            for name in (records.EVALUATION, _MARK):
                move.fetch(site.remote, f"evaluations/{id}", Path(asked, name), only=(name,), password=password)
        except TransferFailed as error:
            # Its folder was there, so what is not there is the mark.
            return error.permanent and name == _MARK and f"{_MARK} is not there" in str(error)
    return False


def _drop(site: WorkerSite, path: Path) -> bool:
    # By a rename first, or a crash would leave half of it.
    aside = site.local.aside / f"{path.parent.name}.{path.name}"
    with suppress(OSError):
        site.local.aside.mkdir(exist_ok=True, mode=0o700)
        path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)
        return True
    return False
