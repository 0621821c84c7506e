"""The product's own programs as subprocesses, for tests of the whole."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
from waiting import eventually, patient

AEO = str(Path(sys.executable).with_name("aeo"))
TOKEN = "token-of-this-test-0123456789"


#: Below the ports that the kernel gives to connections, which would else take one between its choice and its use; so
#: many for each test process, as another one would. Where it begins differs from run to run, as what was ended lingers.
_FIRST, _EACH, _PROCESSES = 11_000, 2_500, 8
_process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % _PROCESSES
_logs = itertools.count(1)
_offsets = itertools.count(os.getpid() * 97)


def free_port() -> int:
    """A port nobody listens on, given to nobody else."""
    for offset in itertools.islice(_offsets, _EACH):
        port = _FIRST + _process * _EACH + offset % _EACH
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


class Program:
    """A running ``aeo`` and its output; ``before`` is a command that becomes it, as ``ip netns exec`` does."""

    def __init__(
        self,
        arguments: Sequence[str],
        folder: Path,
        environment: Mapping[str, str] | None = None,
        *,
        before: Sequence[str] = (),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        self.log = folder / f"{arguments[0]}.{next(_logs)}.log"
        clean = {key: value for key, value in os.environ.items() if not key.startswith("AEO_")}
        kept = {key: value for key, value in os.environ.items() if key == "AEO_HARBOR_PYTHON"}
        with self.log.open("wb") as log:
            self.process = psutil.Popen(
                [*before, AEO, *arguments],
                env={**clean, **kept, "AEO_AUTH_TOKEN": TOKEN, **(environment or {})},
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    @property
    def output(self) -> str:
        """What it said so far."""
        return self.log.read_text("utf-8", "replace")

    def family(self) -> list[psutil.Process]:
        """Its descendants."""
        with suppress(psutil.NoSuchProcess):
            found: list[psutil.Process] = self.process.children(recursive=True)
            return found
        return []

    def ends(self, timeout: float = 30.0) -> int:
        """Wait for its end; returns the exit code."""
        timeout = patient(timeout)
        try:
            code: int = self.process.wait(timeout)
        except (subprocess.TimeoutExpired, psutil.TimeoutExpired):
            raise AssertionError(f"still runs after {timeout} s:\n{self.output}") from None
        return code

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM, and wait for its end."""
        self.process.send_signal(signal.SIGTERM)
        return self.ends(timeout)

    def destroy(self) -> None:
        """End it and all it started, whatever state they are in."""
        family = self.family()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in family:
            with suppress(psutil.NoSuchProcess):
                process.kill()


class Api:
    """A controller as a person with the token sees it."""

    def __init__(self, url: str):
        self.url = url
        self._client = httpx.Client(
            base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=60
        )

    def get(self, path: str) -> Any:
        """The answer's JSON."""
        response = self._client.get(path)
        response.raise_for_status()
        return response.json()

    def submit(self, config: Mapping[str, Any]) -> str:
        """Submit an evaluation; returns its id."""
        response = self._client.post("/api/evaluations", json={"config": dict(config)})
        assert response.status_code == 201, response.text
        id: str = response.json()["evaluation"]["id"]
        return id

    def cancel(self, id: str) -> None:
        """Cancel an evaluation."""
        self._client.post(f"/api/evaluations/{id}/cancel").raise_for_status()

    def status(self, id: str) -> Any:
        """The evaluation's counts and state."""
        return self.get(f"/api/evaluations/{id}")["status"]

    def healthy(self) -> bool:
        """Whether it answers that it can work."""
        try:
            return self._client.get("/api/health").is_success
        except httpx.HTTPError:
            return False

    def worker(self, id: str) -> Any:
        """A worker as the list shows it; None if it is not there."""
        return next((item for item in self.get("/api/workers")["workers"] if item["info"]["id"] == id), None)

    def await_worker(self, id: str, state: str = "online", timeout: float = 30.0) -> Any:
        """Wait until a worker is in this state."""

        def look() -> Any:
            found = self.worker(id)
            assert found is not None
            assert found["state"] == state
            return found

        return eventually(look, timeout, pause=0.1)

    def close(self) -> None:
        """Let go of the connection, which would hold up the web process's end."""
        self._client.close()


def command_line(process: psutil.Process) -> list[str]:
    """What a process was started with; nothing once it has ended."""
    with suppress(psutil.NoSuchProcess):
        found: list[str] = process.cmdline()
        return found
    return []


def all_gone(family: Sequence[psutil.Process]) -> bool:
    """Whether none of these processes runs any more."""
    return not [process for process in family if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
