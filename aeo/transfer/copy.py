"""Copying on one machine without rsync, by the same rules."""

from __future__ import annotations

import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from aeo.transfer.tree import Tree

_CHUNK = 1024 * 1024


def folder(source: Path, target: Path, content: Tree) -> None:
    """Copy the files and folders of ``content`` from ``source`` to ``target``, over what is there.

    Raises:
        OSError: something could not be read or written, or is no regular file any more.
    """
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o755)
    for name in content.folders:
        below = target / name
        below.mkdir(exist_ok=True)
        below.chmod(0o755)
    for name in content.files:
        (target / name).unlink(missing_ok=True)
        _write(source / name, target / name)


def file(source: Path, target: Path) -> None:
    """Copy one file so that it is seen whole or not at all.

    Raises:
        OSError: it could not be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        _write(source, part)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def open_regular(path: Path) -> BinaryIO:
    """Open a file to read; a link, a pipe or a device put in its place is refused and never waited for.

    Raises:
        OSError: it cannot be opened or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(f"{path} is no regular file")


def _write(source: Path, target: Path) -> None:
    with open_regular(source) as reading:
        state = os.fstat(reading.fileno())
        mode = 0o755 if state.st_mode & 0o111 else 0o644
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as writing:
            shutil.copyfileobj(reading, writing, _CHUNK)
            os.fchmod(writing.fileno(), mode)
        os.utime(target, ns=(state.st_mtime_ns, state.st_mtime_ns), follow_symlinks=False)
