"""Copying on one machine without rsync, by the same rules."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
import stat
from pathlib import Path
from typing import BinaryIO

from aeo.transfer.tree import Tree

_CHUNK = 1024 * 1024
#: Bytes from which on it is tried whether the file system can share them.
_WORTH_SHARING = 64 * 1024
#: Linux: this file is to have that one's content.
_FICLONE = 0x40049409


def folder(source: Path, target: Path, content: Tree) -> None:
    """Copy the files and folders of ``content`` from ``source`` to ``target``, over what is there.

    What is there already, by size and time as rsync looks at it, is left as it is: somebody may be reading it.

    Raises:
        OSError: something could not be read or written, or is no regular file any more.
    """
    new = not target.exists()
    target.mkdir(parents=True, exist_ok=True)
    target.chmod(0o755)
    for name in content.folders:
        below = target / name
        below.mkdir(exist_ok=True)
        below.chmod(0o755)
    here, there = str(source), str(target)
    for name in content.files:
        if new:
            _write(f"{here}/{name}", f"{there}/{name}")
        elif not _is_there(f"{here}/{name}", f"{there}/{name}"):
            file(source / name, target / name)


def file(source: Path, target: Path) -> None:
    """Copy one file so that it is seen whole or not at all.

    Raises:
        OSError: it could not be read or written.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{secrets.token_hex(8)}.part")
    try:
        _write(str(source), str(part))
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def open_regular(path: Path | str) -> BinaryIO:
    """Open a file to read; a link, a pipe or a device put in its place is refused and never waited for.

    Raises:
        OSError: it cannot be opened or is no regular file.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if stat.S_ISREG(os.fstat(handle).st_mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise OSError(f"{path} is no regular file")


def _is_there(source: str, target: str) -> bool:
    try:
        here, there = os.lstat(source), os.lstat(target)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(there.st_mode) and (here.st_size, here.st_mtime_ns) == (there.st_size, there.st_mtime_ns)


def _write(source: str, target: str) -> None:
    with open_regular(source) as reading:
        state = os.fstat(reading.fileno())
        mode = 0o755 if state.st_mode & 0o111 else 0o644
        handle = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            if not (state.st_size >= _WORTH_SHARING and _share(reading.fileno(), handle)):
                while chunk := reading.read(_CHUNK):
                    while chunk:
                        chunk = chunk[os.write(handle, chunk) :]
            os.fchmod(handle, mode)
            os.utime(handle, ns=(state.st_mtime_ns, state.st_mtime_ns))
        finally:
            os.close(handle)


def _share(source: int, target: int) -> bool:
    """Let the copy share its blocks with the original until one is written to, where the file system can do that.

    A hard link would be no copy: what still writes to the original would change it, and it would keep its owner.
    """
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError:
        return False
    return True


def rename(source: Path, target: Path) -> None:
    """Move a folder into place in one step, also from another file system.

    Raises:
        OSError: it cannot be moved now.
    """
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Beside the job, never inside: a job folder holds trials only.
        staging = target.parent.parent / f".incoming.{source.name}"
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(source, staging, symlinks=True)
        staging.rename(target)
        shutil.rmtree(source, ignore_errors=True)
