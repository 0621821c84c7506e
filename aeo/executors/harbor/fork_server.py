"""The process that Harbor's drivers are forked from, and these, as we see them (itself: `aeo_harbor.fork_server`).

Where it does not answer it is given up: asked no more, and killed as soon as that takes no driver along.
"""

from __future__ import annotations

import errno
import logging
import os
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import IO

from aeo.executors.harbor import leftovers, program
from aeo.executors.harbor.python import HarborPython

log = logging.getLogger(__name__)

#: Seconds after the last driver until the process they are forked from ends.
_IDLE_SECONDS = 900.0
#: Seconds that it gets beyond its time, before it is given up.
_LAST_SECONDS = 0.5
#: Seconds of one look at what the process says.
_PART_SECONDS = 0.1
#: Seconds that loading Harbor may take.
_LOAD_SECONDS = 120.0
#: Seconds that the process may take to answer once it has forked a driver. It does so in milliseconds; this is for a
#: machine with many at once and little to spare, where to load Harbor again is the last thing that helps. A trial that
#: meets a stuck one is held up for so long.
_ANSWER_SECONDS = 15.0


class Driver:
    """A driver's process. Safe to share between threads."""

    def __init__(self, server: ForkServer, connection: socket.socket, permit: int) -> None:
        #: It lives as long as somebody holds one of its drivers.
        self._server = server
        self._connection = connection
        self._permit = permit
        self._close_permit = weakref.finalize(self, os.close, permit)
        self._lock = threading.Lock()
        self._said = b""
        #: Its process id, and its group's; 0 before it has begun, and where it never did.
        self.pid = 0
        self._identity = ""
        self._code: int | None = None
        self._unwanted = False
        #: When it was first seen to have ended, which nobody had told; 0 where it was not.
        self._ended = 0.0

    def begun(self) -> bool:
        """Wait until it has begun; whether it has. Where it has not, it never does."""
        asked = time.monotonic()
        while not self.pid and self._code is None and self._server.may_answer(asked):
            self._read(_PART_SECONDS, lambda: bool(self.pid))
        # All of this machine may have stood still until now, and it with it.
        self._read(_LAST_SECONDS, lambda: bool(self.pid))
        with self._lock:
            silent = not self.pid and self._code is None
            if silent:
                self._withdraw()
        if not self.pid:
            self._leave_server(time.monotonic() - asked if silent else None)
        return bool(self.pid)

    def _leave_server(self, silent: float | None) -> None:
        if silent is not None:
            self._server.give_up(f"{'answered' if self._server.heard else 'loaded Harbor'} in {silent:.0f} s")
        elif not self._unwanted or not self._server.heard:
            self._server.drop()

    def is_to_be_asked_again(self) -> bool:
        """Whether it was wanted and has not begun, by no fault of Harbor's: that has been loaded before."""
        return not self.pid and not self._unwanted and self._server.heard > 0

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
            if not self.pid and self._code is None:
                self._unwanted = True
                self._withdraw()
            if self.pid and self._connection.fileno() >= 0 and self._is_its_number():
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

    def _withdraw(self) -> None:
        """Take the permit to begin, so that it never does; where it was first, hear of it."""
        try:
            os.eventfd_read(self._permit)
        except BlockingIOError:
            # It has told its pid before.
            self._connection.settimeout(0)
            with suppress(BlockingIOError):
                self._hear(self._connection.recv(4096))
        if not self.pid:
            self._let_go()

    def _let_go(self) -> None:
        self._connection.close()
        self._close_permit()
        self._code = -signal.SIGKILL if self._code is None else self._code
        self._server.let_go(self)

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
                self._look()
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
                self._server.heard = time.monotonic()
            else:
                self._code = int(number)
        if not part and self._code is None:
            # The process it was forked from is gone, and took it along.
            self._server.gone = True
            self._code = -signal.SIGKILL

    def _look(self) -> None:
        """Notice an end that is not told, as what it was forked from is stuck."""
        if not self.pid or not leftovers.has_ended(self.pid):
            self._ended = 0.0
            return
        now = time.monotonic()
        self._ended = self._ended or now
        if self._server.given_up or now > self._ended + _ANSWER_SECONDS:
            self._server.give_up(f"told in {now - self._ended:.0f} s that a driver has ended")
            # What it ended with is not known.
            self._code = -signal.SIGKILL


class ForkServer:
    """The process that has Harbor loaded."""

    def __init__(self, python: HarborPython) -> None:
        #: Where this has changed, another one is needed: much is read when Python starts and Harbor is loaded.
        self.key = key(python)
        #: When a driver of it was last heard of; 0 until it has forked one, which it then does at once.
        self.heard = 0.0
        #: It has ended, or is asked no more.
        self.gone = False
        #: What it has not done in time, where it does not answer.
        self.given_up = ""
        self._lock = threading.Lock()
        self._drivers = weakref.WeakSet[Driver]()
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
        permit = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            ours, theirs = socket.socketpair()
        except OSError:
            os.close(permit)
            raise
        driver = Driver(self, ours, permit)
        with self._lock:
            self._drivers.add(driver)
        with theirs:
            try:
                # It takes hundreds at once; where it takes no more it may be stuck.
                self._control.settimeout(patience := _ANSWER_SECONDS if self.heard else _LOAD_SECONDS)
                socket.send_fds(self._control, [request], [theirs.fileno(), permit, *channels])
            except (BrokenPipeError, ConnectionResetError):
                # It is gone: the connection ends, which the driver's reader sees.
                pass
            except TimeoutError:
                # As above, by our own end of it.
                self.give_up(f"taken what it was asked in {patience:.0f} s")
            except OSError:
                driver.end(0)
                raise
        return driver

    def may_answer(self, asked: float) -> bool:
        """Whether it may still do what it was asked for then."""
        until = max(asked, self.heard) + _ANSWER_SECONDS if self.heard else asked + _LOAD_SECONDS
        return not self.given_up and time.monotonic() < until

    def drop(self) -> None:
        """Ask it no more; where it has forked nothing it may hang, and is killed."""
        self.gone = True
        if not self.heard:
            self._process.kill()

    def give_up(self, missing: str) -> None:
        """Ask it no more, as it has not done what is named; it is killed as soon as that takes no driver along."""
        with self._lock:
            if self.given_up:
                return
            self.gone, self.given_up = True, missing
            follows = "another one is started"
            if self.heard and self._drivers:
                # Also where somebody forgets a driver, and when this process ends.
                weakref.finalize(self, self._process.kill)
                follows += ", and it is killed when the last driver that it has forked has ended"
            else:
                self._process.kill()
                follows += ", and it is killed"
        what = "the process that Harbor's drivers are forked from (pid %d) has not %s; %s"
        log.warning(what, self._process.pid, missing, follows)

    def let_go(self, driver: Driver) -> None:
        """A driver of it has ended, or never begins."""
        with self._lock:
            self._drivers.discard(driver)
            if self.given_up and not self._drivers:
                self._process.kill()

    def complaints(self) -> bytes:
        """The end of what it said itself, and what was said of it."""
        size = os.fstat(self._errors.fileno()).st_size
        said = os.pread(self._errors.fileno(), 4096, max(0, size - 4096))
        return said + (f"\nWhat it is forked from has not {self.given_up}." if self.given_up else "").encode()


def _close(control: socket.socket, errors: IO[bytes]) -> None:
    control.close()
    errors.close()


def key(python: HarborPython) -> tuple[object, ...]:
    """What a process that forks drivers must have been started with."""
    return os.getpid(), python, program.environment()
