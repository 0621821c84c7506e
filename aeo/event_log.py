"""An evaluation's ``events.jsonl``: what happened, in order, each event once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aeo import codec
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, TrialRow
from aeo.redaction import Redactor
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import events
from aeo.store.events import Event

#: Events written in one go.
AT_ONCE = 2000
#: Bytes looked at for a log's last line.
_TAIL = 256 * 1024


def write(site: Site, tell: Callable[[Event], None] | None = None) -> int:
    """Append the events the store holds to their evaluations' logs, then drop them there; returns how many.

    ``tell`` is told of each event that is written, once unless this process dies just then.

    A crash between the two writes none twice: each line has its event's id, and those already there are left out.
    Events of evaluations without a folder are dropped.

    Raises:
        OSError: a log cannot be written; the events stay in the store.
        Unavailable: the store is away.
    """
    taken = events.take(site.db, AT_ONCE)
    redactor = hiding.redactor(site)
    by_evaluation: dict[str, list[tuple[str, Event]]] = {}
    for entry, event in taken:
        by_evaluation.setdefault(event.evaluation, []).append((entry, event))
    for evaluation, items in by_evaluation.items():
        # In this order, or one that is born in between would have no folder; then the log is missing, and tried again.
        unborn = site.shared.unborn(evaluation)
        if unborn.is_dir():
            _append(unborn / site.shared.events(evaluation).name, items, redactor)
        elif site.shared.evaluation(evaluation).is_dir():
            _append(site.shared.events(evaluation), items, redactor)
    if taken:
        events.forget(site.db, [entry for entry, _ in taken])
    if tell is not None:
        for _, event in taken:
            tell(event)
    return len(taken)


def _append(path: Path, items: Sequence[tuple[str, Event]], redactor: Redactor) -> None:
    last, torn = _end_of(path)
    # Reasons come from workers, which do not know what to take out.
    text = redactor.text("".join(event.line(entry) for entry, event in items if _order(entry) > last))
    with path.open("a", encoding="utf-8") as log:
        log.write(("\n" if torn else "") + text)
        log.flush()
        os.fsync(log.fileno())


def _end_of(path: Path) -> tuple[tuple[int, int], bool]:
    """The last event's id in a log, and whether its last line is torn."""
    if not path.exists():
        return (0, 0), False
    with path.open("rb") as log:
        size = log.seek(0, os.SEEK_END)
        log.seek(max(0, size - _TAIL))
        tail = log.read()
    for line in reversed(tail.splitlines()):
        with suppress(ValueError, KeyError, TypeError):
            return _order(json.loads(line)["id"]), not tail.endswith(b"\n")
    return (0, 0), bool(tail) and not tail.endswith(b"\n")


def _order(entry: str) -> tuple[int, int]:
    time, _, number = entry.partition("-")
    return int(time), int(number)


def read(path: Path) -> Iterator[Mapping[str, Any]]:
    """The events of a log; a torn line is left out."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                event = json.loads(line)
            except ValueError:
                continue
            if isinstance(event, dict):
                yield event


def latest(path: Path, most_bytes: int) -> list[Mapping[str, Any]]:
    """The last events of a log, as many as lie whole in its last ``most_bytes``."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(0, size - most_bytes))
            lines = log.read(most_bytes).splitlines()
    except FileNotFoundError:
        return []
    found: list[Mapping[str, Any]] = []
    for line in lines[1:] if size > most_bytes else lines:
        with suppress(ValueError):
            event = json.loads(line)
            if isinstance(event, dict):
                found.append(event)
    return found


def last_state(log: Iterable[Mapping[str, Any]]) -> tuple[EvaluationState, str] | None:
    """The state an evaluation was moved to last, and why; None if it was never moved.

    ``merging`` is left out: it follows from all trials being done, and whoever is in it can do nothing else.
    """
    last = None
    for event in log:
        if event.get("kind") == "moved" and event.get("state") != EvaluationState.MERGING.value:
            last = (EvaluationState(str(event["state"])), str(event.get("reason", "")))
    return last


def stop_reason(log: Iterable[Mapping[str, Any]]) -> str:
    """Why an evaluation was stopped by its rule; "" if it was not."""
    return next((str(event.get("reason", "")) for event in log if event.get("kind") == "stopped"), "")


def committed_rows(log: Iterable[Mapping[str, Any]]) -> Mapping[str, TrialRow]:
    """The rows of the trials that were committed after they ran, by trial."""
    rows = {}
    for event in log:
        if event.get("kind") == "committed" and event.get("attempt") not in (None, "0"):
            with suppress(InputError):
                rows[str(event["trial"])] = codec.decode(TrialRow, event.get("row"))
    return rows
