"""Events: what happened, one for each transition, kept until the control process has them on disk."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from itertools import chain

from aeo.codec import dumps
from aeo.core.errors import InputError
from aeo.core.names import check_name
from aeo.store.connection import Db, moment
from aeo.store.keys import key

log = logging.getLogger(__name__)

#: Kinds that only the controller tells, as in `prelude.lua`.
SEALED = frozenset({"submitted", "moved", "committed", "carried", "stopped", "recovered"})


@dataclass(frozen=True, kw_only=True)
class Event:
    """One thing that happened to an evaluation.

    Kinds: ``submitted``, ``moved`` (to another state), ``batch_added``, ``batch_started``, ``batch_ended``,
    ``batch_sent`` (again), ``claimed``, ``reclaimed``, ``pushed``, ``requeued``, ``committed`` and ``carried`` (with
    the row as JSON), ``superseded``, and what others `emit`.
    """

    evaluation: str
    kind: str
    #: On the server's clock.
    at: datetime
    fields: Mapping[str, str]

    def line(self, entry: str) -> str:
        """The event as one line of a log, JSON, with its entry id and the row as an object in it."""
        fields: dict[str, object] = dict(self.fields)
        if "row" in fields:
            fields["row"] = json.loads(self.fields["row"])
        return dumps({"id": entry, "at": self.at, "evaluation": self.evaluation, "kind": self.kind, **fields}) + "\n"


def emit(db: Db, evaluation: str, kind: str, **fields: str | int | float) -> None:
    """Add an event of one's own; the store's transitions add theirs themselves."""
    db.run("emit", evaluation, kind, *chain.from_iterable(fields.items()))


def take(db: Db, count: int) -> list[tuple[str, Event]]:
    """Read the oldest events with their entry ids; they stay until `forget`.

    What is no event is dropped, and so is one of a kind that only the controller tells and that has not its seal.
    """
    seal = _seal(db)
    while found := db.client.xrange(key("events"), count=count):
        events = [(entry, event) for entry, fields in found if (event := _event(entry, fields, seal))]
        bad = {entry for entry, _ in found} - {entry for entry, _ in events}
        if bad:
            log.warning("events that are none, or no worker's to tell, are dropped: %d", len(bad))
            db.client.xdel(key("events"), *bad)
        if events:
            return events
    return []


def _seal(db: Db) -> str:
    """The controller's seal, made at the first look at a store: when it began to count (ms), and a secret.

    What was told before has none, and is believed.
    """
    found: str | None = db.client.get(key("seal"))
    return found or str(db.run("seal", secrets.token_hex(16)))


def forget(db: Db, ids: Sequence[str]) -> None:
    """Drop events that are on disk."""
    if ids:
        db.client.xdel(key("events"), *ids)


def length(db: Db) -> int:
    """Events not on disk yet."""
    return int(db.client.xlen(key("events")))


def _event(entry: str, fields: dict[str, str], seal: str) -> Event | None:
    """None where it is none: workers write here too."""
    rest = dict(fields)
    told = rest.pop("seal", "")
    if "id" in rest:
        # It would stand in its line for the entry's own.
        return None
    try:
        # It becomes a path.
        evaluation = check_name(rest.pop("evaluation"), "evaluation id")
        event = Event(evaluation=evaluation, kind=rest.pop("kind"), at=moment(rest.pop("at")), fields=rest)
        event.line("")
    except (InputError, LookupError, ValueError, OverflowError, OSError, RecursionError):
        return None
    if event.kind not in SEALED or _milliseconds(entry) <= _milliseconds(seal):
        return event
    return event if compare_digest(told.encode(), seal.encode()) else None


def _milliseconds(text: str) -> int:
    return int(text.partition("-")[0])
