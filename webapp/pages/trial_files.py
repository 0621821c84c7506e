"""The files of a trial as they are: text, pictures, downloads, and tails that go on. Nothing in them is ever run."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator
from urllib.parse import quote

from flask import Blueprint, Response, request

from aeo import artifacts
from aeo.artifacts import Place, tail, windows
from aeo.core.errors import NotFound
from aeo.core.names import check_name
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import trials
from webapp import streams
from webapp.pages import kinds, ranges, terminal
from webapp.site import current_site

#: Whatever a file says it is: no script, no form, no frame, no address of another thing.
HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
}
#: Silence after which a tail says that it is still there, in looks of about half a second.
QUIET_LOOKS = 20

bp = Blueprint("trial_files", __name__)


@bp.get("/evaluations/<id_or_name>/trials/<name>/files/<path:path>")
def show(id_or_name: str, name: str, path: str) -> Response:
    """Show a text as plain text or a picture as such; anything else is downloaded."""
    place = _place(id_or_name, name)
    begin, _ = place.extent(path)
    picture = kinds.picture(place.read(path, begin, kinds.HEAD))
    if picture:
        return _answer(place, path, picture)
    if windows.is_binary(place, path):
        return download(id_or_name, name, path)
    return _answer(place, path, "text/plain; charset=utf-8")


@bp.get("/evaluations/<id_or_name>/trials/<name>/download/<path:path>")
def download(id_or_name: str, name: str, path: str) -> Response:
    """Send a file to be kept."""
    place = _place(id_or_name, name)
    place.extent(path)
    response = _answer(place, path, "application/octet-stream")
    response.headers["Content-Disposition"] = _attachment(posixpath.basename(path))
    return response


@bp.get("/evaluations/<id_or_name>/trials/<name>/tail")
def follow(id_or_name: str, name: str) -> Response:
    """Send what comes of a file of a running trial as events."""
    site, id = _known(id_or_name, name)
    path = request.args.get("file", "")
    artifacts.parts_of(path)
    at = request.headers.get("Last-Event-ID") or request.args.get("at", "")
    _check_may_come(site, id, name, path, at)
    pieces = tail.follow(site, id, name, path, at=at, seconds=streams.SECONDS, going=streams.going)
    response = streams.stream(_events(pieces), mimetype="text/event-stream")
    # A proxy that collects the answer would keep it to itself until its end.
    response.headers["X-Accel-Buffering"] = "no"
    return response


def _check_may_come(site: Site, id: str, name: str, path: str, at: str) -> None:
    """See that there is, or may yet be, something to follow: a run that goes on may still write the file.

    Raises:
        NotFound: there is no such trial, or the trial has ended and left no such file.
    """
    place = artifacts.find(site, id, name)
    if place is None:
        trials.state(site.db, id, name)
    elif not place.live and at.partition(":")[0] in ("", place.key):
        # Who followed another run is told that it has ended.
        place.extent(path)


def _known(id_or_name: str, name: str) -> tuple[Site, str]:
    site = current_site()
    status = store.find(site.db, check_name(id_or_name, "evaluation", field="id"))
    check_name(name, "trial", field="name")
    return site, status.id


def _place(id_or_name: str, name: str) -> Place:
    site, id = _known(id_or_name, name)
    run = request.args.get("run", "")
    place = artifacts.find(site, id, name, run=check_name(run, "run", field="run") if run else "")
    if place is None:
        raise NotFound("The trial has no files yet.", field="name")
    return place


def _answer(place: Place, path: str, kind: str) -> Response:
    response = ranges.answer(place, path, kind)
    response.headers.update(HEADERS)
    return response


def _attachment(name: str) -> str:
    plain = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='')}"


def _events(pieces: Iterator[tail.Piece | None]) -> Iterator[str]:
    """Pieces as server-sent events; a text's own line breaks are inside JSON."""
    yield "retry: 1000\n\n"
    quiet = 0
    for piece in pieces:
        quiet = 0 if piece else quiet + 1
        if piece is None:
            # Also how the server notices that nobody is there any more.
            if quiet % QUIET_LOOKS == 0:
                yield ": still here\n\n"
            continue
        kind = "end" if piece.ended else "text"
        data = {"runs": terminal.runs(piece.text), "left_out": piece.left_out, "anew": piece.anew}
        yield f"event: {kind}\nid: {piece.at}\ndata: {json.dumps(data)}\n\n"
