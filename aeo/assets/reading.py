"""What a file or folder is made of, and the digest that names its content."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import stat
from dataclasses import dataclass, field
from pathlib import Path

from aeo.core.errors import InputError, Problem
from aeo.core.model import Asset
from aeo.executors.assets import Reference
from aeo.executors.variables import LARGEST
from aeo.transfer import copy, tree

#: Files of one evaluation's assets.
MOST_FILES = 100_000
#: Faults told of one asset.
_MOST_FAULTS = 10
_CHUNK = 1024 * 1024
#: What to do about a path that is no use.
_HERE = "What a configuration names is read on the controller, at this path: put it there, as its tasks."
EACH = "A path that each worker has itself is written with a variable, ${NAME}, set in each worker's environment."
_SECRET_FILE = re.compile(r"\.env(\..+)?|.+\.env")


@dataclass
class Room:
    """What may still come."""

    files: int = MOST_FILES
    bytes: int = 1 << 62

    def take(self, *, files: int = 0, size: int = 0) -> None:
        """Count so much more.

        Raises:
            TooMuch: there is no room for it.
        """
        self.files -= files
        self.bytes -= size
        if self.files < 0:
            raise TooMuch(f"there are more than {MOST_FILES:,} files and folders")
        if self.bytes < 0:
            raise TooMuch("all that this configuration names together is above the limit")


@dataclass
class Look:
    """What an asset is made of; paths in it are relative, as bytes; b"" is a file itself."""

    files: dict[bytes, Path] = field(default_factory=dict)
    #: What tells a file from what it was before, as far as the disk notes that.
    states: dict[bytes, tuple[int, ...]] = field(default_factory=dict)
    folders: list[bytes] = field(default_factory=list)
    faults: list[tuple[Path, str]] = field(default_factory=list)


class TooMuch(Exception):
    """There is no room for it."""


def read(reference: Reference, room: Room) -> Asset:
    """Look at one and read it.

    Raises:
        InputError: it cannot be sent; one problem for each fault.
    """
    path = Path(reference.path)
    name = path.name
    if tree.odd(name):
        raise InputError(f"the path {str(path)!a} has a name that cannot be sent.", fix="Rename it.")
    try:
        real = path.resolve(strict=True)
        mode = real.stat().st_mode
    except (OSError, RuntimeError) as error:
        gone = isinstance(error, FileNotFoundError)
        reason = "does not exist on the controller." if gone else "cannot be read on the controller."
        raise InputError(f"{path} {reason}", fix=f"{_HERE} {EACH}" if gone else "") from None
    private = reference.private or bool(stat.S_ISREG(mode) and _SECRET_FILE.fullmatch(name))
    if reference.private and not stat.S_ISREG(mode):
        raise InputError(f"{path} is no file.")
    if private and real.stat().st_size > LARGEST:
        raise InputError(f"{path} is too large for a file of variables: over {LARGEST // 1024} KiB.")
    try:
        look = look_at(real, room)
        if look.faults:
            raise InputError(problems=tuple(_fault(*fault) for fault in look.faults[:_MOST_FAULTS]))
        digest = secrets.token_hex(32) if private else _remembered(name, look)
    except TooMuch as error:
        fix = "Leave out what trials do not need, or let the controller send more: --max-asset-mb (AEO_MAX_ASSET_MB)."
        raise InputError(f"{path} is too large to be sent: {error}.", fix=fix) from None
    except OSError as error:
        raise InputError(f"{path} cannot be read on the controller: {error.strerror}.") from None
    return Asset(path=reference.path, digest=digest, name=name, writable=reference.writable, private=private)


def _fault(path: Path, reason: str) -> Problem:
    return Problem(message=f"{path} {reason}", fix=EACH if "neither" in reason else "")


def look_at(real: Path, room: Room) -> Look:
    """List what a file or folder is made of; stops where it is too much.

    Raises:
        OSError: it cannot be read.
    """
    look = Look()
    if real.is_dir():
        _look_into(real, b"", real, (), look, room)
    else:
        _take(real, b"", real.stat(), look, room)
    return look


def _look_into(folder: Path, below: bytes, home: Path, around: tuple[Path, ...], look: Look, room: Room) -> None:
    around = (*around, folder.resolve())
    for path in sorted(folder.iterdir()):
        room.take(files=1)
        relative = below + b"/" + os.fsencode(path.name) if below else os.fsencode(path.name)
        if tree.too_long(os.fsdecode(relative)):
            look.faults.append((path, "has a path that is too long."))
            continue
        try:
            real = path.resolve(strict=True)
            state = real.stat()
        except (OSError, RuntimeError):  # RuntimeError: links in a circle, before Python 3.13
            look.faults.append((path, "is a link that leads nowhere, or cannot be read."))
            continue
        if not real.is_relative_to(home):
            look.faults.append((path, f"is a link that leads out of {home}."))
        elif real in around:
            look.faults.append((path, "is a link to a folder that it lies in."))
        elif stat.S_ISDIR(state.st_mode):
            look.folders.append(relative)
            if os.access(real, os.R_OK | os.X_OK):
                _look_into(path, relative, home, around, look, room)
            else:
                look.faults.append((path, "may not be read by the controller."))
        else:
            _take(path, relative, state, look, room)


def _take(path: Path, relative: bytes, state: os.stat_result, look: Look, room: Room) -> None:
    if not stat.S_ISREG(state.st_mode):
        look.faults.append((path, "is neither a file nor a folder, and cannot be sent."))
    elif not os.access(path, os.R_OK):
        look.faults.append((path, "may not be read by the controller."))
    else:
        room.take(size=state.st_size)
        look.files[relative] = path
        look.states[relative] = (
            state.st_dev,
            state.st_ino,
            state.st_mode,
            state.st_size,
            state.st_mtime_ns,
            state.st_ctime_ns,
        )


#: Digests by what they are of; a page checks a configuration again and again, and files may be large.
_digests: dict[tuple[object, ...], str] = {}
_MOST_DIGESTS = 100


def _remembered(name: str, look: Look) -> str:
    key = (name, tuple(sorted(look.folders)), tuple(sorted(look.states.items())))
    found = _digests.get(key)
    if found is None:
        while len(_digests) >= _MOST_DIGESTS:
            _digests.pop(next(iter(_digests)), None)
        found = _digests[key] = digest_of(name, look)
    return found


def digest_of(name: str, look: Look) -> str:
    """Names this content under this name.

    Raises:
        OSError: a file cannot be read.
    """
    total = hashlib.sha256(b"asset\0" + os.fsencode(name) + b"\0")
    for folder in sorted(look.folders):
        total.update(b"folder\0" + folder + b"\0")
    for relative, path in sorted(look.files.items()):
        with copy.open_regular(path.resolve()) as reading:
            mode = b"x" if os.fstat(reading.fileno()).st_mode & 0o111 else b"-"
            one = hashlib.sha256()
            while chunk := reading.read(_CHUNK):
                one.update(chunk)
        total.update(b"file\0" + mode + relative + b"\0" + one.digest())
    return total.hexdigest()
