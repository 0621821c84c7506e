"""The daemon's process: kept up by the control process, ended with it, never two of it."""

from __future__ import annotations

import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil

from aeo.config import Config
from aeo.executors.process import die_with_parent
from aeo.layout import Shared
from aeo.rsyncd import modules

log = logging.getLogger(__name__)

#: Seconds between two looks whether it lives.
LOOK_SECONDS = 0.3
#: Seconds it gets to answer, its old port to become free, and it to end.
_START_SECONDS, _PORT_SECONDS, _END_SECONDS = 10.0, 5.0, 5.0
#: Seconds before it is started again when it cannot be: doubling from the first to the second.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 15.0
#: Bytes from which its log is put aside, the last one before it kept.
_LOG_BYTES = 8 * 1024 * 1024


class Daemon:
    """It, kept up. `round` looks once; after the last round `end` takes it down."""

    def __init__(self, config: Config, shared: Shared, stop: threading.Event):
        self._config, self._shared, self._stop = config, shared, stop
        self._lock: int | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._pause, self._due, self._said = _FIRST_PAUSE, 0.0, False
        self._issued: dict[str, str] = {}

    def round(self) -> None:
        """Start it where it is missing, cut off who lost a secret; waits a little."""
        if modules.offered(self._config, self._shared) and self._alone():
            self._look()
        if self._stop.wait(LOOK_SECONDS):
            self.end()

    def end(self) -> None:
        """Take it down, with its connections."""
        if self._process is not None:
            _end(self._process)
            self._process = None
        if self._lock is not None:
            _kill(running(self._shared))
            os.close(self._lock)
            self._lock = None

    def _alone(self) -> bool:
        """Whether this process is the one that keeps it."""
        if self._lock is not None:
            return True
        # Something is to be read before any worker has registered.
        modules.port(self._shared)
        handle = os.open(self._shared.rsync / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            return False
        self._lock = handle
        return True

    def _look(self) -> None:
        if self._process is not None and self._process.poll() is not None:
            log.error("the rsync daemon ended with %s; starting it again", self._process.returncode)
            self._process = None
        if self._process is None and time.monotonic() >= self._due:
            self._start()
        self._cut()
        _shorten(self._shared.rsync / "daemon.log")

    def _start(self) -> None:
        # Whatever was left by a control process that was killed, or by a daemon that was.
        _kill(running(self._shared))
        port = self._port()
        self._process = _spawn(self._shared, port)
        if _greets(self._process, port):
            self._pause, self._said = _FIRST_PAUSE, False
            return
        if not self._said:
            log.error("the rsync daemon does not come up at port %d; see %s", port, self._shared.rsync / "daemon.log")
            self._said = True
        _end(self._process)
        self._process = None
        self._due = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _LONGEST_PAUSE)

    def _port(self) -> int:
        port, until = modules.port(self._shared), time.monotonic() + _PORT_SECONDS
        while not modules.is_free(port):
            if time.monotonic() > until:
                old, port = port, modules.move(self._shared)
                log.error("port %d is taken; the rsync daemon has %d now: start remote workers anew", old, port)
            time.sleep(0.05)
        return port

    def _cut(self) -> None:
        """End the connections of those whose secret is not what it was."""
        now = modules.issued(self._shared)
        gone = [name for name, secret in self._issued.items() if now.get(name) != secret]
        self._issued = now
        if gone and self._process is not None:
            _kill(_connections(self._shared, gone, self._process.pid))


def running(shared: Shared) -> list[psutil.Process]:
    """Processes of this folder's daemon: it, and one or two for each connection."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if _is_ours(shared, process):
                found.append(process)
    return found


def _is_ours(shared: Shared, process: psutil.Process) -> bool:
    line = process.cmdline()
    return line[:2] == ["rsync", "--daemon"] and _named(shared) in line and process.uids().effective == os.geteuid()


def _named(shared: Shared) -> str:
    return f"--config={shared.rsync / 'rsyncd.conf'}"


def _spawn(shared: Shared, port: int) -> subprocess.Popen[bytes]:
    if not (shared.rsync / "rsyncd.conf").exists():
        modules.tell(shared, {})
    kept = {name: value for name, value in os.environ.items() if not name.startswith("AEO_")}
    with (shared.rsync / "daemon.log").open("ab") as output:
        return subprocess.Popen(
            ["rsync", "--daemon", "--no-detach", _named(shared), "--address", modules.HOST, "--port", str(port)],
            cwd=shared.rsync,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**kept, "LC_ALL": "C"},
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )


def _greets(process: subprocess.Popen[bytes], port: int) -> bool:
    until = time.monotonic() + _START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        with suppress(OSError), socket.create_connection((modules.HOST, port), timeout=1) as connection:
            if connection.recv(7) == b"@RSYNCD":
                return True
        time.sleep(0.05)
    return False


def _connections(shared: Shared, names: Iterable[str], daemon: int) -> Iterator[psutil.Process]:
    """The processes of these workers' connections, as the log tells whose they are."""
    wanted = "|".join(map(re.escape, names))
    line = re.compile(
        rf"^\S+ \S+ \[(\d+)\] rsync (?:to|on|allowed access on module) aeo\.(?:in|out)\.(?:{wanted})[/ ]", re.M
    )
    for name in ("daemon.log.1", "daemon.log"):
        with suppress(OSError):
            for found in line.finditer((shared.rsync / name).read_text("utf-8", "replace")):
                pid = int(found[1])
                with suppress(psutil.Error):
                    process = psutil.Process(pid)
                    if pid != daemon and _is_ours(shared, process):
                        yield from process.children(recursive=True)
                        yield process


def _kill(processes: Iterable[psutil.Process]) -> None:
    for process in processes:
        # psutil compares start times, so a reused process id is safe.
        with suppress(psutil.Error):
            process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End it with its connections."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
            return


def _shorten(path: Path) -> None:
    """Put its log aside when it is large; it appends, and need not be told."""
    with suppress(OSError):
        if path.stat().st_size > _LOG_BYTES:
            shutil.copy(path, path.with_name(f"{path.name}.1"))
            with path.open("r+b") as file:
                file.truncate(0)
