"""What a run that goes on has written so far, as its worker shows it while somebody watches (see `aeo.segments`)."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from contextlib import suppress
from functools import cached_property
from pathlib import Path

from aeo import codec, segments
from aeo.artifacts.folder import Folder
from aeo.artifacts.place import MOST_FILES, Entry, Listing, parts_of
from aeo.core.errors import InputError, NotFound
from aeo.redaction import Redactor
from aeo.segments import Index, Shown

#: Segments of one run that may lie here before those nobody reads any more are dropped.
_MANY = 500
#: Indexes that are looked at, the last first.
_LAST = 3


class Mirror:
    """See `aeo.artifacts.place.Place`; one moment of it, to be made anew for the next look."""

    live = True

    def __init__(self, root: Path, redactor: Redactor, *, key: str = ""):
        self._root, self.redactor, self.key = root, redactor, key
        # Opened as if it were a run's folder: what lies there came from another machine.
        self._folder = Folder(root, redactor)

    @cached_property
    def _index(self) -> Index:
        # The last may be just arriving.
        for name in sorted(self._indexes, reverse=True)[:_LAST]:
            with suppress(NotFound, InputError):
                return codec.loads(Index, self._folder.read(name, 0, segments.INDEX_LIMIT))
        return Index()

    @cached_property
    def _names(self) -> list[str]:
        with suppress(OSError):
            return [path.name for path in self._root.iterdir()]
        return []

    @property
    def _indexes(self) -> list[str]:
        return [name for name in self._names if segments.is_index(name)]

    @cached_property
    def _segments(self) -> dict[tuple[int, int], list[int]]:
        """Offsets of the segments by number and generation, in order."""
        found: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
        for name in self._names:
            if one := segments.parse(name):
                found[one[:2]].append(one[2])
        return {one: sorted(offsets) for one, offsets in found.items()}

    def listing(self) -> Listing:
        """See `aeo.artifacts.place.Place`."""
        found = sorted(name for name in self._index.files if _is_plain(name))
        entries = tuple(Entry(name=name, size=self._index.files[name].size) for name in found[:MOST_FILES])
        return Listing(entries=entries, more=bool(self._index.left_out) or len(found) > MOST_FILES)

    def extent(self, name: str) -> tuple[int, int]:
        """See `aeo.artifacts.place.Place`."""
        one = self._shown(name)
        return one.begin, max(one.begin, one.end)

    def read(self, name: str, offset: int, limit: int) -> bytes:
        """See `aeo.artifacts.place.Place`."""
        one = self._shown(name)
        offsets = self._segments.get((one.number, one.generation), [])
        at, end = max(offset, one.begin), min(offset + limit, one.end)
        pieces = []
        for index in range(max(0, bisect_right(offsets, at) - 1), len(offsets)):
            begin = offsets[index]
            if at >= end or begin > at:
                break
            segment = segments.name(one.number, one.generation, begin)
            with suppress(NotFound):
                piece = self._folder.read(segment, at - begin, end - at)
                pieces.append(piece)
                at += len(piece)
        return b"".join(pieces)

    def identity(self, name: str) -> str:
        """See `aeo.artifacts.place.Place`."""
        one = self._shown(name)
        return f"{self.key}.{one.number}.{one.generation}.{one.end}"

    def generation(self, name: str) -> str:
        """Another one when the file was written anew, so that offsets mean something else.

        Raises:
            NotFound: there is no such file.
        """
        one = self._shown(name)
        return f"{one.number}.{one.generation}"

    def prune(self) -> None:
        """Drop segments that nobody reads any more, if they are many."""
        if len(self._names) < _MANY:
            return
        for name in sorted(self._indexes)[:-_LAST]:
            with suppress(OSError):
                (self._root / name).unlink()
        current = {(one.number, one.generation): one.begin for one in self._index.files.values()}
        for (number, generation), offsets in self._segments.items():
            begin = current.get((number, generation))
            # One that the index does not know yet is just arriving.
            newest = max((one.generation for one in self._index.files.values() if one.number == number), default=0)
            for offset, following in zip(offsets, [*offsets[1:], None], strict=True):
                over = following is not None and begin is not None and following <= begin
                if over or (begin is None and generation < newest):
                    with suppress(OSError):
                        (self._root / segments.name(number, generation, offset)).unlink()

    def _shown(self, name: str) -> Shown:
        parts_of(name)
        if name not in self._index.files:
            raise NotFound(f"The trial has no file {name[:200]!r} yet.", field="path")
        return self._index.files[name]


def _is_plain(name: str) -> bool:
    try:
        return bool(parts_of(name))
    except InputError:
        return False
