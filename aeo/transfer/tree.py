"""What of a folder travels: its regular files and its folders, nothing else.

One walk serves the manifest, rsync and the plain copy, so that all three speak of the same files.
"""

from __future__ import annotations

import filecmp
import os
import unicodedata
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

LINK = "symbolic links"
SPECIAL = "devices, sockets or pipes"
ODD = "names that are not UTF-8 or have control characters"
LONG = "paths that are too long"
UNREADABLE = "files or folders that may not be read"

#: Bytes of a relative path; the other side's root comes before it, and a path ends at 4,096.
_LONGEST = 2048
#: Names shown in a note.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Tree:
    """The content of a folder; paths are relative, with ``/``, sorted."""

    files: tuple[str, ...]
    folders: tuple[str, ...]
    #: Why things do not travel, and which.
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def notes(self) -> tuple[str, ...]:
        """One sentence for each reason something does not travel."""
        return tuple(note(f"left out, {reason}", names) for reason, names in self.dropped.items())


def read(root: Path, *, odd_names: bool = False) -> Tree:
    """Look through a folder, following no link; names that are not plain text are taken only with ``odd_names``.

    Raises:
        OSError: ``root`` cannot be listed.
    """
    files: list[str] = []
    folders: list[str] = []
    dropped: defaultdict[str, list[str]] = defaultdict(list)
    waiting = [""]
    while waiting:
        for entry, path in _listed(root, waiting.pop()):
            fault = _fault(entry, path, odd_names)
            if fault:
                dropped[fault].append(path)
            elif entry.is_dir(follow_symlinks=False):
                folders.append(path)
                waiting.append(path)
            else:
                files.append(path)
    return Tree(
        files=tuple(sorted(files)),
        folders=tuple(sorted(folders)),
        dropped={reason: tuple(sorted(names)) for reason, names in sorted(dropped.items())},
    )


def same(one: Path, other: Path) -> bool:
    """Whether two folders hold the same files with the same bytes; what does not travel is not looked at.

    Raises:
        OSError: one of them cannot be read.
    """
    files = read(one).files
    return files == read(other).files and all(filecmp.cmp(one / name, other / name, shallow=False) for name in files)


def odd(name: str) -> bool:
    """Whether a name is not valid UTF-8 or has control characters."""
    return not name.isprintable() and any(unicodedata.category(letter) in ("Cc", "Cs") for letter in name)


def too_long(path: str) -> bool:
    """Whether a relative path could not be stored on the other side."""
    return len(os.fsencode(path)) > _LONGEST


def _listed(root: Path, folder: str) -> Iterator[tuple[os.DirEntry[str], str]]:
    with os.scandir(os.path.join(root, folder)) as entries:  # noqa: PTH118  half the time of a walk goes into Path
        for entry in entries:
            yield entry, f"{folder}/{entry.name}" if folder else entry.name


def _fault(entry: os.DirEntry[str], path: str, odd_names: bool) -> str:
    if not odd_names and odd(entry.name):
        return ODD
    if entry.is_symlink():
        return LINK
    if too_long(path):
        return LONG
    if entry.is_dir(follow_symlinks=False):
        return "" if os.access(entry.path, os.R_OK | os.X_OK) else UNREADABLE
    if not entry.is_file(follow_symlinks=False):
        return SPECIAL
    return "" if os.access(entry.path, os.R_OK) else UNREADABLE


def note(what: str, names: Sequence[str]) -> str:
    """A sentence about files, not longer than a person reads."""
    shown = ", ".join(_plain(name) for name in names[:_SHOWN])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what}: {shown}{more}"


def _plain(name: str) -> str:
    text = name if len(name) <= 200 else name[:200] + "…"
    return ascii(text) if odd(text) else text
