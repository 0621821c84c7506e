"""Folders that travel by content: published once on the controller, fetched once by each worker."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from aeo.core.errors import AeoError, InputError, Problem, TransferFailed
from aeo.core.model import ContentFolder, Plan, PlannedTrial
from aeo.layout import Local, Shared
from aeo.site import WorkerSite
from aeo.store import held
from aeo.transfer import move

log = logging.getLogger(__name__)

#: Seconds between two tries to fetch, doubling from the first to the last; and seconds until it is given up.
FIRST_WAIT, LAST_WAIT, BRING_SECONDS = 0.5, 15.0, 120.0
#: Held for the moment in which a worker finds a folder here, or takes it away.
_found = threading.Lock()


def publish(shared: Shared, content: ContentFolder) -> Path:
    """Copy a folder to where workers fetch it; what is there already is kept.

    Links that stay inside the folder are copied as what they mean.

    Raises:
        InputError: the folder cannot be read whole, or holds what must not or cannot be copied: a link that leads
            outside or in a circle, a device, a socket, a pipe.
    """
    target = shared.task(content.digest, content.name)
    if target.exists():
        return target
    try:
        _refuse_odd(Path(content.source))
    except OSError as error:
        raise InputError(f"cannot be read whole: {error.strerror}.", field=content.source) from None
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix="new.", dir=shared.tasks))
    try:
        shutil.copytree(content.source, staging / content.name)
        take_place(staging / content.name, target)
    except (OSError, shutil.Error) as error:
        raise InputError(f"cannot be read whole: {error}", field=content.source) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _refuse_odd(folder: Path) -> None:
    problems = tuple(
        Problem(message=reason, field=str(path), fix="Replace it by a file or folder of the task's own.")
        for path, reason in _odd(folder, folder.resolve(), ())
    )
    if problems:
        raise InputError(problems=problems)


def _odd(folder: Path, home: Path, around: tuple[Path, ...]) -> Iterator[tuple[Path, str]]:
    """What is no file and no folder of ``home``'s own; ``around`` are the folders this one is in, resolved."""
    around = (*around, folder.resolve())
    for path in sorted(folder.iterdir()):
        try:
            real = path.resolve(strict=True)
            mode = real.stat().st_mode
        except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
            yield path, "is a link that leads nowhere, or cannot be read."
            continue
        if not real.is_relative_to(home):
            yield path, "is a link that leads out of the task's folder."
        elif real in around:
            yield path, "is a link to a folder that it lies in."
        elif stat.S_ISDIR(mode):
            yield from _odd(path, home, around)
        elif not stat.S_ISREG(mode):
            yield path, "is neither a file nor a folder."


def take_place(staged: Path, target: Path) -> None:
    """Move a content folder to where it is looked for, unless the same content is there already.

    Raises:
        OSError: it cannot be moved.
    """
    try:
        staged.rename(target)
    except OSError:
        # Another process published the same content first.
        if not target.exists():
            raise


def bring(
    site: WorkerSite, source: str, target: Path, *, only: Sequence[str] = (), gives_up: Callable[[], object]
) -> None:
    """Fetch from the controller, tried again with growing waits while that may help and ``gives_up`` does not say so.

    Raises:
        TransferFailed: it could not be fetched within `BRING_SECONDS`, or never will be.
    """
    wait, until = FIRST_WAIT, time.monotonic() + BRING_SECONDS
    while True:
        try:
            move.fetch(site.remote, source, target, only=only, password=site.config.transfer_password)
            return site.sender.note(got_through=True)
        except TransferFailed as error:
            site.sender.note(got_through=False)
            if error.permanent or gives_up() or time.monotonic() > until or site.stopping.wait(wait):
                raise
            log.warning("%s; trying again", error)
            wait = min(wait * 2, LAST_WAIT)


def fetch(
    site: WorkerSite, plan: Plan, trial: PlannedTrial, *, gives_up: Callable[[], object] = lambda: False
) -> Path | None:
    """The trial's content folder on this worker, fetched if it is not there; None if the trial needs none.

    Raises:
        TransferFailed: it could not be fetched.
    """
    if not trial.content:
        return None
    name = next(content.name for content in plan.contents if content.digest == trial.content)
    return hold(site, trial.content, name, gives_up=gives_up)


def hold(site: WorkerSite, digest: str, name: str, *, gives_up: Callable[[], object], ahead: bool = False) -> Path:
    """A content folder on this worker, fetched if it is not there; it counts as used now.

    ``ahead``: for a run that may come; where it is fetched for that it is marked, until a trial asks for it.

    Raises:
        TransferFailed: it could not be fetched.
    """
    target = site.local.task(digest, name)
    with _found:
        missing = not target.exists()
        _mark(site.local, digest, ahead=ahead and missing, used=not ahead)
        if not missing:
            with suppress(OSError):
                os.utime(target.parent)  # used now, see `drop`
    if missing:
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            bring(site, f"tasks/{digest}/{name}", target, gives_up=gives_up)
        except TransferFailed:
            with _found:
                _mark(site.local, digest, ahead=False, used=not target.exists())
            raise
        with _found:
            # It may have been marked while this waited for it.
            _mark(site.local, digest, ahead=False, used=not ahead)
    with suppress(AeoError):  # it is told with the next trial then
        _tell(site, digest, fetched=missing)
    return target


def _mark(local: Local, digest: str, *, ahead: bool, used: bool) -> None:
    """Set the mark of a folder that is fetched ahead, or take it off one that is used; under `_found`."""
    mark = local.ahead_mark(digest)
    with suppress(OSError):
        if ahead:
            mark.parent.mkdir(parents=True, exist_ok=True)
            mark.touch(mode=0o600)
        elif used:
            mark.unlink(missing_ok=True)


def drop(local: Local, digest: str, before: float, *, ahead: bool = False) -> bool:
    """Remove a task folder from this worker if it was used last before then.

    ``ahead``: only one that was fetched ahead, is whole, and was not used since.
    Its name goes first: after a crash what is left lies in `Local.aside`.
    """
    folder, aside = local.tasks / digest, local.aside / f"tasks.{digest}"
    try:
        with _found:
            if folder.stat().st_mtime >= before:
                return False
            if ahead and not (local.ahead_mark(digest).exists() and any(_visible(folder))):
                return False
            local.aside.mkdir(exist_ok=True, mode=0o700)
            folder.rename(aside)
    except OSError:
        return False
    shutil.rmtree(aside, ignore_errors=True)
    return True


def _tell(site: WorkerSite, digest: str, *, fetched: bool) -> None:
    """Let the store know that this worker holds a folder: once a trial, so heartbeats carry nothing of it.

    Everything is told anew where the store forgot it, or thought the folder here when it was not.
    """
    known, alone = held.add(site.db, site.config.worker_id, digest)
    if alone or (known and fetched):
        whole = [entry.name for entry in site.local.tasks.iterdir() if any(_visible(entry))]
        held.replace(site.db, site.config.worker_id, whole)


def _visible(folder: Path) -> Iterator[Path]:
    return (entry for entry in folder.iterdir() if not entry.name.startswith(".")) if folder.is_dir() else iter(())
