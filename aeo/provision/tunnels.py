"""The tunnels to machines that were provisioned through one: kept up by the control process as long as it runs."""

from __future__ import annotations

import logging
import subprocess
import threading
from contextlib import suppress

from aeo import tunnel
from aeo.core.errors import AeoError, InputError
from aeo.provision import record
from aeo.provision.record import Line, Machine
from aeo.rsyncd import modules
from aeo.site import Site

log = logging.getLogger(__name__)

#: Seconds between two looks at which tunnels there shall be, and before one that cannot be made is tried again.
LOOK_SECONDS, AGAIN_SECONDS = 0.5, 10.0


class _Over(Exception):
    """It is not wanted any more."""


class Tunnels:
    """Those that are kept. `round` looks once; after the last round `end` takes them down."""

    def __init__(self, site: Site, stop: threading.Event):
        self._site, self._stop = site, stop
        self._kept: dict[str, _Kept] = {}

    def round(self) -> None:
        """Start what is wanted and missing, end what is not wanted; waits a little."""
        wanted = {item.id: _way(item) for item in record.machines(self._site.shared) if item.tunnel}
        files = modules.way(self._site.config, self._site.shared)
        for id, one in list(self._kept.items()):
            if wanted.get(id) != one.machine or one.files != files:
                del self._kept[id]
                one.end()
        for id, machine in wanted.items():
            if id not in self._kept:
                self._kept[id] = _Kept(self._site, machine, files)
        if self._stop.wait(LOOK_SECONDS):
            self.end()

    def end(self) -> None:
        """Take all down."""
        for one in self._kept.values():
            one.over.set()
        for one in self._kept.values():
            one.end()
        self._kept.clear()


def _way(machine: Machine) -> Machine:
    """What a tunnel depends on, and nothing else."""
    return Machine(
        id=machine.id, target=machine.target, ssh_port=machine.ssh_port, tunnel_port=machine.tunnel_port, tunnel=True
    )


class _Kept:
    def __init__(self, site: Site, machine: Machine, files: str):
        self.machine, self.files, self.over = machine, files, threading.Event()
        self._site = site
        self._ssh: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._run, name=f"tunnel {machine.id}", daemon=True)
        self._thread.start()

    def end(self) -> None:
        self.over.set()
        process = self._ssh
        if process is not None:
            with suppress(ProcessLookupError):
                process.terminate()
        self._thread.join(10)

    def _run(self) -> None:
        while not self.over.is_set():
            try:
                self._keep()
            except _Over:
                break
            except InputError as error:
                problem = error.problems[0]
                fix = problem.fix.replace("--port", "--tunnel-port") or "See `aeo tunnel --help`."
                log.error("the tunnel to %s cannot be made: %s", self.machine.target, problem.message)
                self._say(Line(up=False, why=problem.message, fix=fix))
            except (AeoError, OSError) as error:
                log.error("the tunnel to %s cannot be made: %s", self.machine.target, error)
                self._say(Line(up=False, why=str(error)))
            self.over.wait(AGAIN_SECONDS)
        self._say(None)

    def _keep(self) -> None:
        config = self._site.config
        made = tunnel.plan(
            self.machine.target,
            broker_url=config.worker_broker_url or config.broker_url,
            transfer_url=self.files,
            controller=(self.machine.tunnel_port, config.port),
            ssh_port=self.machine.ssh_port,
        )
        tunnel.keep(
            made,
            lambda: self._say(Line(up=True)),
            sleep=self._pause,
            is_down=self._is_down,
            begun=self._begun,
        )

    def _begun(self, process: subprocess.Popen[bytes]) -> None:
        self._ssh = process
        if self.over.is_set():
            raise _Over

    def _is_down(self, why: str) -> None:
        if self.over.is_set():
            raise _Over
        self._say(Line(up=False, why=why))

    def _pause(self, seconds: float) -> None:
        if self.over.wait(seconds):
            raise _Over

    def _say(self, now: Line | None) -> None:
        record.set_line(self._site.shared, self.machine.id, now)
