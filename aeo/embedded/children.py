"""Child processes: started in order, restarted when they die, stopped in order, never left behind."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path

import psutil

from aeo.config import PREFIX, Config
from aeo.core.errors import InputError

log = logging.getLogger(__name__)

#: Seconds before a child that died is started again: doubling, back to the first after a life of `LONG_LIFE`.
FIRST_PAUSE, LONGEST_PAUSE, LONG_LIFE = 0.5, 30.0, 60.0
#: Exit code of a child whose input is wrong: starting it again would change nothing.
WRONG_INPUT = 2


@dataclass(frozen=True, kw_only=True)
class Part:
    """A process to run: `aeo.processes` with a role and a configuration."""

    name: str
    role: str
    config: Config
    #: Seconds it gets to end after SIGTERM; None: as long as it takes, until it is hurried.
    patience: float | None = 15.0
    #: Where its output goes; None: to ours.
    output: Path | None = None
    #: Further variables it gets.
    environment: Mapping[str, str] = field(default_factory=dict)


@dataclass(kw_only=True)
class _Child:
    part: Part
    process: subprocess.Popen[bytes]
    started: float = field(default_factory=time.monotonic)
    pause: float = FIRST_PAUSE
    #: When to start it again; None while it lives.
    due: float | None = None
    #: It was told to end for good.
    leaving: bool = False


class Crew:
    """The children of this process. Leaving the context stops them."""

    def __init__(self) -> None:
        self._children: list[_Child] = []
        self._lock = threading.Lock()
        self._closing = threading.Event()
        #: Set when a child gave up; `failure` then says which.
        self.failed = threading.Event()
        self.failure = ""
        self._hurry = threading.Event()
        self._watcher = threading.Thread(target=self._watch, name="children", daemon=True)

    def __enter__(self) -> Crew:
        self._watcher.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, part: Part) -> None:
        """Start one more child."""
        with self._lock:
            self._children.append(_Child(part=part, process=_spawn(part)))

    def end(self, name: str) -> None:
        """Tell one child to stop for good, as long as it takes; again, or for one that is gone, nothing."""
        with self._lock:
            for child in self._children:
                if child.part.name == name and not child.leaving:
                    child.leaving = True
                    _terminate(child.process)

    def names(self) -> list[str]:
        """The children that are not gone for good."""
        with self._lock:
            return [child.part.name for child in self._children]

    def check(self) -> None:
        """See that no child has given up.

        Raises:
            InputError: one has, for wrong input; it has said why itself.
        """
        if self.failed.is_set():
            raise InputError(f"the {self.failure} process could not start; see its message.")

    def hurry(self) -> None:
        """Make what is being stopped end now. Safe in a signal handler."""
        self._hurry.set()

    def stop(self) -> None:
        """Stop every child, and what they leave behind: workers first, since they still report to the controller."""
        self._closing.set()
        self._watcher.join()
        for are_workers in (True, False):
            self._stop([child for child in self._children if (child.part.role == "worker") is are_workers])
        self._children.clear()

    def _stop(self, children: Sequence[_Child]) -> None:
        family = [relative for child in children for relative in _descendants(child.process)]
        for child in children:
            # A second signal would end what it still runs.
            if not child.leaving:
                _terminate(child.process)
        for child in children:
            family += self._await(child)
        _reap(family)

    def _await(self, child: _Child) -> list[psutil.Process]:
        """Wait for the end of a child that was told to stop; returns what it left if it had to be killed."""
        left: list[psutil.Process] = []
        deadline = None if child.part.patience is None else time.monotonic() + child.part.patience
        hurried = False
        while child.process.poll() is None:
            if self._hurry.is_set() and not hurried:
                hurried = True
                _terminate(child.process)
                deadline = time.monotonic() + child.part.config.stop_seconds + 5
            if deadline is not None and time.monotonic() > deadline:
                log.warning("%s does not stop; killed", child.part.name)
                left = _descendants(child.process)
                child.process.kill()
            with suppress(subprocess.TimeoutExpired):
                child.process.wait(0.1)
        _kill_group(child.process)
        _close_lifeline(child.process)
        return left

    def _watch(self) -> None:
        while not self._closing.wait(0.2):
            with self._lock:
                for child in list(self._children):
                    self._look(child)

    def _look(self, child: _Child) -> None:
        now, code = time.monotonic(), child.process.poll()
        if code is None or self.failed.is_set():
            return
        if child.due is None:
            _kill_group(child.process)
        if child.leaving:
            _close_lifeline(child.process)
            self._children.remove(child)
            return
        if code == WRONG_INPUT:
            self.failure = child.part.name
            self.failed.set()
        elif child.due is None:
            child.pause = FIRST_PAUSE if now - child.started > LONG_LIFE else child.pause
            child.due = now + child.pause
            log.error("%s ended with %s; starting it again in %.1f s", child.part.name, code, child.pause)
        elif now >= child.due:
            _close_lifeline(child.process)
            child.pause = min(child.pause * 2, LONGEST_PAUSE)
            try:
                child.process, child.started, child.due = _spawn(child.part), now, None
            except OSError as error:
                log.error("%s cannot be started: %s", child.part.name, error)
                child.due = now + child.pause


def _spawn(part: Part) -> subprocess.Popen[bytes]:
    # Secrets go by environment: arguments can be read by everyone on the machine.
    environment = {**os.environ, **variables(part.config), **part.environment}
    output = None if part.output is None else part.output.open("ab")
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "aeo.processes", part.role],
            env=environment,
            # The child sees this pipe close when we die, however we die.
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            # Ctrl-C on the terminal is for us; we stop the children in order.
            start_new_session=True,
        )
    finally:
        if output is not None:
            output.close()


def variables(config: Config) -> dict[str, str]:
    """The configuration as a child reads it."""
    values = {item.name: getattr(config, item.name) for item in fields(Config)}
    return {PREFIX + name.upper(): _text(value) for name, value in values.items()}


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    return "" if value is None else str(value)


def _terminate(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        process.terminate()


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    """End what a dead child left in its process group, and with it what that holds: ports, for one."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _close_lifeline(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        with suppress(OSError):
            process.stdin.close()


def _descendants(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    try:
        found: list[psutil.Process] = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return found


def _reap(family: Sequence[psutil.Process]) -> None:
    """Kill what outlived its parent. psutil compares start times, so a reused process id is safe."""
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@contextmanager
def interruptible() -> Iterator[list[Callable[[], None]]]:
    """The first SIGTERM or SIGINT raises KeyboardInterrupt; later ones call what is in the list."""
    hurry: list[Callable[[], None]] = []
    first = True

    def handle(*_: object) -> None:
        nonlocal first
        if first:
            first = False
            raise KeyboardInterrupt
        for call in hurry:
            call()

    old = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield hurry
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
