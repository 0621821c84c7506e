"""A worker on a machine without a service manager: one process that keeps it running, and can be told to stop.

::

    ~/.config/aeo/env, ~/.config/aeo/worker-<id>.env    its settings, the second's win
    ~/.local/state/aeo/<id>/
    ├── pid      of the keeping process, which holds a lock on it as long as it lives
    └── log      of the worker, started anew at 16 MiB
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path

from aeo import lock
from aeo.config import Config
from aeo.core.errors import Conflict, InputError, Unavailable
from aeo.core.names import check_name
from aeo.executors.process import die_with_parent
from aeo.provision.visit import settings_of

#: Seconds before a worker that ended is started again: doubling, back to the first after a life of a minute.
FIRST_PAUSE, LONGEST_PAUSE, LONG_LIFE = 1.0, 30.0, 60.0
#: Seconds that the keeping process gets to start.
START_SECONDS = 10.0
#: Seconds that a worker gets to end now, beyond those its trials get to stop.
KILL_SECONDS = 10.0
#: What the log says when it has, before the exit code.
ENDED = "the worker ended with"
_LOG_BYTES = 16 * 1024 * 1024


def folder(id: str) -> Path:
    """Where a worker's keeping process has its files."""
    return Path.home() / ".local" / "state" / "aeo" / check_name(id, "worker id", field="ID")


def settings(id: str) -> dict[str, str]:
    """The worker's settings.

    Raises:
        InputError: there are none.
    """
    base = Path.home() / ".config" / "aeo"
    own = base / f"worker-{check_name(id, 'worker id', field='ID')}.env"
    try:
        found = settings_of(own.read_text())
    except OSError as error:
        fix = "Write its settings there, as deploy/env.example lists them (0600)."
        raise InputError(f"{own} cannot be read: {error.strerror}.", field="ID", fix=fix) from None
    with suppress(OSError):
        found = {**settings_of((base / "env").read_text()), **found}
    return {**found, "AEO_WORKER_ID": id}


def is_running(id: str) -> bool:
    """Whether a process keeps this worker."""
    return lock.is_held(folder(id) / "pid")


def start(id: str) -> None:
    """Start keeping a worker.

    Raises:
        InputError: it has no settings.
        Conflict: it is kept already.
        Unavailable: the keeping process does not start.
    """
    settings(id)
    if is_running(id):
        raise Conflict(f"{id} runs already.", field="ID", fix=f"Stop it: aeo background stop {id}")
    place = folder(id)
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    # What the log says from here on is of this start.
    with suppress(OSError):
        (place / "log").replace(place / "log.1")
    with (place / "log").open("ab") as log:
        subprocess.Popen(
            [sys.executable, "-m", "aeo.provision.background", id],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )
    until = time.monotonic() + START_SECONDS
    while not is_running(id):
        if time.monotonic() > until:
            raise Unavailable(f"the process that keeps {id} does not start: see {place / 'log'}")
        time.sleep(0.05)


def stop(id: str, *, now: bool = False, seconds: float = 2 * 3600.0) -> bool:
    """Let a worker finish what it runs and end; ``now``: it gives that back, or is killed. Returns whether it ran.

    Raises:
        Unavailable: it has not ended after so many seconds.
    """
    if not is_running(id):
        return False
    _tell(id)
    until, told, again = time.monotonic() + seconds, time.monotonic(), False
    patience = _stop_seconds(id) + KILL_SECONDS
    while is_running(id):
        if time.monotonic() > until:
            raise Unavailable(f"{id} has not ended within {seconds:.0f} s; stop it with --now, or wait.")
        if now and not again and time.monotonic() - told > 1:
            _tell(id)
            again = True
        if now and time.monotonic() - told > patience:
            # With it goes the worker, see `die_with_parent`.
            _tell(id, signal.SIGKILL)
        time.sleep(0.1)
    return True


def _stop_seconds(id: str) -> float:
    """What running trials get to stop."""
    try:
        return float(settings(id).get("AEO_STOP_SECONDS") or Config.stop_seconds)
    except (InputError, ValueError):
        return Config.stop_seconds


def _tell(id: str, number: signal.Signals = signal.SIGTERM) -> None:
    with suppress(OSError, ValueError):
        os.kill(int((folder(id) / "pid").read_text()), number)


def keep(id: str) -> None:
    """Keep a worker running until SIGTERM, which it is told as well, and waited for.

    Raises:
        Conflict: another process keeps it.
    """
    place = folder(id)
    told = threading.Event()
    kept: list[subprocess.Popen[bytes]] = []

    def tell(*_: object) -> None:
        told.set()
        for process in kept:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)

    with lock.hold(place / "pid", "process", field="ID") as file:
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, tell)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        pause = FIRST_PAUSE
        while not told.is_set():
            started = time.monotonic()
            kept[:] = [_worker(id, place / "log")]
            if told.is_set():
                tell()
            code = kept[0].wait()
            with suppress(ProcessLookupError, PermissionError):
                # What it left.
                os.killpg(kept[0].pid, signal.SIGKILL)
            if told.is_set():
                return
            pause = FIRST_PAUSE if time.monotonic() - started > LONG_LIFE else min(pause * 2, LONGEST_PAUSE)
            print(f"{ENDED} {code}; starting it again in {pause:.0f} s", file=sys.stderr, flush=True)  # noqa: T201
            told.wait(pause)


def _worker(id: str, log: Path) -> subprocess.Popen[bytes]:
    with suppress(OSError):
        if log.stat().st_size > _LOG_BYTES:
            log.replace(log.with_name("log.1"))
    with log.open("ab") as out:
        return subprocess.Popen(
            [str(Path(sys.executable).parent / "aeo"), "worker"],
            env={**os.environ, **settings(id)},
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            cwd=folder(id),
            start_new_session=True,
            preexec_fn=partial(die_with_parent, os.getpid()),
        )


if __name__ == "__main__":
    keep(sys.argv[1])
