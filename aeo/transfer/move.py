"""Moving folders between this machine and the controller's shared root.

A push writes straight into the final files (``--inplace``): nobody reads that folder until its manifest, pushed last
and as one file, is there. So a push that was cut off leaves no temporary names behind, and the next one goes on where
it stopped. A fetch goes into a folder beside its target, which is renamed when it is whole.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from aeo.core.errors import InputError, TransferFailed
from aeo.core.names import check_name
from aeo.core.words import count
from aeo.layout import inside
from aeo.transfer import copy, rsync, tree
from aeo.transfer.remote import INBOX, Remote

#: On one machine, a folder of at most so many files and bytes is copied before rsync has even started.
SMALL_FILES, SMALL_BYTES = 200, 32 * 1024 * 1024

_PERMANENT_ERRORS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


def push(remote: Remote, source: Path, target: str, *, password: str = "") -> None:
    """Copy the content of the folder ``source`` into the folder ``target`` below ``remote``, or one file to that name.

    What travels of a folder is what `aeo.transfer.tree.read` lists; call it again to go on after a failure.

    Raises:
        InputError: ``source`` is no folder or file, or ``target`` is no path of plain names.
        TransferFailed: it did not arrive; ``permanent`` says whether trying again helps.
    """
    parts = _parts(target)
    source = source.absolute()
    if source.is_symlink() or not (source.is_dir() or source.is_file()):
        raise InputError(f"{source} is no folder or file that could be moved.")
    what = f"could not copy {source.name} to {remote}/{target}"
    with _told(what):
        if remote.kind == "local":
            place = _local(remote, parts)
            place.parent.mkdir(parents=True, exist_ok=True)
            content = tree.read(source) if source.is_dir() else None
            if _is_copied(source, content):
                _copy(source, place, content)
                return
        if source.is_dir():
            _push_folder(remote, source, target, password, what)
        else:
            _push(remote, [str(source), remote.destination(target)], target, password, what)


def push_all(remote: Remote, root: Path, names: Sequence[str], target: str, *, password: str = "") -> None:
    """`push` several folders or files, each ``root/name`` to ``target/name``, in one go.

    Raises:
        InputError: one is no folder or file, or has no path of plain names.
        TransferFailed: not all have arrived; ``permanent`` says whether trying again helps.
    """
    if remote.kind == "local" or len(names) == 1:
        for name in names:
            push(remote, root / name, f"{target}/{name}", password=password)
        return
    paths: list[str] = []
    for name in names:
        _parts(name)
        source = root / name
        paths.append(name)
        if source.is_dir() and not source.is_symlink():
            content = tree.read(source)
            paths += [f"{name}/{below}" for below in (*content.folders, *content.files)]
        elif source.is_symlink() or not source.is_file():
            raise InputError(f"{source} is no folder or file that could be moved.")
    what = f"could not copy {count(len(names), 'result')} to {remote}/{target}"
    # A file is seen whole or not at all; a folder is written in place, see above. The folders around them may be
    # another user's, so nothing is changed there.
    place = ["--inplace"] if len(paths) > len(names) else []
    options = [*place, "--files-from=-", "--from0", "--no-implied-dirs"]
    listed = b"".join(b"./" + os.fsencode(name) + b"\0" for name in paths)
    with _told(what):
        _push(remote, [*options, f"{root}/", remote.destination(f"{target}/")], f"{target}/x", password, what, listed)


def fetch(remote: Remote, source: str, target: Path, *, only: Sequence[str] = (), password: str = "") -> None:
    """Copy the folder ``source`` below ``remote`` to ``target``, which appears at once and whole.

    Does nothing when ``target`` exists: what is fetched never changes. With ``only``, just these files of the folder.
    Several callers may fetch the same folder; one does, the others wait for it.

    Raises:
        InputError: ``source`` or ``only`` has a part that is no plain name.
        TransferFailed: it did not arrive; ``permanent`` says whether trying again helps.
    """
    parts = _parts(source)
    names = tuple(check_name(name, "file name") for name in only)
    target = target.absolute()
    what = f"could not fetch {remote}/{source}"
    with _told(what), _alone(target):
        if target.exists():
            return
        part = target.with_name(f".{target.name}.part")
        place = _local(remote, parts) if remote.kind == "local" else None
        if place and _is_copied(place, tree.read(place, odd_names=True) if place.is_dir() else None):
            _fetch_copy(place, part, names)
        else:
            _fetch(remote, source, part, names, password, what)
        missing = [name for name in names if not (part / name).is_file()]
        if missing:
            raise TransferFailed(f"{what}: {missing[0]} is not there", permanent=True)
        part.rename(target)


def check(remote: Remote, *, password: str = "") -> None:
    """Try the address: the root can be listed, and its ``inbox`` can be written to.

    Raises:
        TransferFailed: it cannot be used; the message says why, and which package to install if one is missing.
    """
    what = f"cannot use {remote}"
    if remote.kind == "local":
        _local(remote, ())
        if not os.access(remote.path, os.R_OK | os.W_OK | os.X_OK):
            raise TransferFailed(f"{what}: this user may not write there", permanent=True)
        return
    _list_root(remote, password).check(what)
    _make_folders(remote, "inbox", password).check(what)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(check_name(part, "path component") for part in path.split("/"))


def _local(remote: Remote, parts: Sequence[str]) -> Path:
    root = Path(remote.path)
    if not root.is_dir():
        raise TransferFailed(f"cannot use {remote}: there is no such folder on this machine", permanent=True)
    return inside(root, *parts)


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Turn errors of this machine's disk into TransferFailed."""
    try:
        yield
    except OSError as error:
        raise TransferFailed(f"{what}: {error}", permanent=error.errno in _PERMANENT_ERRORS) from None


def _is_copied(source: Path, content: tree.Tree | None) -> bool:
    """Whether a move on one machine is a plain copy: where rsync is not installed, and for what is small."""
    here = str(source)
    names = [here] if content is None else [f"{here}/{name}" for name in content.files]
    with suppress(FileNotFoundError):  # gone meanwhile: whoever copies it says so
        small = len(names) <= SMALL_FILES and sum(os.lstat(name).st_size for name in names) <= SMALL_BYTES
        return small or not rsync.installed()
    return True


def _copy(source: Path, target: Path, content: tree.Tree | None) -> None:
    if content is None:
        copy.file(source, target)
    else:
        copy.folder(source, target, content)


def _fetch_copy(source: Path, part: Path, names: Sequence[str]) -> None:
    content = tree.read(source, odd_names=True)
    if names:
        content = tree.Tree(files=tuple(name for name in content.files if name in names), folders=())
    shutil.rmtree(part, ignore_errors=True)
    copy.folder(source, part, content)


def _fetch(remote: Remote, source: str, part: Path, names: Sequence[str], password: str, what: str) -> None:
    filters = [*(f"--include=/{name}" for name in names), "--exclude=*"] if names else []
    options = ["--recursive", "--inplace", "--delete", *filters]
    places = [remote.argument(f"{source}/"), f"{part}/"]
    rsync.run(remote, [*rsync.RULES, *options, *places], password=password).check(what)


def _push_folder(remote: Remote, source: Path, target: str, password: str, what: str) -> None:
    content = tree.read(source)
    names = [*content.folders, *content.files]
    if not names:
        _make_folders(remote, target, password).check(what)
        return
    # "./" because rsync takes a line that begins with # or ; for a comment.
    listed = b"".join(b"./" + os.fsencode(name) + b"\0" for name in names)
    options = ["--inplace", "--files-from=-", "--from0"]
    _push(remote, [*options, f"{source}/", remote.destination(f"{target}/")], target, password, what, listed)


def _push(remote: Remote, arguments: Sequence[str], target: str, password: str, what: str, listed: bytes = b"") -> None:
    ending = rsync.run(remote, [*rsync.RULES, *arguments], password=password, listed=listed)
    if ending.no_parent:
        # Only the first push of an evaluation gets here; --mkpath would ask both sides for rsync 3.2.3. The root itself
        # must be there: rsync would make it, though a root that is gone means a disk that is not mounted.
        _list_root(remote, password).check(what)
        _make_folders(remote, target.rpartition("/")[0], password).check(what)
        ending = rsync.run(remote, [*rsync.RULES, *arguments], password=password, listed=listed)
    ending.check(what)


def _list_root(remote: Remote, password: str) -> rsync.Ending:
    arguments = [f"--timeout={rsync.QUIET_SECONDS}", "--list-only", "--dirs", remote.argument()]
    return rsync.run(remote, arguments, password=password)


def _make_folders(remote: Remote, path: str, password: str) -> rsync.Ending:
    """Make ``path`` below the root by sending a skeleton of empty folders; modes of those that exist are left alone."""
    with tempfile.TemporaryDirectory(prefix="aeo-") as skeleton:
        below = f"{path}/".removeprefix(INBOX) if remote.is_ours else path
        Path(skeleton, below).mkdir(parents=True, exist_ok=True)
        arguments = ["--recursive", f"--timeout={rsync.QUIET_SECONDS}", f"{skeleton}/", remote.destination()]
        return rsync.run(remote, arguments, password=password)


@contextmanager
def _alone(target: Path) -> Iterator[None]:
    """Be the only one who fetches ``target``; the lock ends with its holder, however that ends."""
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = target.with_name(f".{target.name}.lock")
    handle = _lock(lock)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _lock(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(handle, fcntl.LOCK_EX)
        # The holder before us removed the file; then ours is not the one others will lock.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        os.close(handle)
