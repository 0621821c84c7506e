"""An evaluation's trials as files for other programs."""

from __future__ import annotations

from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Any

from apiflask import APIBlueprint
from flask import Response

from aeo import exports, progress, summaries
from aeo.core.names import check_name
from aeo.summaries import Line
from webapp.site import current_site

bp = APIBlueprint("exports", __name__, tag="Evaluations")

#: Bytes of a finished file sent at once.
_CHUNK = 256 * 1024


def _document(kind: str) -> dict[str | int, Any]:
    media = exports.FORMATS[kind].partition(";")[0]
    return {200: {"description": "One row per planned trial", "content": {media: {}}}, 404: "No such evaluation"}


@bp.get("/evaluations/<id_or_name>/trials.csv")
@bp.doc(summary="Export trials as CSV", responses=_document("csv"))
def as_csv(id_or_name: str) -> Response:
    name, lines = _lines(id_or_name)
    return _file(name, "csv", exports.csv_text(lines))


@bp.get("/evaluations/<id_or_name>/trials.jsonl")
@bp.doc(summary="Export trials as JSON lines", responses=_document("jsonl"))
def as_jsonl(id_or_name: str) -> Response:
    name, lines = _lines(id_or_name)
    return _file(name, "jsonl", exports.jsonl(lines))


@bp.get("/evaluations/<id_or_name>/trials.parquet")
@bp.doc(summary="Export trials as Parquet", responses=_document("parquet"))
def as_parquet(id_or_name: str) -> Response:
    name, lines = _lines(id_or_name)
    return _file(name, "parquet", _chunks(_parquet(lines)))


def _lines(id_or_name: str) -> tuple[str, Iterator[Line]]:
    site = current_site()
    status = progress.found(site, check_name(id_or_name, "evaluation", field="id"))
    return status.name, summaries.each(site.book, status.id)


def _parquet(lines: Iterator[Line]) -> IO[bytes]:
    file = TemporaryFile()  # noqa: SIM115 - closed with the answer
    exports.parquet(lines, file)
    file.seek(0)
    return file


def _chunks(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _file(name: str, kind: str, body: Iterator[str] | Iterator[bytes]) -> Response:
    response = Response(body, content_type=exports.FORMATS[kind])
    response.headers.set("Content-Disposition", "attachment", filename=f"{name}.{kind}")
    return response
