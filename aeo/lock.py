"""One running process for each root folder: a file lock that ends with the process, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from aeo.core.errors import Conflict


@contextmanager
def hold(path: Path, what: str, *, field: str) -> Iterator[IO[str]]:
    """Lock ``path`` (made with 0600 if it is not there) and give it, open for reading and writing.

    Raises:
        Conflict: another process holds it. The message calls that process ``what``.
    """
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Conflict(
                f"another {what} runs on {path.parent}.", field=field, fix="Stop it, or give another folder."
            ) from None
        yield file
