"""Files that our own processes and the embedded server write their logs to: kept short, some old ones beside them.

Whoever writes appends, and need not be told: what is there is copied aside, and the file emptied. A line written in
between may be lost. Services' logs are their manager's.
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

log = logging.getLogger(__name__)

#: Bytes from which a file is put aside, and how many old ones are kept: ``<name>.1`` is the latest.
MOST_BYTES, KEPT = 16 * 1024 * 1024, 3
#: Seconds between two looks.
LOOK_SECONDS = 10.0


def rotate(path: Path, *, most: int = MOST_BYTES, kept: int = KEPT) -> bool:
    """Put a file's content aside if it is large; whether it was.

    Raises:
        OSError: it could not be.
    """
    try:
        if path.is_symlink() or path.stat().st_size < most:
            return False
    except FileNotFoundError:
        return False
    for number in range(kept - 1, 0, -1):
        with suppress(FileNotFoundError):
            _old(path, number).replace(_old(path, number + 1))
    draft = path.with_name(f".{path.name}.aside")
    shutil.copy2(path, draft)
    draft.replace(_old(path, 1))
    with path.open("r+b") as file:
        file.truncate(0)
    return True


def _old(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


@contextmanager
def kept_short(paths: Callable[[], Iterable[Path]]) -> Iterator[None]:
    """Rotate these files until the context is left."""
    over = threading.Event()

    def watch() -> None:
        while not over.wait(LOOK_SECONDS):
            for path in paths():
                try:
                    rotate(path)
                except OSError as error:
                    log.debug("%s cannot be put aside: %s", path, error)

    watcher = threading.Thread(target=watch, name="logs", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        over.set()
        watcher.join()
