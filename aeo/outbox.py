"""Finished results on their way home: kept on the worker until the controller has committed them."""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aeo.core.errors import AeoError, TransferFailed
from aeo.core.model import Claim, TrialState
from aeo.layout import Local, manifest_of
from aeo.store import access, trials
from aeo.store.connection import Denied
from aeo.transfer import kept, move, tree
from aeo.transfer import manifest as manifests

if TYPE_CHECKING:
    from aeo.site import WorkerSite

log = logging.getLogger(__name__)

#: Seconds between two rounds over what lies here.
ROUND_SECONDS = 10.0
#: What the manifest's name ends with once the controller was told.
_SENT = ".sent"
#: Trials whose state is asked for at once.
_ASKED_AT_ONCE = 1000


def put(site: WorkerSite, claim: Claim, run_dir: Path, started_at: datetime, finished_at: datetime) -> Path:
    """Move a finished run into the outbox, its manifest beside it; returns its folder there.

    What is too large to travel is kept apart, see `aeo.transfer.kept`.
    """
    aside = site.local.kept(claim.evaluation, claim.trial, claim.token)
    content = tree.read(run_dir)
    notes = kept.set_aside(run_dir, aside, content, file_bytes=int(site.config.max_file_mb * 1024 * 1024))
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
        # What was set aside is not there any more.
        content=None if notes else content,
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
    problem = send_all(site, [folder]).get(folder)
    if problem is not None:
        raise problem


def send_all(site: WorkerSite, folders: Sequence[Path]) -> dict[Path, AeoError]:
    """`send` several together; returns what went wrong, by folder.

    When not all could be pushed together, they are one by one, unless the first then says that this would not help.
    """
    problems = _push(site, folders)
    arrived = [folder for folder in folders if folder not in problems]
    try:
        claims = [manifests.claim_of(manifest_of(folder)) for folder in arrived]
        if len(claims) == 1:
            trials.pushed(site.db, claims[0])
        elif claims:
            trials.pushed_all(site.db, claims)
    except AeoError as error:
        return {**problems, **dict.fromkeys(arrived, error)}
    for folder in arrived:
        # A new name, as another file would cost more; where that fails it is sent once more.
        with suppress(OSError):
            manifest_of(folder).replace(_sent(folder))
    return problems


def _push(site: WorkerSite, folders: Sequence[Path]) -> dict[Path, AeoError]:
    names = {folder: f"{folder.parent.name}/{folder.name}" for folder in folders}
    password = site.config.transfer_password

    def push(some: Sequence[Path]) -> AeoError | None:
        try:
            # The manifests last: their presence says that the folders are complete.
            move.push_all(site.remote, site.local.outbox, [names[one] for one in some], "inbox", password=password)
            files = [names[one] + manifest_of(one).name.removeprefix(one.name) for one in some]
            move.push_all(site.remote, site.local.outbox, files, "inbox", password=password)
        except AeoError as error:
            return error
        return None

    problem = push(folders)
    if problem is None:
        return {}
    if len(folders) == 1:
        return {folders[0]: problem}
    first = push(folders[:1])
    if first is not None:
        return dict.fromkeys(folders, first)
    return {folder: problem for folder in folders[1:] if (problem := push([folder])) is not None}


def keep(site: WorkerSite, stop: threading.Event) -> None:
    """Until ``stop``: send what no batch sends any more, drop what the controller has committed."""
    while True:
        for folder in list(_entries(site)):
            with suppress(AeoError, OSError), _asking(site, folder.parent.name):
                _attend(site, folder)
        with suppress(AeoError, OSError):
            _drop_committed(site, _entries(site))
        if stop.wait(ROUND_SECONDS):
            return


def finish_moves(local: Local) -> None:
    """Bring here what a process that died had begun to: the manifest, which is made when a run is over, lies here."""
    for manifest in local.outbox.glob("*/*.json"):
        folder = manifest.with_name(manifest.name.removesuffix(".json"))
        if not folder.exists():
            for left in local.batches.glob(f"*/{folder.name}"):
                with suppress(OSError):
                    left.rename(folder)


def unsent(site: WorkerSite) -> list[Path]:
    """The folders of runs that lie here and of which the controller was not told."""
    return [folder for folder in _entries(site) if folder.exists() and not _sent(folder).exists()]


def tidy(site: WorkerSite, evaluation: str) -> None:
    """Drop what the controller has committed of one evaluation."""
    with suppress(AeoError):
        _drop_committed(site, (folder for folder in _entries(site) if folder.parent.name == evaluation))


def _attend(site: WorkerSite, folder: Path) -> None:
    """Send what nobody sends; drop what cannot be sent."""
    if _sent(folder).exists() or _token(folder) in site.sending:
        return
    manifests.load(manifest_of(folder))
    if folder.exists():
        send(site, folder)
    else:
        # Its worker died before the folder came here; the run is lost and its trial was given back.
        _drop(folder)


def _drop_committed(site: WorkerSite, folders: Iterable[Path]) -> None:
    """Drop what was sent and is committed.

    Of an evaluation that the store does not know nothing is: the store may have been wiped; recovery will know it
    again, or it was removed with its folder.
    """
    sent: dict[str, list[Path]] = {}
    for folder in folders:
        if _sent(folder).exists() and _token(folder) not in site.sending:
            sent.setdefault(folder.parent.name, []).append(folder)
    for evaluation, ours in sent.items():
        for start in range(0, len(ours), _ASKED_AT_ONCE):
            chunk = ours[start : start + _ASKED_AT_ONCE]
            names = [folder.name.rpartition(".")[0] for folder in chunk]
            states: Mapping[str, TrialState] = {}
            with suppress(Denied), _asking(site, evaluation):
                states = trials.states_of(site.db, evaluation, names)
            for folder in chunk:
                if states.get(folder.name.rpartition(".")[0]) is TrialState.DONE:
                    _drop(folder)


@contextmanager
def _asking(site: WorkerSite, evaluation: str) -> Iterator[None]:
    """Ask for an evaluation that is over, where that is why something was refused: it is given for a while."""
    try:
        yield
    except (Denied, TransferFailed) as error:
        # Of the daemons only the controller's own goes by evaluations.
        if isinstance(error, Denied) or site.remote.is_ours:
            access.ask_for(site.db, site.config.worker_id, evaluation)
        raise


def _token(folder: Path) -> str:
    return folder.name.rpartition(".")[2]


def _drop(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    _sent(folder).unlink(missing_ok=True)
    manifest_of(folder).unlink(missing_ok=True)
    with suppress(OSError):
        folder.parent.rmdir()


def _entries(site: WorkerSite) -> Iterator[Path]:
    """The folders of runs that lie here, or are to come here: what has a manifest."""
    for path in sorted(site.local.outbox.glob("*/*")):
        if path.suffix in (".json", _SENT) and not path.name.startswith("."):
            yield path.with_name(path.name.removesuffix(path.suffix))


def _sent(folder: Path) -> Path:
    """The manifest of a run that the controller was told of."""
    return folder.with_name(folder.name + _SENT)
