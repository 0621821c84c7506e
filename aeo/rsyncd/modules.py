"""What each worker may read and write of the shared root, written down for the daemon.

Two modules for each worker, with a secret of its own: one to read, one to write. The daemon reads its configuration at
each connection, so what is written here holds from the next one on. Its folder::

    <shared_root>/rsync/       0700
    ├── rsyncd.conf            written anew when a right changes, like the next three
    ├── secrets                0600; rsync wants the secrets themselves, no digests
    ├── read.<name>            what the module to read shows: the first rule that fits counts
    ├── write.<name>           what the module to write takes, which is the inbox
    ├── state                  digest of what the files say; not there while they are written
    ├── port                   kept over restarts where it is still free
    ├── config.lock, lock      held while the above are written; by who keeps the daemon; lock.<module>: its connections
    └── daemon.log
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import random
import secrets
import socket
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from aeo import codec
from aeo.config import Config
from aeo.core.errors import InputError, Unavailable
from aeo.core.model import Evaluation
from aeo.layout import Shared
from aeo.transfer import remote, rsync

HOST = "127.0.0.1"
#: Apart from the embedded server's, and below what systems give to outgoing connections.
_PORTS = range(32000, 32768)
#: Connections of one worker at once, each way.
_CONNECTIONS = 64
#: Seconds without data after which a connection is given up.
_QUIET_SECONDS = 120
#: What a worker fetches of an evaluation's folder.
_FETCHED = ("evaluation.json", "trials.jsonl", "keep")
#: Options that no worker of ours uses: links, devices, other folders, owners, and whatever removes.
_REFUSED = (
    # `D` is devices and pipes as they are asked for on the wire.
    "D links copy-links copy-unsafe-links copy-dirlinks keep-dirlinks hard-links devices specials write-devices "
    "copy-devices owner group super fake-super acls xattrs force delete delete-* remove-source-files files-from "
    "mkpath link-dest copy-dest compare-dest backup backup-dir temp-dir partial-dir"
)
#: In the configuration's form; a change has every file written anew.
_FORM = 3


@dataclass(frozen=True, kw_only=True)
class Rights:
    """What one worker may reach."""

    #: Ids of evaluations.
    evaluations: frozenset[str] = frozenset()
    #: Digests of content folders besides those of the evaluations.
    contents: frozenset[str] = frozenset()
    #: All tasks, all evaluations: where nobody can say which are its own.
    everything: bool = False


def offered(config: Config, shared: Shared) -> bool:
    """Whether this controller serves files itself: rsync is installed, and no other way was configured."""
    # The daemon's configuration could not name such a folder.
    plain = str(shared.root).isprintable() and not set("%\\") & set(str(shared.root))
    return not (config.transfer_url or config.transfer_password) and plain and rsync.installed()


def way(config: Config, shared: Shared) -> str:
    """The address by which files travel, for who only wants to know host and port; "" where there is none."""
    if config.transfer_url or not shared.root.is_dir() or not offered(config, shared):
        return config.transfer_url
    return f"rsync://{HOST}:{port(shared)}/aeo"


def address(shared: Shared, worker: str) -> str:
    """What a worker is told: its module to read, see `aeo.transfer.remote` for that to write."""
    name = plain(worker)
    return f"rsync://{_account(name)}@{HOST}:{port(shared)}/{remote.READING}{name}"


def plain(worker: str) -> str:
    """A worker's id as part of a module's name: rsync knows no capitals there, and not every letter travels."""
    return "".join(
        letter if letter.isdigit() or letter.islower() or letter in "._-" else f"+{ord(letter):02x}"
        for letter in worker
    )


def _account(name: str) -> str:
    return f"worker-{name}"


def mark(shared: Shared) -> str:
    """What tells the shared root from any other folder of that name; who can read it there needs no daemon."""
    return _kept(shared, shared.mark, lambda: secrets.token_hex(16))


def has_mark(root: Path, mark: str) -> bool:
    """Whether the folder is that shared root, and this process may read in it."""
    with suppress(OSError, ValueError):
        return bool(mark) and Shared(root, root).mark.read_text() == mark
    return False


def port(shared: Shared) -> int:
    """The daemon's port, chosen at the first call.

    Raises:
        Unavailable: the folder cannot be written.
    """
    return int(_kept(shared, shared.rsync / "port", lambda: str(_free_port())))


def move(shared: Shared) -> int:
    """Choose another port, as somebody else has that one."""
    with _locked(shared):
        chosen = _free_port()
        _write(shared.rsync / "port", str(chosen))
    return chosen


def is_free(port: int) -> bool:
    """Whether nobody has the port."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((HOST, port))
        return True
    return False


def _free_port() -> int:
    found = next(filter(is_free, random.sample(_PORTS, 50)), 0)
    if not found:
        raise Unavailable(f"No port is free on {HOST} for the rsync daemon.")
    return found


def issue(shared: Shared, worker: str) -> str:
    """Make a new secret for a worker; the old one is worth nothing from now on. `tell` gives it rights.

    Raises:
        Unavailable: the folder cannot be written.
    """
    secret = secrets.token_urlsafe(24)
    with _locked(shared):
        known = {**issued(shared), plain(worker): secret}
        _write_secrets(shared, known)
    return secret


def issued(shared: Shared) -> dict[str, str]:
    """The secrets, by workers' plain names."""
    with suppress(FileNotFoundError):
        lines = (shared.rsync / "secrets").read_text().splitlines()
        return {
            account.removeprefix("worker-"): secret for account, _, secret in (line.partition(":") for line in lines)
        }
    return {}


def tell(shared: Shared, rights: Mapping[str, Rights]) -> None:
    """Write down what each worker may reach; one that has a secret and is not named loses it.

    Costs next to nothing when all is written already.

    Raises:
        Unavailable: the folder cannot be written.
    """
    with _locked(shared):
        known = issued(shared)
        kept = {plain(id): (id, right) for id, right in rights.items() if plain(id) in known}
        rules = {name: _state_of(shared, right) for name, (_, right) in sorted(kept.items())}
        state = hashlib.sha256(repr((_FORM, str(shared.root), os.geteuid(), rules)).encode()).hexdigest()
        if kept.keys() == known.keys() and _text(shared.rsync / "state") == state:
            return
        (shared.rsync / "state").unlink(missing_ok=True)
        _write_secrets(shared, {name: known[name] for name in kept})
        for name, (_, right) in kept.items():
            _write(shared.rsync / f"read.{name}", _lines(_readable(shared, right)))
            _write(shared.rsync / f"write.{name}", _lines(_writable(right)))
        _write(shared.rsync / "rsyncd.conf", _config(shared, sorted(kept)))
        for path in (*shared.rsync.glob("read.*"), *shared.rsync.glob("write.*")):
            if path.name.partition(".")[2] not in kept:
                path.unlink(missing_ok=True)
                path.with_name(f"lock.{path.name}").unlink(missing_ok=True)
        _write(shared.rsync / "state", state)


def _state_of(shared: Shared, right: Rights) -> tuple[object, ...]:
    # Of an evaluation whose record is not there yet nothing can be read; it is looked at anew the next time.
    known = [(id, len(_contents(shared, id))) for id in sorted(right.evaluations)]
    return (right.everything, known, sorted(right.contents))


def _readable(shared: Shared, right: Rights) -> Iterator[str]:
    digests = sorted(right.contents.union(*(_contents(shared, id) for id in right.evaluations)))
    yield "+ /tasks/"
    yield from ("+ /tasks/***",) if right.everything else (f"+ /tasks/{digest}/***" for digest in digests)
    yield "+ /evaluations/"
    for id in ("*",) if right.everything else sorted(right.evaluations):
        yield f"+ /evaluations/{id}/"
        yield from (f"+ /evaluations/{id}/{name}" for name in _FETCHED)


def _writable(right: Rights) -> Iterator[str]:
    # Without a slash at the end: that is how the daemon asks for the folder which things are to be put in.
    for id in ("*",) if right.everything else sorted(right.evaluations):
        yield f"+ /{id}"
        yield f"+ /{id}/**"


def _lines(rules: Iterator[str]) -> str:
    return "".join(f"{rule}\n" for rule in (*rules, "- *"))


def _contents(shared: Shared, evaluation: str) -> frozenset[str]:
    with suppress(InputError, OSError):
        return _read_contents(shared.evaluation(evaluation) / "evaluation.json")
    return frozenset()


@lru_cache(maxsize=256)
def _read_contents(path: Path) -> frozenset[str]:
    # Written once, so what was read stays true.
    return frozenset(content.digest for content in codec.loads(Evaluation, path.read_bytes()).plan.contents)


def _config(shared: Shared, names: Collection[str]) -> str:
    folder = shared.rsync
    lines = [
        # Root is needed for it, and for nothing else here.
        "use chroot = no",
        *((f"uid = {os.geteuid()}", f"gid = {os.getegid()}") if os.geteuid() == 0 else ()),
        "list = no",
        f"hosts allow = {HOST}",
        "reverse lookup = no",
        # No link leads anywhere, whoever made it.
        "munge symlinks = yes",
        f"refuse options = {_REFUSED}",
        "incoming chmod = a-s",
        f"timeout = {_QUIET_SECONDS}",
        f"max connections = {_CONNECTIONS}",
        "max verbosity = 0",
        f"log file = {folder / 'daemon.log'}",
        f"secrets file = {folder / 'secrets'}",
    ]
    for name in names:
        for module, rules, path, mode in (
            (remote.READING, "read", shared.root, ("read only = yes",)),
            (remote.WRITING, "write", shared.inbox, ("read only = no", "write only = yes")),
        ):
            lines += ["", f"[{module}{name}]", f"path = {path}", *mode, f"auth users = {_account(name)}"]
            lines += [f"exclude from = {folder / f'{rules}.{name}'}", f"lock file = {folder / f'lock.{rules}.{name}'}"]
    return "\n".join(lines) + "\n"


def _write_secrets(shared: Shared, known: Mapping[str, str]) -> None:
    text = "".join(f"{_account(name)}:{secret}\n" for name, secret in sorted(known.items()))
    _write(shared.rsync / "secrets", text)


def _kept(shared: Shared, path: Path, make: Callable[[], str]) -> str:
    found = _text(path)
    if not found:
        with _locked(shared):
            found = _text(path)
            if not found:
                found = make()
                _write(path, found)
    return found


def _text(path: Path) -> str:
    with suppress(FileNotFoundError):
        return path.read_text()
    return ""


@contextmanager
def _locked(shared: Shared) -> Iterator[None]:
    """The folder, for one process at a time.

    Raises:
        Unavailable: it cannot be written.
    """
    try:
        shared.rsync.mkdir(mode=0o700, exist_ok=True)
        with (shared.rsync / "config.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
    except OSError as error:
        raise Unavailable(f"{shared.rsync} cannot be written: {error.strerror or error}") from error


def _write(path: Path, text: str) -> None:
    """Write a private file in one step; what it says already is left."""
    with suppress(OSError):
        if path.read_text() == text:
            return
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
