"""The connection: one client with time-outs, retries and the scripts; the one place where Redis errors become ours.

Needs a server that speaks Redis 6.2 or later (``SMISMEMBER``, ``BLMOVE``), not a cluster: scripts make their own keys.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from importlib import resources
from typing import Any
from urllib.parse import quote

import redis
from redis.backoff import ExponentialBackoff
from redis.client import Pipeline
from redis.commands.core import Script
from redis.exceptions import AuthenticationError, NoPermissionError, NoScriptError, RedisError
from redis.retry import Retry

from aeo.core import choose, leave
from aeo.core.errors import InputError, Unavailable
from aeo.store.keys import lua_table

#: Seconds. A half-open link is noticed after this; blocking commands must block for less.
SOCKET_TIMEOUT = 10.0
CONNECT_TIMEOUT = 3.0
#: Every script starts with this file, those that choose what runs next with both.
_PRELUDE, _PACE, _POLICY = "prelude.lua", "pace.lua", "policy.lua"
_CHOOSING = frozenset({"claim.lua", "arrive.lua"})


#: How a server says that a user has no right, also from within a script.
_DENIALS = ("NOPERM", "NOAUTH", "WRONGPASS", "has no permissions", "No permissions", "can't access", "can't run this")


class Denied(Unavailable):
    """The server answers, and refuses this user or what it asked for."""


@dataclass(frozen=True, kw_only=True)
class Db:
    """An open store. Safe to share between threads."""

    # Any, as redis-py types every answer as text or bytes, now or later; the store's functions say what comes back.
    client: Any = field(repr=False)
    scripts: Mapping[str, Script] = field(repr=False)
    #: Holds the password.
    url: str = field(default="", repr=False)

    def run(self, script: str, *args: Any) -> Any:
        """Run a Lua script; it is sent again when the server has forgotten it."""
        found = self.scripts[script]
        try:
            return self.client.evalsha(found.sha, 0, *args)
        except NoScriptError:
            # Not by SCRIPT LOAD, a right that a worker has not.
            return self.client.eval(found.script, 0, *args)

    def run_all(self, script: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        """Run a script once for each of these arguments, in this order and on one way there and back.

        Each is a step of its own: when this fails, some may have been done.
        """
        answers = self.try_all(script, calls)
        for answer in answers:
            if isinstance(answer, Unavailable):
                raise answer
        return answers

    def try_all(self, script: str, calls: Iterable[Sequence[Any]]) -> list[Any]:
        """`run_all`, with the `Unavailable` of a call that failed in its place: the others are done.

        Raises:
            Unavailable: the server is away.
        """
        found = self.scripts[script]
        args = [tuple(call) for call in calls]
        with self.client.pipeline(transaction=False) as pipe:
            for one in args:
                pipe.evalsha(found.sha, 0, *one)
            answers = pipe.execute(raise_on_error=False)
        for index, answer in enumerate(answers):
            if isinstance(answer, NoScriptError):
                try:
                    answers[index] = self.run(script, *args[index])
                except Denied as error:
                    answers[index] = error
            elif isinstance(answer, RedisError):
                answers[index] = _unavailable(self.client, answer)
        return list(answers)

    def close(self) -> None:
        """Close every connection."""
        self.client.close()


def connect(url: str) -> Db:
    """Connect to a Redis-protocol server, ``redis://`` or ``rediss://``.

    Raises:
        InputError: the address is not valid.
        Unavailable: the server does not answer, or refuses the password.
    """
    retry = Retry(ExponentialBackoff(cap=1.0, base=0.1), 3)
    try:
        if not url.startswith(("redis://", "rediss://")):
            raise ValueError
        pool = redis.ConnectionPool.from_url(
            url,
            decode_responses=True,
            protocol=2,
            socket_timeout=SOCKET_TIMEOUT,
            socket_connect_timeout=CONNECT_TIMEOUT,
            socket_keepalive=True,
            health_check_interval=15,
            retry=retry,
        )
    except ValueError:
        # The parser's own message may quote a piece of the password.
        raise InputError(
            "The broker's address is not valid.",
            field="--broker-url",
            fix="Use redis://[:password@]host[:port][/database], or rediss:// for TLS.",
        ) from None
    db = open_pool(pool, url)
    db.client.ping()
    return db


def open_pool(pool: redis.ConnectionPool, url: str = "") -> Db:
    """Make a store from connections that exist; they must decode their answers."""
    client = _Client(connection_pool=pool)
    return Db(client=client, scripts=_scripts(client), url=url)


def now(db: Db) -> datetime:
    """The server's clock, the only one that decides anything."""
    seconds, micros = db.client.time()
    return datetime.fromtimestamp(seconds, tz=timezone.utc).replace(microsecond=micros)


def moment(milliseconds: str | float) -> datetime:
    """Turn milliseconds as the scripts write them into a time."""
    return datetime.fromtimestamp(float(milliseconds) / 1000, tz=timezone.utc)


def _scripts(client: redis.Redis) -> Mapping[str, Script]:
    folder = resources.files("aeo.store") / "lua"
    head = lua_table() + (folder / _PRELUDE).read_text("utf-8")
    times = f"local TURN_MS, SHUN_MS = {choose.TURN_SECONDS * 1000:.0f}, {choose.SHUN_SECONDS * 1000:.0f}\n"
    times += f"local SLACK, FASTER, PATIENT = {leave.SLACK}, {leave.FASTER}, {leave.PATIENT}\n"
    rests = (leave.REST_SECONDS, leave.LONGEST_REST_SECONDS, leave.SHORTEST_REST_SECONDS)
    times += "local REST_MS, LONGEST_REST_MS, SHORTEST_REST_MS = " + ", ".join(f"{one * 1000:.0f}" for one in rests)
    times += f"\nlocal FRESH_MS, LONGEST_FRESH_MS = {leave.FRESH_SECONDS * 1000:.0f}, "
    times += f"{leave.LONGEST_FRESH_SECONDS * 1000:.0f}\nlocal SHARES = {leave.SHARES}\n"
    policy = times + (folder / _PACE).read_text("utf-8") + (folder / _POLICY).read_text("utf-8")
    return {
        file.name[: -len(".lua")]: client.register_script(
            head + (policy if file.name in _CHOOSING else "") + file.read_text("utf-8")
        )
        for file in folder.iterdir()
        if file.name.endswith(".lua") and file.name not in (_PRELUDE, _PACE, _POLICY)
    }


class _Client(redis.Redis):
    """A client whose errors are ours."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        try:
            return super().execute_command(*args, **options)  # type: ignore[no-untyped-call]
        except NoScriptError:
            # The caller's cue to send the script again.
            raise
        except RedisError as error:
            # Not chained: the original's text may quote the password.
            raise _unavailable(self, error) from None

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        return _Pipeline(self.connection_pool, self.response_callbacks, transaction, shard_hint)


class _Pipeline(Pipeline):
    def execute(self, raise_on_error: bool = True) -> list[Any]:
        try:
            return super().execute(raise_on_error)
        except RedisError as error:
            # Not chained: the original's text may quote the password.
            raise _unavailable(self, error) from None


def is_denial(error: Exception) -> bool:
    """Whether the server says by this that a user has no right."""
    known = isinstance(error, (AuthenticationError, NoPermissionError))
    return known or (isinstance(error, RedisError) and any(sign in str(error) for sign in _DENIALS))


def _unavailable(client: redis.Redis, error: Exception) -> Unavailable:
    settings = client.connection_pool.connection_kwargs
    text = str(error)
    password = str(settings.get("password") or "")
    for secret in {password, quote(password, safe="")} - {""}:
        text = text.replace(secret, "***")
    place = f"{settings.get('host', 'memory')}:{settings.get('port', 0)}"
    kind = Denied if is_denial(error) else Unavailable
    return kind(f"The store at {place} does not answer as it should: {text}")
