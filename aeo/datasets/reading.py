"""The tasks of a folder, read by its executor once and kept until a file in it changes."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import lru_cache
from itertools import islice
from pathlib import Path

from aeo import codec
from aeo.core.errors import InputError
from aeo.executors import Datasets, TaskInfo
from aeo.layout import Shared

#: Seconds for which a folder that was looked at counts as unchanged.
LOOK_SECONDS = 10.0
#: Most files of a dataset: nobody means a whole disk.
FILE_LIMIT = 200_000
_FILE = "tasks.json"
#: Of what is kept of a task: what an older version kept is read anew.
_VERSION = b"3"

_locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
#: Folder to when it was looked at, and what its state was then.
_looked: dict[str, tuple[float, str]] = {}


@dataclass(frozen=True, kw_only=True)
class TaskList:
    """What was read of a folder."""

    path: str
    #: Changes with every file in it.
    state: str
    read_at: datetime
    tasks: tuple[TaskInfo, ...]

    @property
    def digest(self) -> str:
        """Of all sound tasks: SHA-256 over their sorted digests, as registries of tasks compute it; "" for none."""
        digests = sorted(task.digest for task in self.tasks if task.digest)
        return hashlib.sha256(",".join(digests).encode()).hexdigest() if digests else ""


def tasks(shared: Shared, name: str, knows: Datasets, folder: Path, *, anew: bool = False) -> TaskList:
    """The tasks of a dataset's folder; while somebody reads them anew, others get what was read before.

    ``anew``: read every file, also where none seems to have changed.

    Raises:
        InputError: the folder is no dataset, or cannot be read.
        Unavailable: the executor is away.
    """
    kept = shared.dataset_state(name) / _FILE
    known = _known(kept)
    same = known is not None and known.path == str(folder)
    lock = _locks[str(kept)]
    if anew:
        forget(folder)
    if not lock.acquire(blocking=anew or not same):
        assert known is not None  # noqa: S101 - else the lock was waited for
        return known
    try:
        state, known = _state(folder), _known(kept)
        if not anew and known is not None and (known.path, known.state) == (str(folder), state):
            return known
        found = TaskList(path=str(folder), state=state, read_at=datetime.now(timezone.utc), tasks=knows.tasks(folder))
        kept.parent.mkdir(parents=True, exist_ok=True)
        draft = kept.with_suffix(".new")
        draft.write_text(codec.dumps(found))
        draft.replace(kept)
        return found
    finally:
        lock.release()


def forget(folder: Path) -> None:
    """Look at a folder at once when it is asked for next."""
    _looked.pop(str(folder), None)


def _known(path: Path) -> TaskList | None:
    try:
        return _load(path, path.stat().st_mtime_ns)
    except (OSError, InputError):
        return None


@lru_cache(maxsize=64)
def _load(path: Path, _changed: int) -> TaskList:
    return codec.loads(TaskList, path.read_bytes())


def _state(folder: Path) -> str:
    looked, state = _looked.get(str(folder), (float("-inf"), ""))
    if time.monotonic() - looked < LOOK_SECONDS:
        return state
    seen = hashlib.sha256(_VERSION)
    try:
        lines = list(islice(_entries(str(folder)), FILE_LIMIT + 1))
    except OSError as error:
        raise InputError(f"{folder} cannot be read: {error.strerror}.", field="path") from None
    if len(lines) > FILE_LIMIT:
        raise InputError(
            f"{folder} has more than {FILE_LIMIT} files.", field="path", fix="Give the folder of tasks alone."
        )
    for line in sorted(lines):
        seen.update(line)
    state = seen.hexdigest()
    _looked[str(folder)] = (time.monotonic(), state)
    return state


def _entries(folder: str) -> Iterator[bytes]:
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield os.fsencode(f"{entry.path}/\n")
                yield from _entries(entry.path)
            else:
                seen = entry.stat(follow_symlinks=False)
                yield os.fsencode(f"{entry.path}\0{seen.st_size}\0{seen.st_mtime_ns}\0{seen.st_mode}\n")
