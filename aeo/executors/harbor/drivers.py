"""Harbor's drivers: processes in Harbor's Python, forked from one that has Harbor loaded.

That one (see ``aeo_harbor.fork_server``) is started when the first driver is. It ends some time after the last one, or
with this process.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import leftovers, program
from aeo.executors.harbor.python import HarborPython, harbor_python

#: Seconds planning or merging may take.
_CALL_SECONDS = 1800.0
#: Seconds a killed driver gets to be gone.
_KILL_SECONDS = 5.0
#: Seconds after the last driver until the process they are forked from ends.
_IDLE_SECONDS = 900.0
#: Seconds of one look at what the process says.
_PART_SECONDS = 0.1
#: Seconds that loading Harbor may take.
_LOAD_SECONDS = 120.0


class Driver:
    """A driver's process. Safe to share between threads."""

    def __init__(self, server: _Server, connection: socket.socket) -> None:
        #: It lives as long as somebody holds one of its drivers.
        self._server = server
        self._connection = connection
        self._lock = threading.Lock()
        self._said = b""
        #: Its process id, and its group's; 0 before it has begun, and where it never did.
        self.pid = 0
        self._identity = ""
        self._code: int | None = None

    def begun(self) -> bool:
        """Wait until it has begun; whether it ever did."""
        self._read(_LOAD_SECONDS, lambda: bool(self.pid))
        if not self.pid:
            self._server.give_up()
        return bool(self.pid)

    def poll(self) -> int | None:
        """Its exit code, negative for a signal; None while it lives."""
        self._read(0.0)
        return self._code

    def wait(self, seconds: float) -> int:
        """Wait for its end.

        Raises:
            TimeoutError: it lives on.
        """
        self._read(seconds)
        if self._code is None:
            raise TimeoutError(f"the driver {self.pid} has not ended after {seconds} s")
        return self._code

    def signal(self, number: int) -> None:
        """Send it a signal, if it has begun and lives."""
        if self.poll() is None and self.pid:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and its group at once; one that has not begun never does."""
        self.poll()
        with self._lock:
            if not self.pid:
                self._let_go()
            elif self._connection.fileno() >= 0 and self._is_its_number():
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.pid, signal.SIGKILL)

    def _is_its_number(self) -> bool:
        # Nobody else's until the connection is closed, but where what it was forked from was killed.
        return leftovers.identity(self.pid) in (self._identity, f"{self.pid} ")

    def end(self, seconds: float) -> None:
        """Kill it, wait so long for its end, and let go of it."""
        self.kill()
        with suppress(TimeoutError):
            self.wait(seconds)
        with self._lock:
            self._let_go()

    def _let_go(self) -> None:
        self._connection.close()
        self._code = -signal.SIGKILL if self._code is None else self._code

    def complaints(self) -> bytes:
        """The end of what the process said that it was, or was to be, forked from."""
        return self._server.complaints()

    def _read(self, seconds: float, enough: Callable[[], bool] = lambda: False) -> None:
        until = time.monotonic() + seconds
        while True:
            with self._lock:
                if self._code is not None or enough():
                    return
                left = max(0.0, until - time.monotonic())
                # In parts: another thread may want to know, too.
                self._connection.settimeout(min(left, _PART_SECONDS))
                with suppress(BlockingIOError, TimeoutError):
                    self._hear(self._connection.recv(4096))
                    continue
            if not left:
                return

    def _hear(self, part: bytes) -> None:
        self._said += part
        *lines, self._said = self._said.split(b"\n")
        for line in lines:
            what, number = line.split()
            if what == b"pid":
                self.pid = int(number)
                self._identity = leftovers.identity(self.pid)
                self._server.proven = True
            else:
                self._code = int(number)
        if not part and self._code is None:
            # The process it was forked from is gone, and took it along.
            self._server.gone = True
            self._code = -signal.SIGKILL


class _Server:
    """The process that has Harbor loaded."""

    def __init__(self, python: HarborPython) -> None:
        #: Where this has changed, another one is needed: much is read when Python starts and Harbor is loaded.
        self.key = _key(python)
        #: It has forked a driver, and does so at once.
        self.proven = False
        #: It has ended, or serves no more.
        self.gone = False
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - for as long as this lives
        # Its process ends when the socket does.
        weakref.finalize(self, _close, self._control, self._errors)
        with theirs:
            self._process = subprocess.Popen(
                [str(python.path), "-m", "aeo_harbor.fork_server", str(theirs.fileno()), str(_IDLE_SECONDS)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._errors,
                pass_fds=[theirs.fileno()],
                env=program.environment(),
                cwd="/",
                start_new_session=True,
            )
        try:
            threading.Thread(target=self._process.wait, name="harbor", daemon=True).start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, str(error)) from error

    def fork(self, request: bytes, channels: Sequence[int]) -> Driver:
        """Ask for a driver; does not wait for it.

        Raises:
            OSError: it cannot be asked now.
        """
        ours, theirs = socket.socketpair()
        driver = Driver(self, ours)
        with theirs:
            try:
                socket.send_fds(self._control, [request], [theirs.fileno(), *channels])
            except (BrokenPipeError, ConnectionResetError):
                # It is gone: the connection ends, which the driver's reader sees.
                pass
            except OSError:
                driver.end(0)
                raise
        return driver

    def give_up(self) -> None:
        """Ask it no more; where it has forked nothing it may hang, and is killed."""
        self.gone = True
        if not self.proven:
            self._process.kill()

    def complaints(self) -> bytes:
        """The end of what it said itself."""
        size = os.fstat(self._errors.fileno()).st_size
        return os.pread(self._errors.fileno(), 4096, max(0, size - 4096))


def _close(control: socket.socket, errors: IO[bytes]) -> None:
    control.close()
    errors.close()


_lock = threading.Lock()
_server: _Server | None = None


def _key(python: HarborPython) -> tuple[object, ...]:
    return os.getpid(), python, program.environment()


def _serving(python: HarborPython) -> _Server:
    global _server
    with _lock:
        if _server is None or _server.gone or _server.key != _key(python):
            _server = _Server(python)
        return _server


def start(
    verb: str,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: str | Path | None = None,
    env: Mapping[str, str],
) -> Driver:
    """Start a driver with these file descriptors and these variables besides `program.environment`.

    It is the leader of its own group and dies with this process.

    Raises:
        Unavailable: there is no Harbor.
        OSError: no process can be started.
    """
    python = harbor_python()
    request = json.dumps({"verb": verb, "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
    server = _serving(python)
    at_once = server.proven
    driver = server.fork(request, (stdin, stdout, stderr))
    if at_once and not driver.begun():
        # It had just ended, or Harbor is another one by now.
        driver.end(0)
        driver = _serving(python).fork(request, (stdin, stdout, stderr))
    return driver


def call(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a driver one thing; returns its answer (``ok`` or ``faults``).

    Raises:
        Unavailable: there is no Harbor.
        ExecutorFailed: the driver died or failed.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        try:
            driver = start(
                verb,
                stdin=asked.fileno(),
                stdout=answer.fileno(),
                stderr=errors.fileno(),
                # What a metric's script finds around it must not depend on where this process was started.
                cwd="/" if verb == "merge" else None,
                env=program.with_uv(),
            )
            try:
                driver.wait(_CALL_SECONDS)
            finally:
                driver.end(_KILL_SECONDS)
        except OSError as error:
            raise ExecutorFailed(f"Harbor's driver ({verb}) did not end: {error}") from error
        try:
            said: dict[str, Any] = json.loads(_all(answer))
        except ValueError:
            last = program.last_lines(_all(errors) if driver.pid else driver.complaints())
            raise ExecutorFailed(f"Harbor's driver ({verb}) died: {last}") from None
    if "error" in said:
        raise ExecutorFailed(f"Harbor could not {verb}: {said['error']}")
    return said


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
