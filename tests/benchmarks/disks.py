"""Where rows write: what file system that is, and another one for a while, where it is one of a kind that distorts."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Bytes of an image, of which what is not written takes no room, and bytes for each file that it has room for.
_SIZE, _FILE = 16 * 1024**3, 8192
_SECONDS = 120


def file_system(folder: Path) -> str:
    """The kind of file system that ``folder`` is on, for people; ext4 says when it has no journal."""
    device, kind = _mounted(folder)
    options = Path("/proc/fs/ext4", device.rpartition("/")[2], "options")
    # Linux, fs/ext4/super.c: only with a journal is there a mode of it.
    if kind == "ext4" and options.is_file() and "\ndata=" not in options.read_text():
        return NO_JOURNAL
    return kind


#: There, the inode of a file that was removed is not used again for a minute, and each new file looks past all of
#: those (Linux, fs/ext4/ialloc.c, ``recently_deleted``): what a file costs is a matter of what was removed before.
NO_JOURNAL, JOURNALED = "ext4 without a journal", "ext4 with a journal"


@contextmanager
def even() -> Iterator[str]:
    """Have temporary folders where files cost the same whatever was removed before, if that can be; yields where."""
    here = file_system(Path(tempfile.gettempdir()))
    if here != NO_JOURNAL:
        yield here
        return
    with journaled() as problem:
        yield f"{here} ({problem})" if problem else JOURNALED


def _mounted(folder: Path) -> tuple[str, str]:
    found = ("", "")
    longest = -1
    for line in Path("/proc/mounts").read_text().splitlines():
        device, place, kind, *_ = line.split(" ")
        if folder.resolve().is_relative_to(place) and len(place) >= longest:
            found, longest = (str(Path(device).resolve()), kind), len(place)
    return found


@contextmanager
def journaled() -> Iterator[str]:
    """Have temporary folders on an ext4 with a journal, in an image on this disk; yields why that is not so, or "".

    It takes root, ``mkfs.ext4`` and a loop device.
    """
    before, folder = tempfile.tempdir, Path(tempfile.mkdtemp(prefix="aeod-"))
    image, place = folder / "image", folder / "d"
    try:
        problem = _make(image, place)
        if not problem:
            tempfile.tempdir = str(place)
        yield problem
    finally:
        tempfile.tempdir = before
        if os.path.ismount(place):
            _run("umount", "--lazy", str(place))
        shutil.rmtree(folder, ignore_errors=True)


def _make(image: Path, place: Path) -> str:
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(_SIZE)
    # What is set up lazily would be so while something is measured.
    lazy = "lazy_itable_init=0,lazy_journal_init=0"
    made = _run("mkfs.ext4", "-q", "-F", "-i", str(_FILE), "-E", lazy, str(image))
    return made or _run("mount", "-o", "loop", str(image), str(place))


def _run(*command: str) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    return "" if done.returncode == 0 else f"{command[0]}: {' '.join(done.stderr.split())[-200:]}"
