"""Following one file of a trial while it grows, for a bounded time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from aeo.artifacts import windows
from aeo.artifacts.finding import find
from aeo.artifacts.mirror import Mirror
from aeo.artifacts.place import Place
from aeo.core.errors import NotFound
from aeo.site import Site
from aeo.store import watched

#: Seconds between two looks.
LOOK_SECONDS = 0.4
#: How long a look is remembered as one, seconds: whoever watches looks again before.
WATCH_SECONDS = 15.0


@dataclass(frozen=True, kw_only=True)
class Piece:
    """What is new of a file."""

    text: str
    #: Where to go on after it; see `position`.
    at: str
    #: Bytes left out before it.
    left_out: int = 0
    #: The file was written anew: what was shown before is no more.
    anew: bool = False
    #: Nothing comes any more.
    ended: bool = False


def position(place: Place, name: str, offset: int) -> str:
    """A place in a file as text, that means nothing in another file or another run.

    Raises:
        NotFound: there is no such file.
    """
    return f"{_which(place, name)}:{offset}"


def follow(
    site: Site, id: str, trial: str, name: str, *, at: str = "", seconds: float, going: Callable[[], bool]
) -> Iterator[Piece | None]:
    """What comes of a file from the position ``at``, else from near its present end; None about twice a second.

    Ends after ``seconds``, when ``going`` says no, or with a piece that says so when the trial has ended.

    Raises:
        NotFound: there is no such evaluation.
    """
    until, watched_until = time.monotonic() + seconds, 0.0
    while (now := time.monotonic()) < until and going():
        place = find(site, id, trial)
        if place is not None and not place.live and at.partition(":")[0] not in ("", place.key):
            # What was followed has become a committed result, which counts otherwise.
            yield Piece(text="", at=at, ended=True)
            return
        if (place is None or place.live) and now > watched_until:
            watched.watch(site.db, id, trial, seconds=WATCH_SECONDS)
            watched_until = now + WATCH_SECONDS / 3
        piece = _next(place, name, at) if place else None
        if piece is not None:
            at = piece.at
            yield piece
            continue
        if place is not None and not place.live:
            yield Piece(text="", at=at, ended=True)
            return
        yield None
        time.sleep(LOOK_SECONDS)


def _next(place: Place, name: str, at: str) -> Piece | None:
    # A file that is not there yet may come.
    with suppress(NotFound):
        which, _, offset = at.rpartition(":")
        same = which == _which(place, name) and offset.isdigit()
        if same:
            window = windows.at(place, name, int(offset), grows=place.live)
        else:
            window = windows.before(place, name, grows=place.live)
        if same and window.end <= int(offset):
            return None
        left_out = window.begin - (int(offset) if same else window.first)
        return Piece(
            text=window.text,
            at=position(place, name, window.end),
            left_out=max(0, left_out),
            anew=bool(at) and not same,
        )
    return None


def _which(place: Place, name: str) -> str:
    generation = place.generation(name) if isinstance(place, Mirror) else "0"
    return f"{place.key}:{generation}"
