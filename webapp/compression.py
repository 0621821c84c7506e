"""Answers as gzip for who takes it. A few lines of our own: the well-kept library for it brings three compressors
written in C, and neither keeps static files compressed nor hides the length of pages.
"""

from __future__ import annotations

import gzip
import io
import secrets

from flask import Flask, Response, request

#: Shorter answers gain nothing.
LEAST = 1000
LEVEL = 5
#: Of a static file, made once.
STATIC_LEVEL = 9
#: Up to so many bytes are added at random to the header, else the length of a page would tell whether a guess that its
#: address carries is equal to a secret in it (BREACH).
PADDING = 64

TYPES = frozenset(
    {
        "text/html",
        "text/css",
        "text/javascript",
        "text/csv",
        "text/plain",
        "application/json",
        "application/problem+json",
        "application/javascript",
        "image/svg+xml",
    }
)


#: Name and tag of a static file to its gzip; no more than there are files.
_static: dict[tuple[str, str], bytes] = {}


def register(app: Flask) -> None:
    """Compress what ``app`` answers; to be called first, as handlers of answers run from the last to the first."""
    app.after_request(_compress)


def _compress(response: Response) -> Response:
    if response.mimetype not in TYPES or "Content-Encoding" in response.headers:
        return response
    response.vary.add("Accept-Encoding")
    if response.status_code != 200 or request.method == "HEAD" or not request.accept_encodings["gzip"]:
        return response
    if request.endpoint == "static":
        return _with(response, _static_file(request.path, response))
    if response.is_streamed or response.direct_passthrough:
        return response  # files and live tails, by pieces
    data = response.get_data()
    return _with(response, _gzip(data, LEVEL, "x" * secrets.randbelow(PADDING))) if len(data) >= LEAST else response


def _with(response: Response, data: bytes) -> Response:
    response.direct_passthrough = False
    response.set_data(data)
    response.headers["Content-Encoding"] = "gzip"
    response.headers.pop("Accept-Ranges", None)
    etag, _ = response.get_etag()
    if etag:
        response.set_etag(etag, weak=True)  # the same thing, not the same bytes
    return response


def _static_file(name: str, response: Response) -> bytes:
    key = name, response.get_etag()[0] or ""
    if key not in _static:
        response.direct_passthrough = False
        _static[key] = _gzip(response.get_data(), STATIC_LEVEL, "")
    return _static[key]


def _gzip(data: bytes, level: int, padding: str) -> bytes:
    made = io.BytesIO()
    with gzip.GzipFile(filename=padding, fileobj=made, mode="wb", compresslevel=level, mtime=0) as file:
        file.write(data)
    return made.getvalue()
