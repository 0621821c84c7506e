"""One running process for each root folder: a file lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from aeo.core.errors import Conflict

#: Seconds until a lock that is held is tried once more.
_AGAIN_SECONDS = 0.1


@contextmanager
def hold(path: Path, what: str, *, field: str) -> Iterator[IO[str]]:
    """Lock ``path`` (made with 0600 if it is not there) and give it, open for reading and writing.

    Raises:
        Conflict: another process holds it. The message calls that process ``what``.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        taken = _locked(file)
        if not taken:
            # Who only looks whether it is held has it for a moment.
            time.sleep(_AGAIN_SECONDS)
            taken = _locked(file)
        if not taken:
            raise Conflict(
                f"another {what} runs on {path.parent}.", field=field, fix="Stop it, or give another folder."
            )
        yield file


def is_held(path: Path) -> bool:
    """Whether a process holds this lock."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _locked(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
