"""The engine without Celery: workers are threads that run the batches the store says were sent to them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from waiting import eventually

from aeo import batches, control, evaluations, event_log, executors, jobs
from aeo.core.errors import NotFound
from aeo.core.model import Capacity, Evaluation, Heartbeat, WorkerInfo
from aeo.layout import Local
from aeo.site import Site, WorkerSite
from aeo.store import connection, workers
from aeo.store import evaluations as store
from aeo.store.evaluations import EvaluationStatus
from aeo.submission import Submission
from aeo.transfer import remote


def register(site: Site, id: str, *, slots: int = 2, cpus: float = 64, memory_mb: int = 1 << 20, **fields: Any) -> str:
    """Make a worker known and alive for the length of a test."""
    names = {name: executors.load(name).version() for name in ("sleep", "command")}
    info = WorkerInfo(
        id=id,
        display_name=id,
        host="test",
        capacity=Capacity(slots=slots, cpus=cpus, memory_mb=memory_mb),
        boot="boot",
        instance=id,
        **{"executors": names, **fields},
    )
    workers.register(site.db, info, ttl_seconds=3600)
    return id


def worker_site(site: Site, root: Path, id: str) -> WorkerSite:
    """A worker on the controller's own machine."""
    config = replace(site.config, worker_id=id, local_root=root / id)
    return WorkerSite(
        config=config,
        local=Local(config.local_root),
        db=site.db,
        remote=remote.parse(str(site.shared.root)),
    )


def submit(site: Site, config: Mapping[str, Any], **options: Any) -> Evaluation:
    """Submit a configuration for the `sleep` executor."""
    return evaluations.submit(site, Submission(config={"executor": "sleep", **config}, options=options)).evaluation


@dataclass(kw_only=True)
class Pool:
    """Workers that run."""

    site: Site
    workers: dict[str, WorkerSite]
    stop: threading.Event = field(default_factory=threading.Event)
    returned: list[dict[str, object]] = field(default_factory=list)
    broken: list[BaseException] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _threads: list[threading.Thread] = field(default_factory=list)

    def attend(self) -> None:
        """Start each batch sent to a worker here, one thread each."""
        while not self.stop.wait(0.02):
            for id in store.open_ids(self.site.db):
                for status in store.batches(self.site.db, id):
                    batch = status.batch
                    if status.state == "sent" and batch.worker in self.workers and batch.id not in self._taken:
                        self._taken.add(batch.id)
                        thread = threading.Thread(target=self._run, args=(batch,))
                        self._threads.append(thread)
                        thread.start()

    def _run(self, batch: Any) -> None:
        try:
            done = batches.run(self.workers[batch.worker], batch)
            self.returned.append(done)
            if done.get("again"):
                self._taken.discard(batch.id)
        except Exception as error:
            self.broken.append(error)

    def finish(self) -> None:
        for thread in self._threads:
            thread.join(30)
        for site in self.workers.values():
            last = threading.Thread(target=site.sender.finish, args=(site,), daemon=True)
            last.start()
            last.join(30)


@contextmanager
def running(site: Site, root: Path, *ids: str, with_control: bool = True) -> Iterator[Pool]:
    """Workers, and the control process's loops, until left. Merges run when the store says that all is in."""
    pool = Pool(site=site, workers={id: worker_site(site, root, id) for id in ids})
    with ExitStack() as stack:
        threads = [threading.Thread(target=pool.attend, name="attend")]
        if with_control:
            threads.append(threading.Thread(target=control.run, args=(site, pool.stop), name="control"))
        for thread in threads:
            thread.start()
        stack.callback(pool.finish)
        for thread in threads:
            stack.callback(thread.join)
        stack.callback(pool.stop.set)
        yield pool


def closed(site: Site, id: str, timeout: float = 30) -> EvaluationStatus:
    """Wait for the end of an evaluation, merging as its messages would."""

    def final() -> EvaluationStatus | None:
        try:
            jobs.merge(site, id)
            status = store.get(site.db, id)
        except NotFound:  # the store was wiped and knows it not yet again
            return None
        return status if status.state.final else None

    return eventually(final, timeout)


def logged(site: Site, id: str) -> list[dict[str, Any]]:
    """The evaluation's event log, brought up to date."""
    while event_log.write(site):
        pass
    return [json.loads(line) for line in site.shared.events(id).read_text().splitlines()]


def result(site: Site, name: str) -> dict[str, Any]:
    """The job's result.json."""
    loaded: dict[str, Any] = json.loads((site.shared.job(name) / "result.json").read_text())
    return loaded


def beat(site: Site, id: str, ttl_seconds: float) -> None:
    """Let a worker's next heartbeat be the last for so long."""
    heartbeat = Heartbeat(boot="boot", at=connection.now(site.db))
    workers.beat(site.db, id, heartbeat, ttl_seconds=ttl_seconds)
