"""Own users of the server: a worker reaches what is its own there, its part of what it has a batch of, and no more.

The server checks a user's rights inside scripts too. Rights are no part of the data: a server that was started again
knows no user, one that was flushed still does. Needs a server that tells reading from writing: Redis 7, Valkey.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

from aeo.core.errors import AeoError, InputError, Unavailable
from aeo.core.names import check_name
from aeo.store.connection import Db
from aeo.store.keys import key

#: Those that scripts, messages and the connection itself need. None looks at the server or at keys by pattern.
_COMMANDS = (
    *("ping", "select", "time", "multi", "exec", "discard", "watch", "unwatch", "eval", "evalsha", "script|load"),
    *("get", "set", "setex", "psetex", "setnx", "del", "unlink", "exists", "expire", "pexpire"),
    *("hget", "hset", "hdel", "hmget", "hgetall", "hexists", "hincrby", "hkeys", "hsetnx", "hvals", "hlen"),
    *("sadd", "srem", "scard", "sismember", "smismember", "smembers"),
    *("zadd", "zrem", "zcard", "zcount", "zincrby", "zscore", "zrange", "zrevrange", "zrangebyscore"),
    *("zrevrangebyscore", "lpush", "rpush", "lpop", "rpop", "brpop", "llen", "lrange", "lindex", "ltrim", "lrem"),
    "xadd",
)
#: What redis-py says of itself at each connection; servers before 7.2 do not know it, and it does without.
_SETINFO = "+client|setinfo"
#: Between a queue's name and its priority, as `aeo.dispatch.lists_of` has it.
_STEP = "\x06\x16*"
#: Which queues an exchange has, and which of them for good.
_TABLES = ("_kombu.binding", "_kombu.binding_permanent")
#: Seconds an unheard question lives.
_ASKED_SECONDS = 3600


class NotOffered(AeoError):
    """The server has no such users, or we may not make any."""


def user_of(worker: str, database: int = 0) -> str:
    """Name of a worker's user. Users are the whole server's: controllers on one have a database each."""
    return f"worker.{database}-{worker}" if database else f"worker-{worker}"


def user(db: Db, worker: str) -> str:
    """Name of a worker's user at this store."""
    return user_of(worker, _database(db))


def _database(db: Db) -> int:
    return int(db.client.connection_pool.connection_kwargs.get("db") or 0)


def put(db: Db, worker: str, digest: str, evaluations: Iterable[str]) -> None:
    """Make a worker's user, or make it what it is to be; its open connections go on.

    ``digest``: SHA-256 of its password, hexadecimal. ``evaluations``: those it has a share in.

    Raises:
        NotOffered: the server knows nothing of the kind, or refuses it to us.
        Unavailable: the server is away.
    """
    rules = ["reset", "on", f"#{digest}", "-@all", *(f"+{name}" for name in _COMMANDS)]
    for id in evaluations:
        rules += [f"~{key('evaluation', id)}", f"~{key('evaluation', id)}:*"]
        rules += [f"~celery-task-meta-{id}-*", f"~celery-taskset-meta-{id}-*"]
    rules += _own(worker, _database(db))
    try:
        _set_user(db, worker, rules)
    except Unavailable as error:
        if not _answers(db):
            raise
        # The message may end with the rule, in which the digest stands.
        why = str(error).partition("ACL SETUSER modifier")[0].replace(digest, "***").rstrip(" :'")
        raise NotOffered(f"{why} (needs Redis 7 or Valkey, and the right to ACL SETUSER)") from None


def _set_user(db: Db, worker: str, rules: list[str]) -> None:
    try:
        db.client.execute_command("ACL", "SETUSER", user(db, worker), *rules, _SETINFO)
    except Unavailable as error:
        if _SETINFO not in str(error):
            raise
        db.client.execute_command("ACL", "SETUSER", user(db, worker), *rules)


def _own(worker: str, database: int) -> list[str]:
    return [
        *(f"~{key('worker', worker)}{rest}" for rest in ("", ":*")),
        *(f"~worker.{worker}{rest}" for rest in ("", _STEP)),
        *(f"~unacked.{worker}{rest}" for rest in ("", ".index", ".mutex")),
        *(f"~{table}.{name}" for table in _TABLES for name in (f"worker.{worker}", "control", "celery.pidbox")),
        f"~{worker}@*.celery.pidbox*",
        # Write-only: what it tells the control process. A list's length is no reading.
        *(
            f"%W~{name}"
            for name in (key("events"), key("inbox"), "control", f"control{_STEP}", "*.reply.celery.pidbox")
        ),
        *(f"%R~{key(noun)}" for noun in ("recovered", "removed", "idle", "limits")),
        "%R~_kombu.binding.reply.celery.pidbox",
        # Who runs under a limit, and when the next may: counted by the claims themselves.
        *(f"~{key('using', '*')}", f"~{key('paced')}"),
        # It tells Flower what it does, hears what everybody is asked, and not the other way round.
        f"(-@all +publish &/{database}.celeryev/* &celery-task-meta-*)",
        f"(-@all +subscribe +psubscribe +unsubscribe +punsubscribe &/{database}.celery.pidbox)",
    ]


def drop(db: Db, worker: str) -> None:
    """Delete a worker's user and cut its connections.

    Raises:
        Unavailable: the server is away, or does not let us.
    """
    db.client.execute_command("ACL", "DELUSER", user(db, worker))
    cut(db, worker)


def cut(db: Db, worker: str) -> None:
    """Cut every connection of a worker's user."""
    # Some servers refuse to look for a user that is gone; then they have cut its connections themselves.
    try:
        db.client.execute_command("CLIENT", "KILL", "USER", user(db, worker))
    except Unavailable as error:
        if "No such user" not in str(error):
            raise


def present(db: Db) -> frozenset[str]:
    """Workers that have a user there.

    Raises:
        Unavailable: the server is away, or does not let us.
    """
    prefix = user(db, "")
    users = db.client.execute_command("ACL", "USERS")
    return frozenset(name[len(prefix) :] for name in users if name.startswith(prefix))


def _answers(db: Db) -> bool:
    with suppress(Unavailable):
        return bool(db.client.ping())
    return False


def ask_for(db: Db, worker: str, evaluation: str) -> None:
    """Ask for an evaluation that is closed, as something of it is still here."""
    with db.client.pipeline(transaction=True) as pipe:
        pipe.sadd(key("wants", worker), evaluation)
        pipe.expire(key("wants", worker), _ASKED_SECONDS)
        pipe.execute()


def asked_for(db: Db, worker: str) -> frozenset[str]:
    """What a worker asked for; it is forgotten by being read."""
    with db.client.pipeline(transaction=True) as pipe:
        pipe.smembers(key("wants", worker))
        pipe.delete(key("wants", worker))
        asked = pipe.execute()[0]
    return frozenset(evaluation for evaluation in asked if _is_name(evaluation))


def _is_name(text: str) -> bool:
    try:
        return bool(check_name(text, "evaluation id"))
    except InputError:
        return False


def look(db: Db, evaluation: str) -> None:
    """See whether we may look at an evaluation, be it there or not.

    Raises:
        Denied: we may not.
        Unavailable: the server is away.
    """
    db.client.exists(key("evaluation", evaluation))
