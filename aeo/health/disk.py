"""Room on the disk of a folder: bytes, and inodes, which many small files use up first."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from aeo.core.condition import Condition, fault, ok, warning
from aeo.workers import LOW_DISK_BYTES, LOW_DISK_SHARE

#: Shares of the inodes that are free: with less it is soon over, with less than the second it is.
FEW_INODES, NO_INODES = 0.10, 0.02
_GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class Room:
    """What a disk has left for this user."""

    path: Path
    free: int
    total: int
    #: 0 in total where the file system does not count them.
    inodes_free: int = 0
    inodes_total: int = 0


def measure(path: Path) -> Room:
    """Look at the disk that ``path`` is on, or will be.

    Raises:
        OSError: it cannot be looked at.
    """
    while not path.exists() and path != path.parent:
        path = path.parent
    found = os.statvfs(path)
    return Room(
        path=path,
        free=found.f_bavail * found.f_frsize,
        total=found.f_blocks * found.f_frsize,
        inodes_free=found.f_favail,
        inodes_total=found.f_files,
    )


def judge(room: Room, *, watermark: float, fix: str) -> Iterator[Condition]:
    """Judge bytes and inodes. ``watermark``: share in use above which room should be made; ``fix``: how."""
    yield _bytes(room, watermark, fix)
    if room.inodes_total:
        yield _inodes(room, fix)


def _bytes(room: Room, watermark: float, fix: str) -> Condition:
    used = 1 - room.free / max(room.total, 1)
    text = f"{room.path}: {room.free / _GIB:.1f} GiB of {room.total / _GIB:.1f} GiB free"
    if room.free < min(LOW_DISK_BYTES, room.total * LOW_DISK_SHARE):
        return fault("disk", f"{text}; no further trial starts", fix)
    if used > watermark:
        return warning("disk", f"{text}, {used:.0%} in use", fix)
    return ok("disk", text)


def _inodes(room: Room, fix: str) -> Condition:
    share = room.inodes_free / room.inodes_total
    text = f"{room.path}: {room.inodes_free:,} of {room.inodes_total:,} inodes free"
    if share < NO_INODES:
        return fault("inodes", f"{text}; no further file can be made soon, whatever room there is", fix)
    if share < FEW_INODES:
        return warning("inodes", text, fix)
    return ok("inodes", text)
