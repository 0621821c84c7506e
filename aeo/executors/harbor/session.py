"""The worker's side of a batch: one driver process that stays up between trials.

::

    <workdir>/harbor/
    ├── owner           process that opened the session; while it lives nobody else cleans up here
    ├── processes/      what must not outlive the session, one file each (see the driver's `traces`)
    ├── trials/         the trial that runs, if it may start containers, with its task's folder
    ├── run/ roots/ files/   scratch of the trial that runs
    └── driver.log      what the driver and Harbor's console said
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import IO, Any

from aeo.core.errors import AeoError, ExecutorFailed
from aeo.core.model import Evaluation, PlannedTrial
from aeo.executors import TrialContext
from aeo.executors.harbor import drivers, leftovers, program, trial_files
from aeo.executors.harbor.assets import HarborAssets, env_file_place
from aeo.executors.harbor.fork_server import Driver

log = logging.getLogger(__name__)

#: Seconds the driver gets to end once it has nothing to do.
_CLOSE_SECONDS = 5.0
#: Seconds a killed driver's processes get to be gone.
_KILL_SECONDS = 5.0


class HarborSession:
    """See `aeo.executors.Session`. The driver lives no longer than this process."""

    def __init__(self, evaluation: Evaluation, workdir: Path) -> None:
        self._header = evaluation.plan.header
        self._scratch = leftovers.folder(workdir)
        self._scratch.mkdir(parents=True, exist_ok=True, mode=0o700)
        leftovers.own(self._scratch)
        self._driver: Driver | None = None
        self._requests: IO[bytes] | None = None
        self._events: IO[bytes] | None = None
        # Held while `stop` looks at or signals the trial that runs, so that it never reaches the next one.
        self._lock = threading.Lock()
        self._running = ""
        self._stopped = ""
        self._killer: threading.Timer | None = None
        self._ready = False

    def warm(self) -> None:
        """Begin to start the driver; what stands against it is told by `run`."""
        with suppress(AeoError, OSError):
            self._start()

    def run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        """See `aeo.executors.Session.run`."""
        with self._lock:
            self._running, self._stopped = trial.name, ""
        try:
            driver = self._started()
            with self._lock:
                # Told to stop while the driver was being started: nobody was there to be signalled.
                if self._stopped:
                    raise ExecutorFailed(f"Stopped before it began: {self._stopped}.")
            if self._header["config"]["environment"].get("type"):
                leftovers.note_trial(self._scratch, trial.name, context.content_dir)
            self._send(driver, self._request(trial, context))
            self._follow(driver, on_event)
            if not (context.trial_dir / "result.json").is_file():
                raise ExecutorFailed("Harbor left no result.")
            leftovers.forget_trial(self._scratch, trial.name)
        except ExecutorFailed:
            self._salvage(trial, context)
            raise
        finally:
            with self._lock:
                self._running = ""
                if self._killer is not None:
                    self._killer.cancel()
                    self._killer = None

    def _request(self, trial: PlannedTrial, context: TrialContext) -> dict[str, Any]:
        config = trial_files.config(self._header, trial, context.final_dir)
        places = {path: str(place) for path, place in context.assets.items()}
        return {
            "verb": "run",
            "config": config,
            "local": HarborAssets().placed(config, places),
            "env_file": env_file_place(self._header.get("env_file", ""), places),
            "lock": trial_files.lock(self._header, trial),
            "info": trial_files.agent_info(self._header, trial),
            "task": trial.task,
            "checksum": trial.payload["checksum"],
            "content": str(context.content_dir),
            "trial_dir": str(context.trial_dir),
            "final_dir": context.final_dir,
            "started_at": datetime.now(timezone.utc).isoformat(),
            # By the pipe: what a process is started with can be looked at from outside, and stays when it changes.
            "environment": dict(context.environment),
        }

    def _started(self) -> Driver:
        driver = self._driver if self._driver is not None and self._driver.poll() is None else self._start()
        if not self._ready:
            driver = drivers.begun(driver, self._start)
            if not driver.pid:
                raise ExecutorFailed(self._died(driver))
            leftovers.note_process(self._scratch, driver.pid)
            self._send(driver, {"verb": "header", "header": self._header})
            self._follow(driver, lambda _phase: None)
            self._ready = True
        return driver

    def _start(self) -> Driver:
        self._bury()
        requests, self._requests = _pipe("wb")
        events, self._events = _pipe("rb")
        with requests, events, (self._scratch / "driver.log").open("ab") as log:
            driver = drivers.start(
                "run",
                stdin=requests.fileno(),
                stdout=events.fileno(),
                stderr=log.fileno(),
                cwd=self._scratch,
                env={"AEO_HARBOR_SCRATCH": str(self._scratch)},
            )
        with self._lock:
            self._driver = driver
        return driver

    def _send(self, driver: Driver, message: Mapping[str, Any]) -> None:
        requests = _opened(self._requests)
        try:
            requests.write(json.dumps(message).encode() + b"\n")
            requests.flush()
        except OSError:
            raise ExecutorFailed(self._died(driver)) from None

    def _follow(self, driver: Driver, on_event: Callable[[str], None]) -> None:
        """Read events until the one that ends what was asked for."""
        for line in _opened(self._events):
            event = json.loads(line)
            if event["event"] == "phase":
                on_event(event["phase"])
            elif event["event"] == "failed":
                raise ExecutorFailed(f"Harbor could not run the trial: {event['message']}")
            else:
                return
        raise ExecutorFailed(self._died(driver))

    def _died(self, driver: Driver) -> str:
        self._bury()
        with self._lock:
            stopped = self._stopped
        if stopped:
            return f"The trial did not stop in time ({stopped}) and was killed."
        code = driver.poll()
        how = f"was killed by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        with suppress(OSError):
            log = (self._scratch / "driver.log").read_bytes()[-4096:] if driver.pid else driver.complaints()
            said = program.last_lines(log)
            return f"Harbor's driver {how}: {said}"
        return f"Harbor's driver {how}."

    def _salvage(self, trial: PlannedTrial, context: TrialContext) -> None:
        """Keep what a trial without a result left, for whoever wants to know why."""
        ran = self._scratch / "run" / trial.name
        for entry in ran.iterdir() if ran.is_dir() else ():
            if entry.name != "result.json":
                with suppress(OSError, shutil.Error):
                    shutil.move(str(entry), str(context.trial_dir / entry.name))
        (context.trial_dir / "result.json").unlink(missing_ok=True)

    def growing(self, trial: PlannedTrial) -> Sequence[Path]:
        """Where Harbor writes while the trial runs, and where the host environment keeps its ``/logs`` until then."""
        return (self._scratch / "run" / trial.name, *self._scratch.glob("roots/*/private/logs"))

    def stop(self, reason: str, grace_seconds: float = 10.0) -> None:
        """See `aeo.executors.Session.stop`. The driver gets the signal; it ends what it started, in Harbor's order."""
        with self._lock:
            driver = self._driver
            if not self._running or self._stopped:
                return
            self._stopped = reason or "stopped"
            self._killer = threading.Timer(grace_seconds, self._kill, (self._running,))
            self._killer.daemon = True
            self._killer.start()
            if driver is not None:
                driver.signal(signal.SIGTERM)

    def _kill(self, trial: str) -> None:
        with self._lock:
            if self._running == trial and self._driver is not None:
                self._driver.kill()

    def _bury(self) -> None:
        """End a driver and all it started."""
        with self._lock:
            driver, self._driver, self._ready = self._driver, None, False
        if driver is not None:
            driver.end(_KILL_SECONDS)
        self._close_pipes()
        if driver is not None:
            for what in leftovers.clean(self._scratch):
                log.warning("of a session that has ended may live on: %s", what)

    def _close_pipes(self) -> None:
        for pipe in (self._requests, self._events):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()

    def close(self) -> None:
        """See `aeo.executors.Session.close`."""
        with suppress(Exception):
            driver = self._driver
            if driver is not None and self._ready:
                with suppress(OSError):
                    _opened(self._requests).close()
                with suppress(TimeoutError):
                    driver.wait(_CLOSE_SECONDS)
            self._bury()
        leftovers.disown(self._scratch)


def _pipe(mode: str) -> tuple[IO[bytes], IO[bytes]]:
    """A pipe: the driver's end, and ours, which is opened for ``mode``."""
    reading, writing = (os.fdopen(end, "rb" if number == 0 else "wb") for number, end in enumerate(os.pipe()))
    return (writing, reading) if mode == "rb" else (reading, writing)


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    if stream is None:
        raise ExecutorFailed("The driver has no pipes.")
    return stream
