"""Answers that go on: each holds one of the server's threads, so that they are bounded in number and in time."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import BoundedSemaphore
from typing import TypeVar

from flask import Response

from aeo.core.errors import Unavailable

T = TypeVar("T")

#: Threads of the server: requests at once, further ones wait.
THREADS = 32
#: Answers that go on, at once; the other threads are left for everything else.
MOST = 20
#: Seconds of one that follows something; who follows asks again.
SECONDS = 55.0

_free = BoundedSemaphore(MOST)
_alive: Callable[[], bool] = lambda: True  # noqa: E731


def while_(alive: Callable[[], bool]) -> None:
    """Let streams go on only while ``alive()``: at the server's end they would hold it up."""
    global _alive
    _alive = alive


def going() -> bool:
    """Whether the server goes on."""
    return _alive()


def stream(pieces: Iterable[T], **options: object) -> Response:
    """Answer with pieces as they come.

    Raises:
        Unavailable: too many answers go on already.
    """
    if not _free.acquire(blocking=False):
        raise Unavailable("Too many files and live views are open on this controller.")
    try:
        # Anything but bytes is the caller's mistake, and fails when it is sent.
        response = Response(pieces, **options)  # type: ignore[arg-type]
    except BaseException:
        _free.release()
        raise
    response.call_on_close(_free.release)
    return response
