"""A run's folder on the controller. Nothing in it is trusted: no link is followed, only regular files are opened."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from pathlib import Path

from aeo.artifacts.place import MOST_FILES, Entry, Listing, parts_of
from aeo.core.errors import NotFound
from aeo.redaction import Redactor
from aeo.transfer import tree

_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
#: What opening says of a link, of a file in place of a folder, of what may not be read or is not there.
_NONE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.EPERM, errno.ENXIO, errno.ENAMETOOLONG}
)


class Folder:
    """See `aeo.artifacts.place.Place`."""

    live = False

    def __init__(self, root: Path, redactor: Redactor, *, key: str = ""):
        self._root, self.redactor, self.key = root, redactor, key

    def listing(self) -> Listing:
        """See `aeo.artifacts.place.Place`."""
        found: list[Entry] = []
        waiting = [""]
        more = False
        while waiting:
            below = waiting.pop(0)
            with suppress(OSError), os.scandir(self._root / below) as entries:
                for entry in entries:
                    name = f"{below}/{entry.name}" if below else entry.name
                    if tree.odd(entry.name) or tree.too_long(name):
                        continue
                    if len(found) + len(waiting) >= MOST_FILES:
                        more = True
                        break
                    with suppress(OSError):
                        if entry.is_dir(follow_symlinks=False):
                            waiting.append(name)
                        elif entry.is_file(follow_symlinks=False):
                            found.append(_entry(name, entry.stat(follow_symlinks=False)))
        return Listing(entries=tuple(sorted(found, key=lambda entry: entry.name)), more=more)

    def extent(self, name: str) -> tuple[int, int]:
        """See `aeo.artifacts.place.Place`."""
        with self._opened(name) as file:
            return 0, os.fstat(file).st_size

    def read(self, name: str, offset: int, limit: int) -> bytes:
        """See `aeo.artifacts.place.Place`."""
        with self._opened(name) as file:
            return os.pread(file, max(0, limit), max(0, offset))

    def identity(self, name: str) -> str:
        """See `aeo.artifacts.place.Place`."""
        with self._opened(name) as file:
            state = os.fstat(file)
            return f"{state.st_dev}.{state.st_ino}.{state.st_size}.{state.st_mtime_ns}"

    @contextmanager
    def _opened(self, name: str) -> Iterator[int]:
        """A descriptor of a regular file, found part by part, so that no link leads anywhere."""
        *folders, last = parts_of(name)
        try:
            at = os.open(self._root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                for folder in folders:
                    below = os.open(folder, _FLAGS | os.O_DIRECTORY, dir_fd=at)
                    os.close(at)
                    at = below
                file = os.open(last, _FLAGS, dir_fd=at)
            finally:
                os.close(at)
        except OSError as error:
            if error.errno in _NONE:
                raise NotFound(f"The trial has no file {name[:200]!r}.", field="path") from None
            raise
        try:
            if not stat.S_ISREG(os.fstat(file).st_mode):
                raise NotFound(f"The trial has no file {name[:200]!r}.", field="path")
            yield file
        finally:
            os.close(file)


def _entry(name: str, state: os.stat_result) -> Entry:
    return Entry(name=name, size=state.st_size, modified_at=datetime.fromtimestamp(state.st_mtime, timezone.utc))
