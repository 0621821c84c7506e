"""A platform of real programs to break, and an evaluation watched on it from the disk alone."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import psutil
from programs import TOKEN, Api, Program, command_line, free_port
from waiting import eventually

from aeo.store.connection import Db, connect

#: Seconds. Small, so that repairs can be waited for; long enough for a machine that does much else besides.
LEASE, GRACE, POLL, STOP = 3.0, 4.0, 0.5, 1.0
#: Seconds a test waits for what happens within seconds on an idle machine.
PATIENCE = 90.0
#: Seconds that a machine which does much else may add to what the product promises; what is broken adds more.
CROWDED = 15.0
Event = Mapping[str, Any]


class Stage:
    """A controller with its embedded server, and workers, each a program of its own."""

    def __init__(
        self,
        folder: Path,
        *,
        shared: Path | None = None,
        jobs: Path | None = None,
        lease: float = LEASE,
        grace: float = GRACE,
    ):
        self.folder = folder
        self.lease, self.grace = lease, grace
        self.shared = shared or folder / "shared"
        self.jobs = jobs or self.shared / "jobs"
        self.port = free_port()
        self.api = Api(f"http://127.0.0.1:{self.port}")
        self.programs: list[Program] = []
        self.workers: dict[str, Program] = {}
        self._options: dict[str, tuple[tuple[str, ...], Mapping[str, str]]] = {}
        #: When which worker was killed, by this machine's clock.
        self.deaths: list[tuple[str, float]] = []
        self._named = 0
        self.controller = self.start_controller()

    def start_controller(self, token: str = TOKEN, *more: str) -> Program:
        """Start a controller, which need not be the first one here."""
        arguments = ["controller", "--port", str(self.port), "--shared-root", str(self.shared)]
        times = ["--lease-seconds", str(self.lease), "--grace-seconds", str(self.grace), "--refresh-seconds", "1"]
        jobs = [] if self.jobs == self.shared / "jobs" else ["--jobs-dir", str(self.jobs)]
        program = Program([*arguments, *times, *jobs, *more], self.folder, {"AEO_AUTH_TOKEN": token})
        self.programs.append(program)
        self.controller = program
        return program

    def start_worker(self, id: str, *more: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start a worker, again with what it was first started with."""
        if more or environment or id not in self._options:
            self._options[id] = (more, environment or {})
        options, variables = self._options[id]
        arguments = ["worker", "--controller-url", self.api.url, "--worker-id", id, "--slots", "2"]
        times = ["--poll-interval", str(POLL), "--stop-seconds", str(STOP)]
        root = ["--local-root", str(self.folder / id)]
        self.workers[id] = Program([*arguments, *times, *root, *options], self.folder, variables)
        self.programs.append(self.workers[id])
        return self.workers[id]

    def ready(self, *workers: str) -> Stage:
        """Have the controller answer and these workers, and only these, at work, whatever happened before."""
        if self.controller.process.poll() is not None:
            self.start_controller()
        eventually(self.api.healthy, PATIENCE, pause=0.1)
        for id, program in list(self.workers.items()):
            if id not in workers:
                self.retire(id)
            with suppress(psutil.NoSuchProcess):
                for process in (program.process, *program.family()):
                    process.send_signal(signal.SIGCONT)
        for id in workers:
            if id not in self.workers or self.workers[id].process.poll() is not None:
                self.start_worker(id)
        for id in workers:
            # It may have been paused for what a test did to its runs.
            eventually(lambda id=id: self.post(f"workers/{id}/resume").is_success, PATIENCE, pause=0.2)  # type: ignore[misc]
            self.await_worker(id)
        return self

    def retire(self, id: str) -> None:
        """Have a worker end, and be forgotten."""
        program = self.workers.pop(id)
        self._options.pop(id, None)
        if program.process.poll() is None:
            program.process.send_signal(signal.SIGCONT)
            program.process.terminate()
            program.ends(PATIENCE)

    def await_worker(self, id: str, state: str = "online") -> None:
        """Wait until a worker is in this state, and this very process of it."""

        def look() -> bool:
            with suppress(httpx.HTTPError):
                found = self.api.worker(id)
                return bool(found and found["state"] == state and found["heartbeat"])
            return False

        eventually(look, PATIENCE, pause=0.1)

    def outbox(self, worker: str) -> list[Path]:
        """The finished runs that a worker still has."""
        return [path for path in (self.folder / worker / "outbox").glob("*/*") if path.is_dir()]

    def role(self, name: str) -> psutil.Process:
        """The controller's child that is this process: ``control`` or ``web``."""
        for process in self.controller.process.children():
            if command_line(process)[-1:] == [name]:
                return process
        raise AssertionError(f"no {name} process")

    def server(self) -> psutil.Process:
        """The embedded server."""
        return psutil.Process(int((self.shared / "redis" / "pid").read_text()))

    @contextmanager
    def db(self) -> Iterator[Db]:
        """The store, as the tests' own client."""
        password, port = ((self.shared / "redis" / name).read_text().strip() for name in ("password", "port"))
        db = connect(f"redis://:{password}@127.0.0.1:{port}/0")
        try:
            yield db
        finally:
            db.close()

    def died(self, id: str) -> None:
        """Note that a worker's runs are dead as of now."""
        self.deaths.append((id, time.time()))

    def post(self, path: str, **body: object) -> httpx.Response:
        """Ask the API for something."""
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.post(f"{self.api.url}/api/{path}", json=body, headers=headers, trust_env=False, timeout=30)

    def submit(self, executor: str = "sleep", **config: object) -> Run:
        """Submit an evaluation over all workers."""
        self._named += 1
        name = str(config.pop("name", f"run-{self._named}"))
        # A trial may lose its worker as often as a test likes.
        config = {"max_requeues": 20, "per_worker_concurrency": "all", **config}
        return Run(self, self.api.submit({"executor": executor, "name": name, **config}), name)

    def check_by_doctor(self, run: Run) -> None:
        """What a person would ask finds nothing wrong either."""
        asked = Program(["doctor", "--store", run.id, "--shared-root", str(self.shared)], self.folder)
        assert asked.ends(PATIENCE) == 0, asked.output

    def check_clean(self) -> None:
        """Nothing of a batch is left in any worker's root, and no result waits there."""
        for id in self.workers:
            root = self.folder / id
            eventually(lambda root=root: not list(root.glob("batches/*")), PATIENCE, pause=0.2)

    def destroy(self) -> None:
        """End everything, whatever state it is in."""
        self.api.close()
        for program in self.programs:
            program.destroy()
        with suppress(OSError, ValueError, psutil.NoSuchProcess):
            server = self.server()
            # Its number may be another's by now.
            if Path(server.cwd()) == (self.shared / "redis").resolve():
                server.kill()


class Run:
    """An evaluation, seen from the disk."""

    def __init__(self, stage: Stage, id: str, name: str):
        self.stage, self.id, self.name = stage, id, name
        #: When the fault struck.
        self.struck = time.time()

    @property
    def folder(self) -> Path:
        return self.stage.shared / "evaluations" / self.id

    @property
    def job(self) -> Path:
        return self.stage.jobs / self.name

    def planned(self) -> list[str]:
        """Names of the planned trials."""
        return [json.loads(line)["name"] for line in (self.folder / "trials.jsonl").read_text().splitlines()]

    def events(self) -> list[Event]:
        """The event log."""
        path = self.folder / "events.jsonl"
        found = []
        for line in path.read_bytes().splitlines() if path.exists() else ():
            with suppress(ValueError):
                found.append(json.loads(line))
        return found

    def of(self, kind: str, **fields: str) -> list[Event]:
        """Events of one kind, with these fields."""
        wanted = {"kind": kind, **fields}
        return [event for event in self.events() if wanted.items() <= event.items()]

    def results(self) -> set[str]:
        """Trials whose result is in the job."""
        return {path.parent.name for path in self.job.glob("*/result.json")}

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        """Wait for something."""
        eventually(condition, seconds, pause=0.05)

    def until_done(self, count: int) -> Run:
        """Wait until so many trials are in the job."""
        self.until(lambda: len(self.results()) >= count)
        return self

    def until_running(self, *workers: str, count: int = 1) -> Run:
        """Wait until each of these workers runs so many trials, as the log says."""

        def look() -> bool:
            return all(len(self.running(worker)) >= count for worker in workers)

        self.until(look)
        return self

    def running(self, worker: str) -> set[str]:
        """Trials that a worker has claimed and of which nothing else was heard."""
        held: dict[str, str] = {}
        for event in self.events():
            if event["kind"] in ("claimed", "reclaimed"):
                held[event["trial"]] = event["worker"]
            elif event["kind"] in ("pushed", "requeued", "committed"):
                held.pop(event["trial"], None)
        return {trial for trial, by in held.items() if by == worker}

    def strike(self) -> None:
        """The fault happens now."""
        self.struck = time.time()

    def closed(self, seconds: float = PATIENCE) -> str:
        """Wait for the end; returns the state it ended in."""
        self.until(lambda: self.of("closed"), seconds)
        return str(self.of("closed")[-1]["state"])

    def since(self, kinds: Iterable[str], **fields: str) -> float | None:
        """Seconds from the fault to the first such event after it."""
        found = [
            moment(event) - self.struck
            for kind in kinds
            for event in self.of(kind, **fields)
            if moment(event) > self.struck
        ]
        return min(found, default=None)

    def rerun(self) -> float | None:
        """Seconds from the fault to the first new run of a trial that was given back after it."""
        back: dict[str, float] = {}
        for event in self.events():
            if event["kind"] == "requeued" and moment(event) > self.struck:
                back[event["trial"]] = moment(event)
            elif event["kind"] == "claimed" and event["trial"] in back:
                return moment(event) - self.struck
        return None


def order(event: Event) -> tuple[int, ...]:
    """Its place among all events."""
    return tuple(map(int, str(event["id"]).split("-")))


def moment(event: Event) -> float:
    """When it happened, in seconds since the epoch."""
    return when(str(event["at"]))


def when(text: str) -> float:
    """A time as it is written everywhere, in seconds since the epoch."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp()


def marked(text: str) -> list[psutil.Process]:
    """Living processes with this among their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        alive = process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if alive and text in " ".join(process.info["cmdline"] or ()):
            found.append(process)
    return found
