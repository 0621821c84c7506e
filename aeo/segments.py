"""How a growing file is shown on another machine: in segments that are written once and never change.

::

    <trial>.<token>/
    ├── <number>.<generation>.<offset>   a piece of one file: it begins at that offset
    └── index.<look>                     which file has which number, and what there is of it; the last whole one counts

A segment holds what was new of a file at one look. A file that was written anew gets another generation. Nothing is
changed in place, so that whoever reads sees no half-written mixture, and each look pushes only what is new.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

#: Largest index, bytes.
INDEX_LIMIT = 1024 * 1024
_NAME = re.compile(r"(\d{1,9})\.(\d{1,9})\.(\d{1,18})")
_INDEX = re.compile(r"index\.(\d{9})")


@dataclass(frozen=True, kw_only=True)
class Shown:
    """One file of a run that goes on."""

    number: int
    generation: int
    #: What there is of it begins and ends here; bytes.
    begin: int = 0
    end: int = 0
    #: Its size on the worker; bytes.
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Index:
    """What there is of a run."""

    #: By relative path, with ``/``.
    files: Mapping[str, Shown] = field(default_factory=dict)
    #: Files that are too many to be shown.
    left_out: int = 0


def name(number: int, generation: int, offset: int) -> str:
    """Name of a segment."""
    return f"{number}.{generation}.{offset}"


def index_name(look: int) -> str:
    """Name of the index of a look; it comes after the segments', as rsync sends files in the order of their names."""
    return f"index.{look:09}"


def is_index(name: str) -> bool:
    """Whether a file is an index; a later one has a name that sorts later."""
    return _INDEX.fullmatch(name) is not None


def parse(name: str) -> tuple[int, int, int] | None:
    """Number, generation and offset of a segment; None for another file."""
    found = _NAME.fullmatch(name)
    return (int(found[1]), int(found[2]), int(found[3])) if found else None
