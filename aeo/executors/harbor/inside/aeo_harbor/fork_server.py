"""Has Harbor loaded, and forks a driver for each that asks: each would else take the time and the memory to load it.

::

    python -m aeo_harbor.fork_server FD SECONDS

``FD`` is a socket of whole messages. Each is JSON (``verb``, ``cwd``, and ``env``: what the driver has besides the
variables that this server was started with) and carries five file descriptors: a connection, a permit, and what becomes
the driver's standard input, output and error. On the connection the asker is told ``pid N``, and ``exit CODE`` when the
driver has ended, negative for a signal. Until the asker closes the connection the pid is not used again; a driver that
lives then is told to stop. A connection that ends without a pid has no driver: ask another server.

The permit is an eventfd of one. A driver takes it after it has told its pid and before it does anything, or ends: an
asker who waits no more takes it first, and then knows that no driver begins, however late this server comes to it.

Where the asker is gone (the socket ends) drivers are told to stop in order, and are killed when they do not. Where this
server is killed they are killed with it. It ends when nobody has asked for ``SECONDS``.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aeo_harbor import driver

#: What drivers would load; what cannot be loaded is theirs to tell.
_LOADED = (
    *("aeo_harbor.running", "aeo_harbor.planning", "aeo_harbor.merging", "aeo_harbor.images", "aeo_harbor.datasets"),
    "harbor.trial.trial",
)
#: Seconds that drivers get to end in order.
_LAST_SECONDS = 70.0
_PR_SET_PDEATHSIG, _PR_SET_NAME = 1, 15
#: File descriptors of a message, and bytes at most.
_FDS, _BYTES = 5, 1024 * 1024


@dataclass(kw_only=True, eq=False)
class _Child:
    connection: socket.socket
    pid: int = 0
    told: bool = False


class _Server:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._children: list[_Child] = []
        self._identity: tuple[int, ...] = _identity()
        self._selector = selectors.DefaultSelector()
        self._wakeup, self._wakes = socket.socketpair()
        for end in (self._wakeup, self._wakes):
            end.setblocking(False)
        for end in (control, self._wakeup):
            self._selector.register(end, selectors.EVENT_READ)

    def serve(self, seconds: float) -> None:
        # A handler is needed for the number of a signal to be written there.
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)
        signal.set_wakeup_fd(self._wakes.fileno(), warn_on_full_buffer=False)
        # Whoever ends a whole group of processes in order means the drivers: when the asker has ended, so does this.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        while True:
            ready = self._selector.select(None if self._children else seconds)
            if not ready and not self._children:
                return
            for key, _events in ready:
                if key.fileobj is self._control:
                    request, fds, _flags, _address = socket.recv_fds(self._control, _BYTES, _FDS)
                    if not request:
                        return
                    self.take(json.loads(request), fds)
                elif key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                else:
                    self._hang_up(key.data)
            self._look()

    def take(self, request: dict, fds: list[int]) -> None:
        """Fork a driver, unless Harbor was installed anew: parts of two versions do not go together."""
        child, others = _Child(connection=socket.socket(fileno=fds[0])), fds[1:]
        try:
            if self._identity != _identity():
                child.connection.close()
            elif self._fork(child, request, others):
                self._children.append(child)
        finally:
            for fd in others:
                os.close(fd)

    def _fork(self, child: _Child, request: dict, others: list[int]) -> bool:
        server = os.getpid()
        # Whoever is told to stop before it can hear that is so later.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        try:
            self._selector.register(child.connection, selectors.EVENT_READ, child)
            child.pid = os.fork()
            if child.pid == 0:
                self._become_driver(request, child.connection, others, server)
            _lead_group(child.pid)
            return True
        except OSError as error:
            with suppress(KeyError):
                self._selector.unregister(child.connection)
            with suppress(OSError):
                print(f"no driver can be started: {error}", file=sys.stderr, flush=True)
            _say(child.connection, "exit 1\n")
            child.connection.close()
            return False
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _become_driver(self, request: dict, connection: socket.socket, others: list[int], server: int) -> None:
        (permit, *channels), code = others, 1
        try:
            _lead_group(0)
            _die_with(server)
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM):
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            self._selector.close()
            wanted = _say(connection, f"pid {os.getpid()}\n") and _taken(permit)
            siblings = (child.connection for child in self._children)
            for end in (self._control, self._wakeup, self._wakes, connection, *siblings):
                end.close()
            for place, fd in enumerate(channels):
                os.dup2(fd, place)
                os.close(fd)
            if wanted:
                _obey(request)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _look(self) -> None:
        """Tell of each driver that has ended."""
        for child in list(self._children):
            if child.told:
                continue
            ended = os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is not None:
                code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
                child.told = True
                _say(child.connection, f"exit {code}\n")
                if child.connection.fileno() < 0:
                    self._forget(child)

    def _hang_up(self, child: _Child) -> None:
        """The asker has closed the connection: after the driver's end, as a rule."""
        self._selector.unregister(child.connection)
        child.connection.close()
        if child.told:
            self._forget(child)
        else:
            # In order, as when the asker was killed: then this is seen before the other socket's end.
            os.kill(child.pid, signal.SIGTERM)

    def _forget(self, child: _Child) -> None:
        os.waitpid(child.pid, 0)
        self._children.remove(child)

    def end(self) -> None:
        """Let what runs end in order, for a time."""
        for child in self._children:
            if not child.told:
                os.kill(child.pid, signal.SIGTERM)
        until = time.monotonic() + _LAST_SECONDS
        while self._children and time.monotonic() < until:
            for child in list(self._children):
                if os.waitpid(child.pid, os.WNOHANG)[0]:
                    self._children.remove(child)
            time.sleep(0.02)


def _lead_group(pid: int) -> None:
    """Give a driver a group of its own: by itself and from here, so that it has it whoever comes first."""
    with suppress(OSError):
        os.setpgid(pid, pid)


def _identity() -> tuple[int, ...]:
    """Which installation of Harbor there is; a folder's number alone may be given to the next one."""
    with suppress(ImportError, OSError, TypeError):
        state = Path(importlib.import_module("harbor").__file__).stat()
        return state.st_dev, state.st_ino, state.st_mtime_ns
    return ()


def _say(connection: socket.socket, line: str) -> bool:
    """Tell the asker, if it is there; whether it is."""
    with suppress(OSError):
        connection.sendall(line.encode())
        return True
    return False


def _taken(permit: int) -> bool:
    """Take the permit; whether it was there to be taken."""
    try:
        return os.eventfd_read(permit) > 0
    except BlockingIOError:
        return False
    finally:
        os.close(permit)


def _obey(request: dict) -> None:
    """Be the driver that is asked for."""
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    if not sys.flags.safe_path:
        # As `python -m` has it where it is started.
        sys.path[0] = request["cwd"]
    ctypes.CDLL(None).prctl(_PR_SET_NAME, f"harbor-{request['verb']}".encode(), 0, 0, 0)
    driver.obey(request["verb"])


def _die_with(parent: int) -> None:
    """Be killed when the parent is."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _main() -> None:
    control, seconds = socket.socket(fileno=int(sys.argv[1])), float(sys.argv[2])
    control.set_inheritable(False)
    for name in _LOADED:
        with suppress(Exception):
            importlib.import_module(name)
    sys.stdout.flush()
    # What is there now is never looked at again, and stays shared with all drivers.
    gc.collect()
    gc.freeze()
    server = _Server(control)
    server.serve(seconds)
    server.end()


if __name__ == "__main__":
    _main()
