"""The secrets of a controller: ``secrets.json``, each value encrypted by itself (AES-GCM) and bound to its name.

Who set what is kept in the clear; values are only ever read to be delivered, or to be taken out of results.
"""

from __future__ import annotations

import base64
import fcntl
import logging
import os
import secrets as random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from aeo import codec, folders, redaction
from aeo.config import Config
from aeo.core.errors import AeoError, InputError, NotFound, Unavailable, Unusable
from aeo.core.names import check_variable
from aeo.layout import Shared
from aeo.secrets import keyring
from aeo.site import Site

log = logging.getLogger(__name__)

#: Characters of a value: shorter ones could not be taken out of results, as they would be found everywhere.
SHORTEST, LONGEST = redaction.SHORTEST, 65536
_NONCE = 12


@dataclass(frozen=True, kw_only=True)
class Root:
    """Where a controller's secrets are; a `Site` knows it, too."""

    config: Config
    shared: Shared


@dataclass(frozen=True, kw_only=True)
class Secret:
    """What may be known of a secret."""

    name: str
    set_at: datetime
    #: Name of the user who set it.
    set_by: str


@dataclass(frozen=True, kw_only=True)
class _Sealed:
    secret: Secret
    #: Nonce and encrypted value, base64.
    value: str = field(repr=False)


@dataclass(frozen=True, kw_only=True)
class _File:
    #: Id of the key; empty while there are no secrets.
    key: str = ""
    sealed: tuple[_Sealed, ...] = ()


def list_all(site: Site | Root) -> list[Secret]:
    """Every secret, by name; also those whose key is lost.

    Raises:
        Unavailable: the file of secrets is damaged.
    """
    return sorted((one.secret for one in _read(site).sealed), key=lambda one: one.name)


def names(site: Site | Root) -> frozenset[str]:
    """Names of all secrets.

    Raises:
        Unavailable: the file of secrets is damaged.
    """
    return frozenset(one.secret.name for one in _read(site).sealed)


def put(site: Site, name: str, value: str, *, by: str) -> Secret:
    """Set a secret, or set it anew: from the next trial on.

    Raises:
        InputError: it is no name, or no value. No message shows the value.
        Unavailable: the key is lost, or cannot be kept.
    """
    check_variable(name, field="name")
    _check_value(value)
    file = keyring.path(site.config, site.shared)
    made = Secret(name=name, set_at=datetime.now(timezone.utc), set_by=by)
    with _changing(site) as change:
        kept = change.file
        id = kept.key or random.token_hex(8)
        if not kept.key:
            keyring.add(file, id, random.token_bytes(keyring.SIZE))
        key = keyring.find(file, id)
        others = tuple(one for one in kept.sealed if one.secret.name != name)
        change.file = _File(key=id, sealed=(*others, _Sealed(secret=made, value=_seal(key, name, value))))
    log.info("the secret %s is set by %s", name, by or "nobody")
    return made


def remove(site: Site, name: str) -> Secret:
    """Remove a secret; also one whose key is lost. Trials that run keep it.

    Raises:
        NotFound: there is none of this name.
        Unavailable: the file of secrets is damaged.
    """
    with _changing(site) as change:
        kept = change.file
        removed = next((one.secret for one in kept.sealed if one.secret.name == name), None)
        if removed is None:
            raise NotFound("there is no secret of this name.", field="name", fix="See `aeo secrets list`.")
        others = tuple(one for one in kept.sealed if one.secret.name != name)
        # The last one takes the key along, lost or not: the next one begins anew.
        change.file = _File(key=kept.key if others else "", sealed=others)
        if not others:
            change.after = lambda: _forget_key(site, kept.key)
    log.info("the secret %s is removed", name)
    return removed


def _forget_key(site: Site, id: str) -> None:
    # It opens nothing any more.
    with suppress(AeoError):
        keyring.drop(keyring.path(site.config, site.shared), id)


def rekey(site: Site) -> int:
    """Encrypt all secrets with a new key and forget the old one; returns how many. A crash in between loses none.

    Raises:
        Unavailable: the old key is lost, or the new one cannot be kept.
    """
    file = keyring.path(site.config, site.shared)
    with _changing(site) as change:
        kept = change.file
        if not kept.sealed:
            return 0
        old, id, new = keyring.find(file, kept.key), random.token_hex(8), random.token_bytes(keyring.SIZE)
        keyring.add(file, id, new)
        sealed = tuple(
            replace(one, value=_seal(new, one.secret.name, _open(old, kept.key, one))) for one in kept.sealed
        )
        change.file = _File(key=id, sealed=sealed)
        change.after = lambda: keyring.drop(file, kept.key)
    log.info("%d secrets have a new key", len(sealed))
    return len(sealed)


def values(site: Site | Root, wanted: Iterable[str] | None = None) -> dict[str, str]:
    """The values of these secrets, by default of all; those that are not set are left out.

    Raises:
        Unavailable: the key is lost or another one's, or a file is damaged.
    """
    kept = _read(site)
    only = None if wanted is None else frozenset(wanted)
    found = [one for one in kept.sealed if only is None or one.secret.name in only]
    if not found:
        return {}
    key = keyring.find(keyring.path(site.config, site.shared), kept.key)
    return {one.secret.name: _open(key, kept.key, one) for one in found}


def stamp(site: Site) -> tuple[object, ...]:
    """Changes whenever `values` may give something else."""
    kept = _state(site.shared.secrets)
    return (kept, _state(keyring.path(site.config, site.shared))) if kept else ()


def _state(path: os.PathLike[str]) -> object:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ino, found.st_size, found.st_mode)


def _check_value(value: str) -> None:
    if not SHORTEST <= len(value.strip()) <= len(value) <= LONGEST:
        raise InputError(
            f"must have {SHORTEST} to {LONGEST} characters.",
            field="value",
            fix="Shorter ones could not be kept out of results: they would be found everywhere.",
        )
    if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
        fix = "Encode it, such as in base64."
        raise InputError("has characters that no variable can hold.", field="value", fix=fix)


def _seal(key: bytes, name: str, value: str) -> str:
    nonce = random.token_bytes(_NONCE)
    return base64.b64encode(nonce + AESGCM(key).encrypt(nonce, value.encode(), name.encode())).decode()


def _open(key: bytes, id: str, one: _Sealed) -> str:
    try:
        sealed = base64.b64decode(one.value)
        return AESGCM(key).decrypt(sealed[:_NONCE], sealed[_NONCE:], one.secret.name.encode()).decode()
    except (InvalidTag, ValueError):
        pass
    raise Unusable(
        f"The secret {one.secret.name} cannot be opened: the key {id} is another one than it was set with, or the file "
        "is damaged. Bring the right file of keys back, or set the secret anew after `aeo secrets remove`."
    )


class _Change:
    def __init__(self, file: _File) -> None:
        self.file = file
        self.after: Callable[[], object] = lambda: None


@contextmanager
def _changing(site: Site) -> Iterator[_Change]:
    """What is kept, written back unless an error leaves it; one at a time changes it. ``after`` follows the writing."""
    path = site.shared.secrets
    lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        change = _Change(_read(site))
        before = change.file
        yield change
        if change.file is not before:
            try:
                folders.write(path, codec.dumps(change.file))
            except OSError as error:
                raise Unavailable(f"The secrets cannot be kept in {path.name}: {error.strerror}.") from None
            change.after()
    finally:
        os.close(lock)


def _read(site: Site | Root) -> _File:
    # Each time anew: several processes use it.
    path = site.shared.secrets
    try:
        return codec.loads(_File, path.read_bytes())
    except FileNotFoundError:
        return _File()
    except (OSError, InputError):
        log.error("%s cannot be used", path)
        raise Unusable(f"The controller's file of secrets ({path.name}) is damaged.") from None
