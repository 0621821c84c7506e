"""Parts of a file, as a client asks for that goes on with a download or looks at its end (RFC 9110, section 14)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

from flask import Response, request

from aeo.artifacts import Place, windows
from webapp import streams

_PIECE = 256 * 1024


def answer(place: Place, path: str, kind: str) -> Response:
    """A file as it may be shown, whole or the part that is asked for.

    Bytes are counted in what is shown: a secret taken out, or a letter that is none, changes where others stand. Of a
    file that still grows there are no parts; nor of several at once.

    Raises:
        NotFound: there is no such file.
        Unavailable: too many answers go on already.
    """
    begin, size = place.extent(path)
    as_it_is = not kind.startswith("text/") and not place.redactor

    def pieces() -> Iterator[bytes]:
        return windows.text_stream(place, path) if kind.startswith("text/") else windows.stream(place, path)

    if place.live:
        return streams.stream(() if request.method == "HEAD" else pieces(), content_type=kind)
    tag = sha256(f"{place.identity(path)} {kind} {bool(place.redactor)}".encode()).hexdigest()[:32]
    length = size - begin if as_it_is else None
    wanted = request.range if request.method == "GET" and _is_same(tag) else None
    if wanted is not None and wanted.units == "bytes" and len(wanted.ranges) == 1:
        length = sum(map(len, pieces())) if length is None else length
        part = wanted.range_for_length(length)
        if part is None:
            return Response(status=416, headers={"Content-Range": f"bytes */{length}", "Accept-Ranges": "bytes"})
        start, stop = part
        chosen = _read(place, path, begin + start, begin + stop) if as_it_is else _cut(pieces, start, stop)
        response = streams.stream(chosen, status=206, content_type=kind)
        response.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{length}"
        response.headers["Content-Length"] = str(stop - start)
    else:
        response = streams.stream(() if request.method == "HEAD" else pieces(), content_type=kind)
        if length is not None:
            response.headers["Content-Length"] = str(length)
    response.headers["Accept-Ranges"] = "bytes"
    response.set_etag(tag)
    return response


def _is_same(tag: str) -> bool:
    """Whether a part is wanted of just this content."""
    asked = request.if_range
    return asked is None or (asked.etag is None and asked.date is None) or asked.etag == tag


def _read(place: Place, path: str, at: int, end: int) -> Iterator[bytes]:
    while at < end:
        piece = place.read(path, at, min(_PIECE, end - at))
        if not piece:
            return
        at += len(piece)
        yield piece


def _cut(pieces: Callable[[], Iterator[bytes]], start: int, stop: int) -> Iterator[bytes]:
    at = 0
    for piece in pieces():
        if at >= stop:
            return
        chosen = piece[max(0, start - at) : stop - at]
        at += len(piece)
        if chosen:
            yield chosen
