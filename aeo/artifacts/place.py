"""What can be asked of a place where a trial's files are."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from aeo.core.errors import InputError
from aeo.redaction import Redactor
from aeo.transfer import tree

#: Files of one listing; what is deeper is left out first.
MOST_FILES = 5000


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One file."""

    #: Relative path, with ``/``.
    name: str
    #: Bytes.
    size: int
    #: When it was written last; None where that is not known.
    modified_at: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Listing:
    """The files of a place, by name."""

    entries: tuple[Entry, ...]
    #: Whether there are more.
    more: bool = False

    @property
    def names(self) -> frozenset[str]:
        """The files' names."""
        return frozenset(entry.name for entry in self.entries)


class Place(Protocol):
    """Where a trial's files are. What is read here still has its secrets; `windows` takes them out."""

    #: Takes known secrets out of what is shown.
    redactor: Redactor
    #: Which content offsets belong to; another one, and they mean something else.
    key: str
    #: Whether the run goes on, so that files may grow.
    live: bool

    def listing(self) -> Listing:
        """The files, at most `MOST_FILES`."""

    def extent(self, name: str) -> tuple[int, int]:
        """Where what there is of a file begins and ends, bytes.

        Raises:
            NotFound: there is no such file that may be shown.
        """

    def read(self, name: str, offset: int, limit: int) -> bytes:
        """Bytes of a file, fewer at its end.

        Raises:
            NotFound: there is no such file that may be shown.
        """

    def identity(self, name: str) -> str:
        """Another one when the file is another or was changed.

        Raises:
            NotFound: there is no such file that may be shown.
        """


def parts_of(name: str) -> list[str]:
    """The parts of a file's path.

    Raises:
        InputError: it is no plain path inside a folder.
    """
    parts = name.split("/")
    if any(part in ("", ".", "..") or tree.odd(part) for part in parts) or tree.too_long(name):
        raise InputError("is no path inside the trial's folder.", field="path")
    return parts
