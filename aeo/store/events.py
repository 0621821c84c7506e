"""Events: what happened, one for each transition, kept until the control process has them on disk."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from aeo.codec import dumps
from aeo.store.connection import Db, moment
from aeo.store.keys import key


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
    """Read the oldest events with their entry ids; they stay until `forget`."""
    return [(entry, _event(fields)) for entry, fields in db.client.xrange(key("events"), count=count)]


def forget(db: Db, ids: Sequence[str]) -> None:
    """Drop events that are on disk."""
    if ids:
        db.client.xdel(key("events"), *ids)


def length(db: Db) -> int:
    """Events not on disk yet."""
    return int(db.client.xlen(key("events")))


def _event(fields: dict[str, str]) -> Event:
    rest = dict(fields)
    return Event(evaluation=rest.pop("evaluation"), kind=rest.pop("kind"), at=moment(rest.pop("at")), fields=rest)
