"""What a pushed run consists of, so that the controller can tell a whole one from a damaged one.

A manifest lies beside its run's folder and is pushed last. A loaded one was written by another machine: its names are
checked before anything is opened by them.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path

from aeo import codec
from aeo.core.errors import InputError
from aeo.core.model import Claim
from aeo.core.names import check_name
from aeo.transfer import copy, tree

#: Bytes; about 400,000 files.
LARGEST = 64 * 1024 * 1024
_CHUNK = 1024 * 1024
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file."""

    #: Bytes, as the file was read.
    size: int
    #: Of the content, in hexadecimal.
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Whose run it is, and every file it has."""

    evaluation: str
    trial: str
    token: str
    worker: str
    #: 1 for the first run.
    attempt: int
    started_at: datetime
    finished_at: datetime
    #: Relative path, with ``/``, to the file.
    files: Mapping[str, Entry] = field(default_factory=dict)
    #: What was left out, and what else a person should know of this run.
    notes: tuple[str, ...] = ()

    @property
    def claim(self) -> Claim:
        """The claim the run was made under; its batch is not known any more."""
        return Claim(
            evaluation=self.evaluation,
            trial=self.trial,
            batch="",
            worker=self.worker,
            token=self.token,
            attempt=self.attempt,
        )

    @property
    def file_count(self) -> int:
        """How many files it has."""
        return len(self.files)

    @property
    def byte_count(self) -> int:
        """Their sizes together, in bytes."""
        return sum(entry.size for entry in self.files.values())


def make(
    run_dir: Path,
    *,
    evaluation: str,
    trial: str,
    token: str,
    worker: str,
    attempt: int,
    started_at: datetime,
    finished_at: datetime,
    notes: Sequence[str] = (),
    content: tree.Tree | None = None,
) -> Manifest:
    """Read a finished run's folder; what does not travel (links, devices, odd names) is told in the notes.

    ``content`` is what the folder has, if that is known.

    Raises:
        InputError: the folder is not there, or changes while it is read.
    """
    content = content or _content(run_dir)
    return Manifest(
        evaluation=evaluation,
        trial=trial,
        token=token,
        worker=worker,
        attempt=attempt,
        started_at=started_at,
        finished_at=finished_at,
        files={name: _entry(str(run_dir), name) for name in content.files},
        notes=_plain((*notes, *content.notes)),
    )


def weight(name: str) -> int:
    """Bytes that a file of this name takes in a manifest, at most."""
    return 2 * len(os.fsencode(name)) + 120


def save(manifest: Manifest, path: Path) -> None:
    """Write it so that it is seen whole or not at all.

    Not forced to the disk, as what it is about is not either: what a power cut leaves of both is told by `verify`.
    """
    part = path.with_name(f".{secrets.token_hex(8)}.part")
    try:
        with part.open("w", encoding="utf-8") as file:
            file.write(codec.dumps(manifest))
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)


def load(path: Path) -> Manifest:
    """Read a manifest that came from another machine.

    Raises:
        InputError: it is missing, too large, not a manifest, or names a path outside its folder.
    """
    try:
        with copy.open_regular(path) as file:
            text = file.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise InputError(f"it is larger than {LARGEST} bytes.")
        return _checked(codec.loads(Manifest, text))
    except (OSError, InputError, RecursionError) as error:
        raise InputError(f"the manifest {path.name} cannot be used: {error}") from None


def claim_of(path: Path) -> Claim:
    """The claim of a run whose manifest this machine wrote itself: its files are not looked at.

    Raises:
        InputError: it is missing or not a manifest.
    """
    try:
        document = json.loads(path.read_bytes())
        names = {name: document[name] for name in ("evaluation", "trial", "worker", "token", "attempt")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"the manifest {path.name} cannot be used: {error}") from None
    return Claim(batch="", **names)


def verify(manifest: Manifest, run_dir: Path) -> None:
    """Compare a folder with its manifest, cheap checks first.

    Raises:
        InputError: a file is missing, extra, no regular file, or has another size or content; the message names it.
    """
    content = _content(run_dir)
    for reason, names in content.dropped.items():
        raise InputError(f"{names[0]!r} is not in the manifest and could not be ({reason}).")
    present = frozenset(content.files)
    for name in manifest.files:
        if name not in present:
            raise InputError(f"{name!r} is missing.")
    for name in content.files:
        if name not in manifest.files:
            raise InputError(f"{name!r} is not in the manifest.")
    for name, entry in manifest.files.items():
        size = os.lstat(f"{run_dir}/{name}").st_size
        if size != entry.size:
            raise InputError(f"{name!r} has {size} bytes instead of {entry.size}.")
    for name, entry in manifest.files.items():
        if _entry(str(run_dir), name) != entry:
            raise InputError(f"{name!r} has another content than its manifest says.")


def _content(run_dir: Path) -> tree.Tree:
    if run_dir.is_symlink() or not run_dir.is_dir():
        raise InputError(f"the folder {run_dir.name!r} is missing.")
    try:
        return tree.read(run_dir)
    except OSError as error:
        raise InputError(f"the folder {run_dir.name!r} cannot be read: {error.strerror}.") from None


def _entry(run_dir: str, name: str) -> Entry:
    digest, size = hashlib.sha256(), 0
    try:
        with copy.open_regular(f"{run_dir}/{name}") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except OSError as error:
        raise InputError(f"{name!r} cannot be read: {error.strerror or error}.") from None
    return Entry(size=size, sha256=digest.hexdigest())


def _checked(manifest: Manifest) -> Manifest:
    for value, what in (
        (manifest.evaluation, "evaluation"),
        (manifest.trial, "trial name"),
        (manifest.token, "token"),
        (manifest.worker, "worker id"),
    ):
        check_name(value, what)
    if manifest.attempt < 1:
        raise InputError("attempt must be 1 or more.")
    if manifest.started_at.tzinfo is None or manifest.finished_at.tzinfo is None:
        raise InputError("a time has no zone.")
    for name, entry in manifest.files.items():
        _check_file(name, entry)
    return replace(manifest, notes=_plain(manifest.notes))


def _plain(notes: Sequence[str]) -> tuple[str, ...]:
    """Notes as one line of text each, fit for a terminal and a page."""
    return tuple("".join(" " if tree.odd(letter) else letter for letter in note) for note in notes)


def _check_file(name: str, entry: Entry) -> None:
    parts = name.split("/")
    if any(part in ("", ".", "..") or tree.odd(part) for part in parts) or tree.too_long(name):
        raise InputError(f"{name[:200]!r} is no path inside the run's folder.")
    if entry.size < 0 or not _SHA256.fullmatch(entry.sha256):
        raise InputError(f"{name!r} has no valid size or digest.")
