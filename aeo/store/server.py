"""The server behind the store, as it says of itself: what could make it lose or refuse what is written."""

from __future__ import annotations

from dataclasses import dataclass

from aeo.store.connection import Db


@dataclass(frozen=True, kw_only=True)
class Server:
    """A Redis-protocol server."""

    version: str
    #: What it drops when its memory is full: ``noeviction`` is nothing.
    policy: str
    #: The last write to its disk worked.
    written: bool
    #: Bytes; a limit of 0 is none.
    used: int
    limit: int


def look(db: Db) -> Server:
    """Ask the server.

    Raises:
        Unavailable: it does not answer, or does not tell this user.
    """
    told = db.client.info()
    return Server(
        version=str(told.get("valkey_version") or told.get("redis_version") or ""),
        policy=str(told.get("maxmemory_policy", "noeviction")),
        written=told.get("rdb_last_bgsave_status", "ok") == "ok" and told.get("aof_last_write_status", "ok") == "ok",
        used=int(told.get("used_memory", 0)),
        limit=int(told.get("maxmemory", 0)),
    )
