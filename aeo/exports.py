"""An evaluation's trials as tables for other programs: one row per planned trial, in planned order."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import IO, Any

from aeo.summaries import Line

#: Ending to media type.
FORMATS: Mapping[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}
#: Columns with their kind; the names are those of `Line`, where it has them.
COLUMNS: Mapping[str, str] = {
    **dict.fromkeys(("trial", "task", "agent", "model", "dataset", "category", "difficulty"), "text"),
    "attempt_number": "whole",
    "estimated_seconds": "number",
    "outcome": "text",
    "reward": "number",
    "rewards": "numbers",
    "seconds": "number",
    "started_at": "time",
    "finished_at": "time",
    "phases": "numbers",
    **dict.fromkeys(("input_tokens", "cache_tokens", "output_tokens"), "whole"),
    "cost_usd": "number",
    **dict.fromkeys(("error_type", "error_message", "worker"), "text"),
    "run": "whole",
    "committed_at": "time",
    "notes": "texts",
    "labels": "words",
}
#: Rows that become text at once.
_CHUNK = 200
#: Rows of one group of a Parquet file.
_GROUP = 10_000
#: What a spreadsheet takes for the beginning of a formula.
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def record(line: Line) -> dict[str, Any]:
    """A line as one object; what is not known is None, or empty where it is text."""
    values = {name: getattr(line, name) for name in COLUMNS}
    return values | {
        "outcome": line.outcome.value if line.outcome else None,
        "rewards": dict(line.rewards),
        "phases": dict(line.phases),
        "notes": list(line.notes),
        "labels": dict(line.labels),
    }


def jsonl(lines: Iterable[Line]) -> Iterator[str]:
    """One JSON object a line."""
    for some in _chunks(lines):
        yield "".join(json.dumps(_plain(record(line)), ensure_ascii=False) + "\n" for line in some)


def csv_text(lines: Iterable[Line]) -> Iterator[str]:
    """RFC 4180 with a head line; what is no single value is JSON in its cell.

    A text that a spreadsheet would run as a formula has an apostrophe before it.
    """
    yield _csv([list(COLUMNS)])
    for some in _chunks(lines):
        yield _csv([[_cell(value) for value in _plain(record(line)).values()] for line in some])


def parquet(lines: Iterable[Line], file: IO[bytes]) -> None:
    """Write a Parquet file: times in UTC, rewards and phases as maps."""
    # Here, as it is large and most processes never need it.
    import pyarrow
    from pyarrow.parquet import ParquetWriter

    numbers = pyarrow.map_(pyarrow.string(), pyarrow.float64())
    kinds = {
        "text": pyarrow.string(),
        "whole": pyarrow.int64(),
        "number": pyarrow.float64(),
        "time": pyarrow.timestamp("us", tz="UTC"),
        "numbers": numbers,
        "texts": pyarrow.list_(pyarrow.string()),
        "words": pyarrow.map_(pyarrow.string(), pyarrow.string()),
    }
    schema = pyarrow.schema([(name, kinds[kind]) for name, kind in COLUMNS.items()])
    with ParquetWriter(file, schema, compression="zstd") as writer:
        for some in _chunks(lines, _GROUP):
            rows = [record(line) for line in some]
            columns = {
                name: [_pairs(row[name]) if kind in ("numbers", "words") else row[name] for row in rows]
                for name, kind in COLUMNS.items()
            }
            writer.write_table(pyarrow.table(columns, schema=schema))


def _chunks(lines: Iterable[Line], size: int = _CHUNK) -> Iterator[list[Line]]:
    some: list[Line] = []
    for line in lines:
        some.append(line)
        if len(some) == size:
            yield some
            some = []
    if some:
        yield some


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value.isoformat() if isinstance(value, datetime) else value for key, value in values.items()}


def _cell(value: Any) -> Any:
    if isinstance(value, (dict, list)):
        return json.dumps(value, ensure_ascii=False) if value else ""
    if isinstance(value, str) and value.startswith(_FORMULA):
        return "'" + value
    return "" if value is None else value


def _csv(rows: Iterable[Iterable[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _pairs(values: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return list(values.items())
