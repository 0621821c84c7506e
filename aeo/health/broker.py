"""The broker: whether it answers, and whether it keeps what it is given."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

from aeo.core.condition import Condition, fault, ok, warning
from aeo.core.errors import AeoError, InputError
from aeo.store import server
from aeo.store.connection import connect
from aeo.store.server import Server

#: Share of the memory limit from which it is nearly full.
NEARLY_FULL = 0.9
_REFUSED = re.compile(r"WRONGPASS|NOAUTH|invalid username|Authentication", re.IGNORECASE)
_NOBODY = re.compile(r"refused|Errno 111", re.IGNORECASE)
_UNKNOWN_HOST = re.compile(r"Name or service|name resolution|getaddrinfo|nodename", re.IGNORECASE)


@dataclass(frozen=True, kw_only=True)
class Broker:
    """A broker, tried."""

    #: Host and port, without a password.
    place: str
    #: Why it does not answer; empty if it does.
    error: str = ""
    #: None where it did not say.
    server: Server | None = None


def measure(url: str) -> Broker:
    """Connect and ask."""
    parts = urlsplit(url)
    place = parts.netloc.rpartition("@")[2] or "?"
    try:
        db = connect(url)
    except InputError as error:
        return Broker(place=place, error=str(error))
    except AeoError as error:
        return Broker(place=place, error=str(error))
    try:
        return Broker(place=place, server=server.look(db))
    except AeoError:
        # A worker's own account may not ask that.
        return Broker(place=place)
    finally:
        db.close()


def judge(broker: Broker) -> Iterator[Condition]:
    """Judge what was found."""
    if broker.error:
        yield _away(broker)
        return
    version = f", version {broker.server.version}" if broker.server else ""
    yield ok("broker", f"{broker.place} answers{version}")
    if broker.server is not None:
        yield from _kept(broker.server)


def _away(broker: Broker) -> Condition:
    place = broker.place
    if _REFUSED.search(broker.error):
        return fault(
            "broker",
            f"{place} refuses the password",
            "Give the password of that server in AEO_BROKER_URL (redis://:PASSWORD@HOST:PORT/0).",
        )
    if _NOBODY.search(broker.error):
        return fault(
            "broker",
            f"nothing listens at {place}",
            "Check host and port of AEO_BROKER_URL; start the server, or the tunnel that leads to it.",
        )
    if _UNKNOWN_HOST.search(broker.error):
        return fault("broker", f"the host of {place} is not known", "Check the host of AEO_BROKER_URL, and this DNS.")
    return fault("broker", broker.error.rstrip("."), "Check AEO_BROKER_URL, and a firewall on the way.")


def _kept(found: Server) -> Iterator[Condition]:
    if found.policy != "noeviction":
        yield fault(
            "broker memory",
            f"when its memory is full it drops keys (maxmemory-policy {found.policy}): trials would be forgotten",
            "Set `maxmemory-policy noeviction` in its configuration.",
        )
    elif found.limit and found.used > NEARLY_FULL * found.limit:
        yield warning("broker memory", f"{found.used / found.limit:.0%} of its limit in use", "Raise its `maxmemory`.")
    if not found.written:
        yield fault("broker disk", "its last write to disk failed", "Look at its log, and at the room on its disk.")
