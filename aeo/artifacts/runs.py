"""How often a trial was run, where, and why again; from the evaluation's event log and what was put aside."""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from aeo.secrets import hiding
from aeo.site import Site

#: What an event says of a run that ended.
_ENDS = ("requeued", "committed", "superseded", "rejected")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One run of a trial."""

    token: str
    worker: str = ""
    #: 1 for the first; 0 is unknown.
    number: int = 0
    began_at: datetime | None = None
    ended_at: datetime | None = None
    #: ``requeued``, ``committed``, ``superseded``, ``rejected``; empty while nothing is known of its end.
    end: str = ""
    #: Why it was requeued or rejected.
    reason: str = ""
    #: Whether its files are kept.
    has_files: bool = False


def of(site: Site, id: str, trial: str) -> tuple[Run, ...]:
    """The runs of a trial in the order they began, as far as they are logged."""
    runs: dict[str, Run] = {}
    for event in _events(site.shared.events(id), trial):
        token = str(event.get("token") or "")
        if token:
            runs[token] = _after(runs.get(token, Run(token=token)), event)
    show = hiding.redactor(site).text
    return tuple(
        replace(run, reason=show(run.reason), has_files=site.shared.superseded(id, trial, run.token).is_dir())
        for run in runs.values()
    )


def _after(run: Run, event: Mapping[str, Any]) -> Run:
    kind, at = event.get("kind"), _moment(event.get("at"))
    run = replace(
        run, worker=str(event.get("worker") or run.worker), number=_number(event.get("attempt")) or run.number
    )
    if kind == "claimed":
        return replace(run, began_at=at)
    if kind == "rejected":
        # What follows is its being requeued or put aside for the same reason.
        return replace(run, end="rejected", ended_at=at, reason=str(event.get("reason") or ""))
    if kind in _ENDS and run.end != "rejected":
        # A late result of a run that was requeued does not change why it was.
        reason = str(event.get("reason") or run.reason)
        return replace(
            run, end=run.end if run.end == "requeued" else str(kind), ended_at=run.ended_at or at, reason=reason
        )
    if kind == "reclaimed":
        return replace(run, end="", ended_at=None)
    return run


def _events(path: Path, trial: str) -> Iterator[Mapping[str, Any]]:
    """The events of one trial, found without reading those of the others."""
    if not path.exists() or not path.stat().st_size:
        return
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
        wanted, at = json.dumps({"trial": trial}, separators=(",", ":"))[1:-1].encode(), 0
        while (found := log.find(wanted, at)) >= 0:
            end = log.find(b"\n", found)
            end = len(log) if end < 0 else end
            at = end
            try:
                event = json.loads(log[log.rfind(b"\n", 0, found) + 1 : end])
            except (ValueError, RecursionError):
                continue
            if isinstance(event, dict) and event.get("trial") == trial:
                yield event


def _moment(value: Any) -> datetime | None:
    try:
        return datetime.fromisoformat(value)
    except (TypeError, ValueError):
        return None


def _number(value: Any) -> int:
    return int(value) if str(value).isdigit() else 0
