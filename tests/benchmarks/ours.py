"""AEO through its own programs: controller and workers are started as a person does, work goes over the API."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import httpx
import psutil
from benchmarks.figures import Moments
from benchmarks.others import scratch
from benchmarks.workloads import Machine
from platforms import Platform
from programs import TOKEN, command_line

#: Seconds that programs get to come up, and an evaluation gets at most where nobody says otherwise.
UP_SECONDS, LIMIT = 120.0, 600.0
#: Seconds between two looks at an evaluation that runs.
LOOK_SECONDS = 0.25
_ENDED = ("succeeded", "failed", "cancelled")
MIB = 1024 * 1024


@dataclass(kw_only=True)
class Pool:
    """A controller with its workers, up and ready."""

    platform: Platform
    http: httpx.Client
    #: How many evaluations it had: each gets a name, and a dataset so that it knows nothing of those before.
    count: int = 0
    #: Evaluation ids in order.
    ids: list[str] = field(default_factory=list)

    def submit(self, config: Mapping[str, Any]) -> tuple[float, str]:
        """Submit; returns when that began, and the id."""
        self.count += 1
        name = f"bench-{self.count}"
        common = {"name": name, "per_worker_concurrency": "all"}
        if config["executor"] == "sleep":
            common["dataset"] = name
        called = time.time()
        response = self.http.post("/api/evaluations", json={"config": {**common, **config}})
        if response.status_code != 201:
            raise RuntimeError(f"submit was answered {response.status_code}: {response.text[:1000]}")
        self.ids.append(response.json()["evaluation"]["id"])
        return called, self.ids[-1]

    def status(self, id: str) -> Mapping[str, Any]:
        """Counts and state."""
        response = self.http.get(f"/api/evaluations/{id}")
        response.raise_for_status()
        found: Mapping[str, Any] = response.json()["status"]
        return found

    def wait(self, id: str, *, limit: float = LIMIT, look: float = LOOK_SECONDS, done: int | None = None) -> Any:
        """Wait until it is closed, or ``done`` trials are; returns its status then.

        Raises:
            RuntimeError: that takes longer than ``limit`` seconds.
        """
        deadline = time.monotonic() + limit
        while time.monotonic() < deadline:
            self.check()
            status = self.status(id)
            if status["state"] in _ENDED or (done is not None and status["done"] >= done):
                return status
            time.sleep(look)
        raise RuntimeError(f"evaluation {status['name']}: {status['done']} of {status['total']} after {limit} s")

    def check(self) -> None:
        """See that no program of ours has ended.

        Raises:
            RuntimeError: one has; the message is the end of what it said.
        """
        for program in self.platform.programs:
            if program.process.poll() is not None:
                raise RuntimeError(f"ended with {program.process.returncode}: {program.output[-2000:]}")

    def trials(self, id: str) -> list[dict[str, Any]]:
        """Every trial's result, from the export."""
        answer = self.http.get(f"/api/evaluations/{id}/trials.jsonl")
        answer.raise_for_status()
        return [json.loads(line) for line in answer.text.splitlines()]

    def moments(self, id: str, called: float) -> Moments:
        """The moments of an evaluation that is closed."""
        status = self.status(id)
        if status["state"] != "succeeded" or status["outcomes"]["scored"] != status["total"]:
            raise RuntimeError(
                f"evaluation {status['name']} {status['state']}: {status['reason']} {status['outcomes']}"
            )
        trials = self.trials(id)
        return Moments(
            called=called,
            spans=tuple((moment(trial["started_at"]), moment(trial["finished_at"])) for trial in trials),
            stored=max(moment(trial["committed_at"]) for trial in trials),
            returned=moment(status["finished_at"]),
        )

    def sleep(self, seconds: Sequence[float] | float, *, trials: int = 0, **config: Any) -> Moments:
        """Run an evaluation of trials that sleep, in this order, to its end."""
        count = trials or len(seconds)  # type: ignore[arg-type]
        body = {"executor": "sleep", "tasks": count, "seconds": seconds, **config}
        called, id = self.submit(body)
        self.wait(id, look=max(LOOK_SECONDS, count / 4000))
        return self.moments(id, called)

    def workers(self) -> dict[str, dict[str, Any]]:
        """The workers as the API tells of them, by id."""
        answer = self.http.get("/api/workers")
        answer.raise_for_status()
        return {worker["info"]["id"]: worker for worker in answer.json()["workers"]}

    def processes(self) -> dict[str, list[psutil.Process]]:
        """Our processes by what they are: control, web, server, worker."""
        controller, *workers = self.platform.programs
        found: dict[str, list[psutil.Process]] = {kind: [] for kind in ("control", "web")}
        for process in controller.family():
            kind = command_line(process)[-1:]
            if kind and kind[0] in found:
                found[kind[0]].append(process)
        server = int((self.platform.shared / "redis" / "pid").read_text())
        return {**found, "server": [psutil.Process(server)], "worker": [program.process for program in workers]}


@contextmanager
def pool(machines: Sequence[Machine], *, environment: Mapping[str, str] | None = None) -> Iterator[Pool]:
    """Start a controller and a worker for each machine; when it is entered, each worker has run something."""
    with scratch() as folder:
        platform = Platform(folder)
        try:
            platform.ready()
            for machine in machines:
                more = {"AEO_SLEEP_SPEED": str(machine.speed), **(environment or {})}
                platform.worker(machine.name, "--slots", str(machine.slots), environment=more)
            with httpx.Client(
                base_url=platform.url, headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False, timeout=300
            ) as http:
                made = Pool(platform=platform, http=http)
                _await(made, {machine.name for machine in machines})
                made.sleep(0.0, trials=2 * sum(machine.slots for machine in machines))
                yield made
            platform.stop()
        except Exception:
            for program in platform.programs[:5]:
                print(f"--- {program.log.name}\n{program.output[-2000:]}", file=sys.stderr)
            raise
        finally:
            platform.destroy()


def _await(made: Pool, names: set[str]) -> None:
    deadline = time.monotonic() + UP_SECONDS + len(names)
    while time.monotonic() < deadline:
        made.check()
        answer = made.http.get("/api/workers").json()["workers"]
        if {item["info"]["id"] for item in answer if item["state"] == "online" and item["heartbeat"]} >= names:
            return
        time.sleep(0.2)
    raise RuntimeError(f"not all of {len(names)} workers came online")


def moment(text: str) -> float:
    """Seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


class Meter:
    """Looks at processes while something runs: peak of resident memory (MiB), and CPU seconds, by kind."""

    def __init__(self, made: Pool, *, every: float = 0.5):
        self._processes = made.processes()
        self._every = every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="meter", daemon=True)
        #: Before anything ran, and the peak.
        self.before = self._memory()
        self.peak = dict(self.before)
        self._cpu = self._spent()
        self._begun = time.monotonic()
        #: Wall seconds and CPU seconds by kind, once it is left.
        self.seconds = 0.0
        self.cpu: dict[str, float] = {}

    def __enter__(self) -> Meter:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._look()
        self.seconds = time.monotonic() - self._begun
        self.cpu = {kind: spent - self._cpu[kind] for kind, spent in self._spent().items()}

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self._look()

    def _look(self) -> None:
        for kind, now in self._memory().items():
            self.peak[kind] = max(self.peak[kind], now)

    def _memory(self) -> dict[str, float]:
        return {kind: sum(map(_resident, found)) / MIB for kind, found in self._processes.items()}

    def _spent(self) -> dict[str, float]:
        return {kind: sum(map(_cpu, found)) for kind, found in self._processes.items()}


def _resident(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return float(process.memory_info().rss)
    return 0.0


def _cpu(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        times = process.cpu_times()
        return float(times.user + times.system)
    return 0.0
