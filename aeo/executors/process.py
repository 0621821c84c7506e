"""One child process in a group of its own, with a deadline, a way to stop it, and its output kept within bounds.

Nothing it starts outlives it: the group is killed when it ends, however it ends; the kernel kills it when the thread
that runs it dies; what left the group is found by a mark in its environment (`kill_marked`).
"""

from __future__ import annotations

import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aeo.core.errors import ExecutorFailed

#: Seconds that the kernel gets to end a group after SIGKILL.
KILL_SECONDS = 5.0
#: Seconds that output is still read when the child is gone but something holds its pipe.
DRAIN_SECONDS = 1.0
#: Bytes kept of the end of an output that is cut.
_TAIL = 64 * 1024
_PR_SET_PDEATHSIG = 1
# Looked up here: between fork and exec nothing may be imported or allocated that another thread may hold.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


@dataclass(frozen=True, kw_only=True)
class Exit:
    """How a child ended."""

    #: Exit code; minus the signal's number if one ended it.
    code: int
    #: It was ended because its time was over.
    timed_out: bool
    #: Why it was stopped; empty if it was not.
    stopped: str
    #: Bytes of its output that were not kept.
    dropped: int


def die_with_parent(parent: int) -> None:
    """Between fork and exec: have the kernel kill this process when the thread that made it ends.

    Also undoes signal settings that a worker's process may have and a program does not expect.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    if _PRCTL is not None:
        _PRCTL(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the line above
            os._exit(1)


class Child:
    """A running child process. Everything but `stop` is for the thread that made it."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: Path,
        stderr: Path,
        limit: int,
        grace_seconds: float,
    ):
        """Start it; ``limit`` bytes of each output are kept, ``grace_seconds`` pass between SIGTERM and SIGKILL.

        Raises:
            OSError: it could not be started.
        """
        parent = os.getpid()
        self._grace = grace_seconds
        self._stopped = ""
        self._lock = threading.Lock()
        self._pidfd: int | None = None
        self._sinks = (_Sink(stdout, limit), _Sink(stderr, limit))
        self._wake: tuple[int, int] | None = _pipe()
        try:
            self._process = subprocess.Popen(
                list(argv),
                cwd=cwd,
                env=dict(env),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                start_new_session=True,
                preexec_fn=lambda: die_with_parent(parent),
            )
        except BaseException:
            self._release()
            raise

    def stop(self, reason: str, grace_seconds: float | None = None) -> None:
        """From another thread: have it ended at once, in another grace if given. Does nothing when it has ended."""
        with self._lock:
            if self._wake is not None and not self._stopped:
                self._stopped = reason or "stopped"
                self._grace = self._grace if grace_seconds is None else grace_seconds
                with suppress(BlockingIOError):
                    os.write(self._wake[1], b"!")

    def wait(self, seconds: float) -> Exit:
        """Wait until it has ended, and end it after ``seconds``; what is left of its group by then is killed.

        Raises:
            ExecutorFailed: the group outlived SIGKILL, or its output could not be written.
        """
        try:
            timed_out = self._follow(seconds)
        except OSError as error:
            raise ExecutorFailed(f"The output of the command could not be kept: {error.strerror}.") from error
        finally:
            self._close()
        dropped = sum(sink.dropped for sink in self._sinks)
        return Exit(code=self._process.returncode, timed_out=timed_out, stopped=self._stopped, dropped=dropped)

    def _follow(self, seconds: float) -> bool:
        """Read the output until the child has ended; returns whether its time was over."""
        deadline, kill_at, timed_out = time.monotonic() + seconds, float("inf"), False
        with selectors.DefaultSelector() as selector:
            self._register(selector)
            while not self._ended():
                now = time.monotonic()
                if kill_at == float("inf") and (self._stopped or now >= deadline):
                    timed_out = not self._stopped
                    kill_at = now + self._grace
                    signal_group(self._process.pid, signal.SIGTERM)
                elif now >= kill_at:
                    signal_group(self._process.pid, signal.SIGKILL)
                    if now >= kill_at + KILL_SECONDS:
                        raise ExecutorFailed("The command could not be killed.")
                ends = [deadline] if kill_at == float("inf") else [kill_at if now < kill_at else now + 0.05]
                self._read(selector, max(0.0, min(ends) - now))
            # Not reaped yet, so its number still names its group and no other.
            signal_group(self._process.pid, signal.SIGKILL)
            self._unregister(selector)
            end = time.monotonic() + DRAIN_SECONDS
            while selector.get_map() and time.monotonic() < end:
                self._read(selector, 0.05)
        return timed_out

    def _register(self, selector: selectors.BaseSelector) -> None:
        for pipe, sink in zip((self._process.stdout, self._process.stderr), self._sinks, strict=True):
            if pipe is not None:
                selector.register(pipe, selectors.EVENT_READ, sink)
        if self._wake is not None:
            selector.register(self._wake[0], selectors.EVENT_READ)
        self._pidfd = _pidfd(self._process.pid)
        if self._pidfd is not None:
            selector.register(self._pidfd, selectors.EVENT_READ)

    def _unregister(self, selector: selectors.BaseSelector) -> None:
        """Leave only the outputs."""
        for key in list(selector.get_map().values()):
            if key.data is None:
                selector.unregister(key.fileobj)

    def _read(self, selector: selectors.BaseSelector, seconds: float) -> None:
        tick = seconds if self._pidfd is not None else min(seconds, 0.05)
        for key, _ in selector.select(min(tick, 60.0)):
            if isinstance(key.data, _Sink):
                chunk = os.read(key.fd, 65536)
                if chunk:
                    key.data.write(chunk)
                else:
                    selector.unregister(key.fileobj)
            elif self._wake is not None and key.fd == self._wake[0]:
                os.read(key.fd, 64)

    def _ended(self) -> bool:
        return os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def _close(self) -> None:
        signal_group(self._process.pid, signal.SIGKILL)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_SECONDS)
        for pipe in (self._process.stdout, self._process.stderr):
            if pipe is not None:
                pipe.close()
        self._release()

    def _release(self) -> None:
        with self._lock:
            ends, self._wake = self._wake or (), None
        for end in (*ends, *([] if self._pidfd is None else [self._pidfd])):
            os.close(end)
        for sink in self._sinks:
            with suppress(OSError):
                sink.close()


class _Sink:
    """A file that keeps the first bytes written to it, and the last."""

    def __init__(self, path: Path, limit: int):
        self._file = path.open("wb", buffering=0)
        self._room = limit
        self._tail = b""
        self.dropped = 0

    def write(self, chunk: bytes) -> None:
        kept, rest = chunk[: self._room], chunk[self._room :]
        self._room -= len(kept)
        if kept:
            self._file.write(kept)
        if rest:
            tail = self._tail + rest
            self.dropped += max(0, len(tail) - _TAIL)
            self._tail = tail[-_TAIL:]

    def close(self) -> None:
        with self._file:
            if self.dropped:
                self._file.write(f"\n[... {self.dropped} bytes are left out here ...]\n".encode())
            self._file.write(self._tail)


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to a process group; nothing happens when it is gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def kill_marked(accepts: Callable[[str], bool], variable: str) -> list[int]:
    """Kill every process whose environment was started with ``variable`` set to a value that ``accepts``.

    Finds those that left their process group. Returns their numbers; empty where there is no /proc.
    """
    killed: list[int] = []
    for _ in range(3):  # one may fork while it is looked for
        found = [pid for pid in _marked(accepts, f"{variable}=".encode()) if pid != os.getpid()]
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        killed += found
        if not found:
            break
    return sorted(set(killed))


def _marked(accepts: Callable[[str], bool], prefix: bytes) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            variables = entry.read_bytes().split(b"\0")
        except OSError:
            continue
        if any(item.startswith(prefix) and accepts(item[len(prefix) :].decode(errors="replace")) for item in variables):
            found.append(int(entry.parent.name))
    return found


def _pidfd(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends; None where the system has none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return None


def _pipe() -> tuple[int, int]:
    ends = os.pipe()
    for end in ends:
        os.set_blocking(end, False)
    return ends
