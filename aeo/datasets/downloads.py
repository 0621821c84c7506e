"""Fetching a dataset: a program of its own that goes on whatever becomes of the web process.

In its state folder lie ``lock`` (held by the program as long as it lives, however it ends), ``started.json``,
``progress.jsonl`` (what it prints, see `aeo.executors.Datasets`), ``request.json``, ``log``, ``incoming/``, ``tmp/``.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from enum import Enum
from pathlib import Path
from typing import Any

from aeo import codec, lock
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.executors import Datasets, Source
from aeo.layout import Shared

#: Seconds for which a lock is waited for: another who only looks holds it for a moment.
_LOCK_SECONDS = 2.0
#: Seconds that a download gets to end after SIGTERM.
STOP_SECONDS = 5.0
#: Bytes read of what a download printed.
_LIMIT = 16 * 1024 * 1024


class DownloadState(str, Enum):
    """How a download is doing."""

    RUNNING = "running"
    #: The dataset is here.
    DONE = "done"
    #: It said why; what was fetched is kept for the next start.
    FAILED = "failed"
    #: A person stopped it.
    CANCELLED = "cancelled"
    #: Its process is gone without a word: killed, or the machine restarted.
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, kw_only=True)
class Download:
    """The last download of a dataset."""

    state: DownloadState
    #: Tasks; None until the registry said how many there are.
    total: int | None
    done: int
    started_at: datetime
    #: When it last said something.
    updated_at: datetime
    by: str = ""
    #: What it is at, beyond counts.
    note: str = ""
    #: Why it failed, and what to do.
    message: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class _Started:
    at: datetime
    by: str
    #: Also its process group.
    pid: int


def start(
    shared: Shared, name: str, knows: Datasets, source: Source, *, by: str, then: Callable[[], object] = lambda: None
) -> Download:
    """Start, or go on with, the download of a dataset; ``then`` is called in a thread when it has ended.

    Raises:
        InputError: it comes from no registry.
        Conflict: it is being downloaded.
        Unavailable: the program could not be started.
    """
    if not source.reference:
        raise InputError(
            f"{name} is a path; there is nothing to download.", field="name", fix="Change the files in its folder."
        )
    state = shared.dataset_state(name)
    state.mkdir(parents=True, exist_ok=True)
    with _locked(state / "lock") as held:
        if held is None:
            raise Conflict(f"{name} is being downloaded already.", field="name")
        process = _launch(state, held, shared.dataset(name), knows, source)
        begun = _Started(at=datetime.now(timezone.utc), by=by, pid=process.pid)
        (state / "started.json").write_text(codec.dumps(begun))
    threading.Thread(target=lambda: (process.wait(), then()), name=f"download {name}", daemon=True).start()
    return status(shared, name) or _download(begun, [], state, running=True)


def _launch(state: Path, held: int, folder: Path, knows: Datasets, source: Source) -> subprocess.Popen[bytes]:
    (state / "started.json").unlink(missing_ok=True)
    staging, scratch, progress = state / "incoming", state / "tmp", state / "progress.jsonl"
    done = [str(line["done"]) for line in _lines(progress) if "done" in line] if staging.is_dir() else []
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    command = knows.download(source, folder, staging, list(dict.fromkeys(done)))
    (state / "request.json").write_text(json.dumps(dict(command.request)))
    progress.write_bytes(b"")
    try:
        with (state / "request.json").open() as request, progress.open("ab") as said, (state / "log").open("wb") as log:
            return subprocess.Popen(
                command.argv,
                env={**command.env, "TMPDIR": str(scratch)},
                cwd=state,
                stdin=request,
                stdout=said,
                stderr=log,
                start_new_session=True,
                # With it goes the lock: it ends with the program, however that ends.
                pass_fds=(held,),
            )
    except OSError as error:
        raise Unavailable(f"The download could not be started: {error.strerror}.") from error


def status(shared: Shared, name: str) -> Download | None:
    """How the last download is doing; None when there was none."""
    state = shared.dataset_state(name)
    try:
        begun = codec.loads(_Started, (state / "started.json").read_bytes())
    except (OSError, InputError):
        return None
    # In this order: what ended in between has said its last word.
    running = is_running(shared, name)
    return _download(begun, list(_lines(state / "progress.jsonl")), state, running=running)


def _download(begun: _Started, lines: list[Mapping[str, Any]], state: Path, *, running: bool) -> Download:
    said: dict[str, Any] = {}
    for line in lines:
        said.update(line)
    failed = said.get("failed") if isinstance(said.get("failed"), dict) else None
    at = begun.at
    with suppress(OSError):
        at = max(at, datetime.fromtimestamp((state / "progress.jsonl").stat().st_mtime, timezone.utc))
    total = said.get("total")
    return Download(
        state=_state(said, running=running),
        total=total if isinstance(total, int) else None,
        done=len({str(line["done"]) for line in lines if "done" in line}),
        started_at=begun.at,
        updated_at=at,
        by=begun.by,
        note=str(said.get("note", "")),
        message=str(failed.get("message", "")) if failed else "",
        fix=str(failed.get("fix", "")) if failed else "",
    )


def _state(said: Mapping[str, Any], *, running: bool) -> DownloadState:
    if "finished" in said:
        return DownloadState.DONE
    if "cancelled" in said and not running:
        return DownloadState.CANCELLED
    if "failed" in said and "cancelled" not in said:
        return DownloadState.FAILED
    return DownloadState.RUNNING if running else DownloadState.INTERRUPTED


def is_running(shared: Shared, name: str) -> bool:
    """Whether a download's program lives."""
    return lock.is_held(shared.dataset_state(name) / "lock")


def cancel(shared: Shared, name: str) -> Download:
    """Stop a download; what it fetched is kept for the next start. Returns when its processes are gone.

    Raises:
        NotFound: there was none.
        Conflict: it does not run.
    """
    if status(shared, name) is None:
        raise NotFound(f"{name} is not being downloaded.", field="name")
    state = shared.dataset_state(name)
    begun = codec.loads(_Started, (state / "started.json").read_bytes())
    if not is_running(shared, name):
        raise Conflict(f"{name} is not being downloaded.", field="name")
    with (state / "progress.jsonl").open("ab") as progress:
        progress.write(b'{"cancelled": true}\n')
    # The lock is held, so the number is still the program's.
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(begun.pid, number)
        until = time.monotonic() + STOP_SECONDS
        while is_running(shared, name) and time.monotonic() < until:
            time.sleep(0.02)
    found = status(shared, name)
    assert found is not None  # noqa: S101 - it was there above
    return found


@contextmanager
def _locked(path: Path) -> Iterator[int | None]:
    """Hold a lock file, or give None when another does."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield descriptor if _lock(descriptor) else None
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    until = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > until:
                return False
            time.sleep(0.02)
        else:
            return True


def _lines(path: Path) -> Iterator[Mapping[str, Any]]:
    """What a download printed so far; what is no line of ours is passed over."""
    try:
        with path.open("rb") as file:
            text = file.read(_LIMIT)
    except OSError:
        return
    for line in text.splitlines():
        with suppress(ValueError, RecursionError):
            read = json.loads(line)
            if isinstance(read, dict):
                yield read
