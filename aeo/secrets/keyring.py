"""The keys of secrets: a small file outside of the shared root, so that a copy of the root alone opens nothing.

One line for each key, ``<id> <key in base64>``: several controllers of one user share the file, and while a key is
changed both are there.
"""

from __future__ import annotations

import base64
import fcntl
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aeo import folders
from aeo.config import Config
from aeo.core.errors import InputError, Unusable
from aeo.layout import Shared

#: Bytes of a key.
SIZE = 32


def path(config: Config, shared: Shared) -> Path:
    """Where the keys are.

    Raises:
        InputError: that is inside of the shared root, beside what they encrypt; or this user has no home.
    """
    found = config.secrets_key_file or _usual()
    if found.resolve().is_relative_to(shared.root.resolve()):
        raise InputError(
            f"{found} is inside of the shared root: whoever copies that would have both.",
            field="--secrets-key-file",
            fix="Name a file elsewhere.",
        )
    return found


def _usual() -> Path:
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "aeo" / "secrets.key"
    except RuntimeError:
        fix = "Name the file that the key of the secrets is to be in."
        raise InputError("is empty, and this user has no home.", field="--secrets-key-file", fix=fix) from None


def find(file: Path, id: str) -> bytes:
    """The key of this id.

    Raises:
        Unusable: it is not here, or others may read the file.
    """
    try:
        return _read(file)[id]
    except KeyError:
        state = f"{file} has no key {id}" if file.exists() else f"there is no {file}"
    raise Unusable(
        f"The key of the secrets is lost: {state}. Bring the file back from a backup, or name where it is "
        "(AEO_SECRETS_KEY_FILE). Without it the values are gone: `aeo secrets remove` each, then set them anew."
    )


def add(file: Path, id: str, key: bytes) -> None:
    """Keep another key; on disk when this returns.

    Raises:
        Unusable: the file cannot be written.
    """
    with _changing(file) as keys:
        keys[id] = key


def drop(file: Path, id: str) -> None:
    """Forget a key, if it is there.

    Raises:
        Unusable: the file cannot be written.
    """
    if file.exists():
        with _changing(file) as keys:
            keys.pop(id, None)


@contextmanager
def _changing(file: Path) -> Iterator[dict[str, bytes]]:
    try:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = os.open(file.with_name(f"{file.name}.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            keys = dict(_read(file))
            yield keys
            text = "".join(f"{id} {base64.urlsafe_b64encode(key).decode()}\n" for id, key in keys.items())
            folders.write(file, text)
        finally:
            os.close(lock)
    except OSError as error:
        raise Unusable(f"The key of the secrets cannot be kept in {file}: {error.strerror}.") from None


def _read(file: Path) -> Mapping[str, bytes]:
    try:
        with file.open(encoding="ascii") as lines:
            if os.fstat(lines.fileno()).st_mode & 0o077:
                raise Unusable(f"Others may read {file}, which has the key of the secrets: chmod 600 it.")
            pairs = [line.split() for line in lines if line.strip()]
        keys = {id: base64.urlsafe_b64decode(key) for id, key in pairs}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise Unusable(f"{file}, which has the key of the secrets, cannot be read: {error.strerror}.") from None
    except ValueError:
        keys = {"": b""}
    if any(len(key) != SIZE for key in keys.values()):
        raise Unusable(f"{file} is no file of keys of secrets, or damaged. Bring it back from a backup.")
    return keys
