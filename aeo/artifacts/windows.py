"""Parts of a file as text, without known secrets, in bounded memory however large the file is."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass

from aeo import redaction
from aeo.artifacts.place import Place
from aeo.core.errors import InputError

#: Bytes of one window, unless asked otherwise, and at most.
USUAL, MOST = 64 * 1024, 1024 * 1024
#: How far from a window's end a line may end, bytes.
_LINE = 16 * 1024
_PIECE = 256 * 1024


@dataclass(frozen=True, kw_only=True)
class Window:
    """A part of a file."""

    #: Invalid UTF-8 is replaced.
    text: str
    #: Which bytes of the file it is.
    begin: int
    end: int
    #: What there is of the file; more of a growing one may come.
    first: int
    size: int


def at(place: Place, name: str, offset: int, *, limit: int = USUAL, grows: bool = False) -> Window:
    """The window that begins at ``offset``; ends with a line where that is near.

    ``grows``: the end of the file is no end, so half a character or secret there is left for the next window.

    Raises:
        NotFound: there is no such file.
    """
    first, size = place.extent(name)
    begin = min(max(offset, first), size)
    end = min(begin + max(1, min(limit, MOST)), size)
    if end < size or grows:
        end = begin + _whole(_settled(place, place.read(name, begin, end - begin), end == size), end < size)
    return _window(place, name, begin, end, first, size)


def before(place: Place, name: str, end: int | None = None, *, limit: int = USUAL, grows: bool = False) -> Window:
    """The window that ends at ``end``, or with the file; begins with a line where that is near. ``grows`` as in `at`.

    Raises:
        NotFound: there is no such file.
    """
    first, size = place.extent(name)
    end = size if end is None else min(max(end, first), size)
    begin = max(first, end - max(1, min(limit, MOST)))
    if begin > first:
        head = place.read(name, begin, min(_LINE, end - begin))
        begin += _next_line(head)
    if grows and end == size:
        content = place.read(name, begin, end - begin)
        end = begin + _whole(_settled(place, content, True), False)
    return _window(place, name, begin, end, first, size)


def whole(place: Place, name: str, *, limit: int) -> bytes:
    """All of a file without secrets.

    Raises:
        NotFound: there is no such file.
        InputError: it is larger than ``limit`` bytes, or its beginning is not there.
    """
    first, size = place.extent(name)
    if size - first > limit or first > 0:
        raise InputError(f"is larger than {limit} bytes.", field=name)
    return place.redactor.content(place.read(name, first, size - first))


def stream(place: Place, name: str) -> Iterator[bytes]:
    """All of a file without secrets, piece by piece.

    Raises:
        NotFound: there is no such file.
    """
    at, size = place.extent(name)
    kept = place.redactor.stream(binary=is_binary(place, name))
    while at < size:
        piece = place.read(name, at, min(_PIECE, size - at))
        if not piece:
            break
        at += len(piece)
        yield kept.feed(piece)
    yield kept.finish()


def text_stream(place: Place, name: str) -> Iterator[bytes]:
    """`stream` as valid UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    for piece in stream(place, name):
        yield decoder.decode(piece).encode()
    yield decoder.decode(b"", final=True).encode()


def is_binary(place: Place, name: str) -> bool:
    """Whether a file is no text.

    Raises:
        NotFound: there is no such file.
    """
    first, _ = place.extent(name)
    return redaction.is_binary(place.read(name, first, 8192))


def _window(place: Place, name: str, begin: int, end: int, first: int, size: int) -> Window:
    margin = max(0, place.redactor.longest - 1)
    lead = min(margin, begin - first)
    around = place.read(name, begin - lead, lead + (end - begin) + margin)
    content = place.redactor.window(around, lead, end - begin)
    return Window(text=content.decode("utf-8", "replace"), begin=begin, end=end, first=first, size=size)


def _settled(place: Place, content: bytes, at_the_end: bool) -> bytes:
    """Without what may be the beginning of a secret."""
    return content[: len(content) - place.redactor.begun(content)] if at_the_end else content


def _whole(content: bytes, to_a_line: bool) -> int:
    """How much of it ends with a line, if one ends near its end, else with a character."""
    line = content.rfind(b"\n", max(0, len(content) - _LINE)) + 1 if to_a_line else 0
    return line or len(content) - _half(content)


def _half(content: bytes) -> int:
    """How many bytes at the end are a character's beginning."""
    for back in range(1, min(4, len(content)) + 1):
        byte = content[-back]
        if byte & 0xC0 == 0x80:
            continue
        length = 2 if byte & 0xE0 == 0xC0 else 3 if byte & 0xF0 == 0xE0 else 4 if byte & 0xF8 == 0xF0 else 1
        return back if length > back else 0
    return 0


def _next_line(content: bytes) -> int:
    """Where the next line begins, if one does, else the next character."""
    line = content.find(b"\n") + 1
    if 0 < line < len(content):
        return line
    return next((index for index, byte in enumerate(content[:4]) if byte & 0xC0 != 0x80), 0)
