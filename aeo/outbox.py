"""Finished results on their way home: kept on the worker until the controller has committed them."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from aeo.core.errors import AeoError, NotFound, TransferFailed, Unavailable
from aeo.core.model import Claim, TrialState
from aeo.layout import manifest_of, run_name
from aeo.site import WorkerSite
from aeo.store import trials
from aeo.transfer import kept, move
from aeo.transfer import manifest as manifests
from aeo.transfer.manifest import Manifest

log = logging.getLogger(__name__)

#: Seconds between tries, doubling from the first to the last.
FIRST_WAIT, LAST_WAIT = 0.5, 30.0
#: Seconds between two rounds over what lies here.
ROUND_SECONDS = 10.0


def put(site: WorkerSite, claim: Claim, run_dir: Path, started_at: datetime, finished_at: datetime) -> Path:
    """Move a finished run into the outbox, its manifest beside it; returns its folder there.

    What is too large to travel is kept apart, see `aeo.transfer.kept`.
    """
    aside = site.local.kept(claim.evaluation, claim.trial, claim.token)
    notes = kept.set_aside(run_dir, aside, file_bytes=int(site.config.max_file_mb * 1024 * 1024))
    manifest = manifests.make(
        run_dir,
        evaluation=claim.evaluation,
        trial=claim.trial,
        token=claim.token,
        worker=claim.worker,
        attempt=claim.attempt,
        started_at=started_at,
        finished_at=finished_at,
        notes=notes,
    )
    folder = site.local.finished(claim.evaluation, claim.trial, claim.token)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # The manifest first: a folder without one would never be sent nor dropped.
    manifests.save(manifest, manifest_of(folder))
    run_dir.rename(folder)
    return folder


def send(site: WorkerSite, folder: Path) -> None:
    """Push one finished run and tell the controller; what was pushed before costs little.

    Raises:
        TransferFailed: it could not be pushed.
        Unavailable: the store could not be told.
    """
    manifest = manifests.load(manifest_of(folder))
    target = f"inbox/{manifest.evaluation}/{run_name(manifest.trial, manifest.token)}"
    password = site.config.transfer_password
    move.push(site.remote, folder, target, password=password)
    # The manifest last: its presence says that the folder is complete.
    move.push(site.remote, manifest_of(folder), f"{target}.json", password=password)
    trials.pushed(site.db, manifest.claim)
    _sent(folder).touch()


def deliver(
    site: WorkerSite,
    claim: Claim,
    run_dir: Path,
    *,
    started_at: datetime,
    finished_at: datetime,
    gives_up: Callable[[str], bool],
) -> bool:
    """`put` and `send` a finished run, tried again with growing waits; False when ``gives_up`` says so of the problem.

    What was given up is sent by `keep`.
    """
    site.sending.add(claim.token)
    try:
        folder = put(site, claim, run_dir, started_at, finished_at)
        wait = FIRST_WAIT
        while (problem := _failure(site, folder)) is not None:
            log.warning("push of %s failed, next try in %.1f s: %s", folder.name, wait, problem)
            if gives_up(problem) or site.stopping.wait(wait):
                return False
            wait = min(LAST_WAIT, wait * 2)
        return True
    finally:
        site.sending.discard(claim.token)


def _failure(site: WorkerSite, folder: Path) -> str | None:
    try:
        send(site, folder)
    except (TransferFailed, Unavailable) as error:
        return str(error)
    return None


def keep(site: WorkerSite, stop: threading.Event) -> None:
    """Until ``stop``: send what no batch sends any more, drop what the controller has committed."""
    while True:
        for folder in list(_entries(site)):
            with suppress(AeoError, OSError):
                _attend(site, folder)
        if stop.wait(ROUND_SECONDS):
            return


def tidy(site: WorkerSite, evaluation: str) -> None:
    """Drop what the controller has committed of one evaluation."""
    for folder in list(_entries(site)):
        if folder.parent.name == evaluation:
            with suppress(AeoError):
                _attend(site, folder)


def _attend(site: WorkerSite, folder: Path) -> None:
    manifest = manifests.load(manifest_of(folder))
    if manifest.token in site.sending:
        return
    if not _sent(folder).exists():
        if not folder.exists():
            # Its worker died before the folder came here; the run is lost and its trial was given back.
            _drop(folder)
            return
        send(site, folder)
    if _sent(folder).exists() and _committed(site, manifest):
        _drop(folder)


def _committed(site: WorkerSite, manifest: Manifest) -> bool:
    try:
        return trials.state(site.db, manifest.evaluation, manifest.trial) is TrialState.DONE
    except NotFound:
        # The store may have been wiped; recovery will know the evaluation again, or it was removed with its folder.
        return False


def _drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _sent(folder).unlink(missing_ok=True)
    manifest_of(folder).unlink(missing_ok=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _entries(site: WorkerSite) -> Iterator[Path]:
    for path in sorted(site.local.outbox.glob("*/*.json")):
        yield path.with_name(path.name.removesuffix(".json"))


def _sent(folder: Path) -> Path:
    return folder.with_name(folder.name + ".sent")
