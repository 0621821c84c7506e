"""Who may use this controller besides its operator, and what each may do: ``users.json``.

The operator is whoever has the controller's own token; it is no entry here. A user's token is shown once, when it is
made; what is kept is its hash.
"""

from __future__ import annotations

import fcntl
import hmac
import logging
import os
import secrets
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from enum import Enum
from functools import total_ordering
from hashlib import sha256
from pathlib import Path

from aeo import codec
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.core.names import check_name
from aeo.layout import Shared

log = logging.getLogger(__name__)

#: Name of whoever has the controller's own token, an admin always.
OPERATOR = "operator"
#: Start of every user's token, so that logs can be cleaned of them and scanners find them in files.
PREFIX = "aeo_"
LONGEST_NAME = 64


@total_ordering
class Role(Enum):
    """What a user may do; each may do what those below may."""

    #: Look.
    VIEWER = "viewer"
    #: Submit, and change what is their own.
    MEMBER = "member"
    #: Everything.
    ADMIN = "admin"

    def __lt__(self, other: Role) -> bool:
        order = list(Role)
        return order.index(self) < order.index(other)


@dataclass(frozen=True, kw_only=True)
class User:
    """A named user."""

    name: str
    role: Role
    created_at: datetime


@dataclass(frozen=True, kw_only=True)
class Account:
    """A user, and how their token is known again."""

    user: User
    #: SHA-256 of the token, hexadecimal. Tokens are long and random: a slow hash would add nothing.
    digest: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class _File:
    accounts: tuple[Account, ...] = ()


def add(shared: Shared, name: str, role: Role) -> str:
    """Add a user; returns the token, which nobody can show again.

    Raises:
        InputError: it is no name for a user.
        Conflict: somebody has this name.
        Unavailable: the file of users is damaged.
    """
    check_name(name, "user name", field="name")
    if len(name) > LONGEST_NAME:
        raise InputError(f"is longer than {LONGEST_NAME} characters.", field="name", fix="Choose a shorter one.")
    if name.casefold() == OPERATOR:
        raise InputError(
            f"{name!r} is whoever has the controller's own token.", field="name", fix="Choose another name."
        )
    token = _new_token()
    with _changing(shared) as accounts:
        taken = {known.casefold(): known for known in accounts}.get(name.casefold())
        if taken:
            fix = f"Choose another name, or make a new token with `aeo user renew {taken}`."
            raise Conflict(f"there is a user {taken!r} already.", field="name", fix=fix)
        user = User(name=name, role=role, created_at=datetime.now(timezone.utc))
        accounts[name] = Account(user=user, digest=_digest(token))
    log.info("user %s is added as %s", name, role.value)
    return token


def remove(shared: Shared, name: str) -> User:
    """Remove a user: the token and all sessions end at once. What they submitted runs on.

    Raises:
        NotFound: there is no such user.
        Unavailable: the file of users is damaged.
    """
    with _changing(shared) as accounts:
        removed = _of(accounts, name).user
        del accounts[name]
    log.info("user %s is removed", name)
    return removed


def renew(shared: Shared, name: str) -> str:
    """Give a user a new token and return it; the old one and all sessions end at once.

    Raises:
        NotFound: there is no such user.
        Unavailable: the file of users is damaged.
    """
    token = _new_token()
    with _changing(shared) as accounts:
        accounts[name] = replace(_of(accounts, name), digest=_digest(token))
    log.info("user %s has a new token", name)
    return token


def list_all(shared: Shared) -> list[User]:
    """Every named user, by name.

    Raises:
        Unavailable: the file of users is damaged.
    """
    return sorted((item.user for item in _read(shared.users).values()), key=lambda user: user.name.casefold())


def find(shared: Shared, name: str) -> Account | None:
    """The account of this name.

    Raises:
        Unavailable: the file of users is damaged.
    """
    return _read(shared.users).get(name)


def by_token(shared: Shared, token: str) -> Account | None:
    """The account that this token is of; None if of nobody.

    Raises:
        Unavailable: the file of users is damaged.
    """
    digest, found = _digest(token), None
    # All of them, so that the time tells nothing.
    for account in _read(shared.users).values():
        if hmac.compare_digest(account.digest.encode(), digest.encode()):
            found = account
    return found


def _of(accounts: Mapping[str, Account], name: str) -> Account:
    if name not in accounts:
        raise NotFound(f"there is no user {name[:LONGEST_NAME]!r}.", field="name", fix="See `aeo user list`.")
    return accounts[name]


def _new_token() -> str:
    return PREFIX + secrets.token_urlsafe(32)


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()


@contextmanager
def _changing(shared: Shared) -> Iterator[dict[str, Account]]:
    """The accounts by name, written back unless an error leaves it; one at a time changes them."""
    path = shared.users
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        accounts = _read(path)
        yield accounts
        _write(path, accounts)
    finally:
        os.close(lock)


def _read(path: Path) -> dict[str, Account]:
    # Each time anew: whoever was removed is out with the next request, whichever process removed them.
    try:
        kept = codec.loads(_File, path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, InputError) as error:
        log.error("%s cannot be used: %s", path, error)
        raise Unavailable(f"The controller's file of users ({path.name}) is damaged.") from None
    return {account.user.name: account for account in kept.accounts}


def _write(path: Path, accounts: Mapping[str, Account]) -> None:
    made, name = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")  # with 0600
    try:
        with os.fdopen(made, "w", encoding="utf-8") as file:
            file.write(codec.dumps(_File(accounts=tuple(accounts.values()))))
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(FileNotFoundError):
            Path(name).unlink()
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
