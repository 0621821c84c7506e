"""What Prometheus reads: the state of now, asked of the store at each scrape, and the counts of `aeo.meters`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import accumulate

import psutil
from prometheus_client import CollectorRegistry
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from aeo import __version__, meters, workers
from aeo.core.errors import Unavailable
from aeo.core.model import EvaluationState, WorkerState
from aeo.site import Site
from aeo.store import connection, events, health, inbox, samples
from aeo.store import evaluations as store
from aeo.workers import WorkerView

log = logging.getLogger(__name__)


def page(site: Site, *, alive: bool, accept: str = "") -> tuple[bytes, str]:
    """The metrics as text, and its content type, as ``accept`` (a header) asks for.

    ``alive``: the store has just answered. Without it there is what the disk tells: ``aeo_store_up`` says so, since a
    page that fails would hide the one thing to know.
    """
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Now(site, alive=alive))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


class _Now(Collector):
    def __init__(self, site: Site, *, alive: bool) -> None:
        self._site, self._alive = site, alive

    def collect(self) -> Iterable[Metric]:
        """Everything, of one look."""
        stored = self._stored() if self._alive else None
        yield InfoMetricFamily("aeo", "The controller.", value={"version": __version__})
        yield _gauge("aeo_store_up", "Whether the store answers; without it most of the rest is missing.", stored)
        yield from _counts(self._site)
        yield from _disks(self._site)
        yield from stored or ()

    def _stored(self) -> list[Metric] | None:
        try:
            return [*_engine(self._site), *_evaluations(self._site), *_workers(self._site)]
        except Unavailable as error:
            log.warning("metrics without the store: %s", error)
            return None


def _gauge(name: str, text: str, value: object) -> GaugeMetricFamily:
    number = float(value) if isinstance(value, (int, float)) else float(value is not None)
    return GaugeMetricFamily(name, text, value=number)


def _counts(site: Site) -> Iterator[Metric]:
    reading = meters.read(site.shared.meters)
    ended = CounterMetricFamily("aeo_trials_ended", "Committed trials.", labels=["outcome"])
    for outcome, count in sorted(reading.outcomes.items()):
        ended.add_metric([outcome], count)
    yield ended
    yield CounterMetricFamily("aeo_runs_requeued", "Runs given back, to be run again.", value=reading.requeued)
    yield CounterMetricFamily(
        "aeo_results_superseded", "Second results, kept beside those that count.", value=reading.superseded
    )
    ends = [*map(str, meters.BOUNDS), "+Inf"]
    yield HistogramMetricFamily(
        "aeo_commit_seconds",
        "Time from a result's arrival to its commit.",
        buckets=list(zip(ends, accumulate(reading.commits), strict=True)),
        sum_value=reading.commit_seconds,
    )


def _disks(site: Site) -> Iterator[Metric]:
    free = GaugeMetricFamily("aeo_disk_free_bytes", "Free on the controller's disks.", labels=["folder"])
    total = GaugeMetricFamily("aeo_disk_total_bytes", "Size of the controller's disks.", labels=["folder"])
    for name, folder in (("shared_root", site.shared.root), ("jobs_dir", site.shared.jobs_dir)):
        try:
            usage = psutil.disk_usage(str(folder))
        except OSError:  # a folder that is gone is missing here, which can be alerted on
            continue
        free.add_metric([name], usage.free)
        total.add_metric([name], usage.total)
    yield from (free, total)


def _engine(site: Site) -> Iterator[Metric]:
    settled = health.settled_seconds(site.db) is not None
    yield _gauge("aeo_store_settled", "Whether the store is in line with the disk.", settled)
    yield _gauge("aeo_inbox_results", "Results that arrived and wait for their commit.", inbox.length(site.db))
    oldest = events.take(site.db, 1)
    age = max(0.0, (connection.now(site.db) - oldest[0][1].at).total_seconds()) if oldest else 0.0
    yield _gauge("aeo_control_silent_seconds", "Age of the oldest event the control process has not written.", age)


def _evaluations(site: Site) -> Iterator[Metric]:
    known = GaugeMetricFamily("aeo_evaluations", "Evaluations.", labels=["state"])
    for state in EvaluationState:
        known.add_metric([state.value], store.page(site.db, offset=0, limit=0, state=state)[1])
    yield known
    running = store.several(site.db, store.open_ids(site.db))
    trials = GaugeMetricFamily("aeo_trials", "Trials of the evaluations that are not closed.", labels=["state"])
    for name in ("pending", "running", "pushed", "done"):
        trials.add_metric([name], sum(getattr(status, name) for status in running))
    yield trials


def _workers(site: Site) -> Iterator[Metric]:
    pool = workers.views(site)
    states = GaugeMetricFamily("aeo_workers", "Workers.", labels=["state"])
    for state in WorkerState:
        states.add_metric([state.value], sum(worker.state is state for worker in pool))
    yield states
    families = {
        name: GaugeMetricFamily(f"aeo_worker_{name}", text, labels=["worker"]) for name, text in _OF_WORKERS.items()
    }
    ages = _ages(site, pool)
    for worker in pool:
        for name, value in _of_worker(worker, ages.get(worker.info.id)).items():
            if value is not None:
                families[name].add_metric([worker.info.id], value)
    yield from families.values()


_OF_WORKERS = {
    "up": "Whether it has a heartbeat.",
    "takes_work": "Whether it is online: neither paused, nor draining, nor lost.",
    "slots": "Trials it may run at once; none of a lost one.",
    "busy_slots": "Trials it runs.",
    "queued_batches": "Batches waiting in its queue.",
    "heartbeat_age_seconds": "Time since its last heartbeat; of a lost one since its last sample, for two hours.",
    "disk_free_bytes": "Free on its disk.",
    "disk_total_bytes": "Size of its disk.",
    "cpu_percent": "Load of its processors.",
    "memory_percent": "Memory in use.",
    "clock_skew_seconds": "What its clock is ahead of the store's.",
}


def _of_worker(worker: WorkerView, age: float | None) -> dict[str, float | None]:
    lost = worker.state is WorkerState.LOST
    # The first heartbeat, made at registration, has measured nothing.
    beat = worker.heartbeat if worker.heartbeat and worker.heartbeat.disk_total else None
    return {
        "up": float(worker.heartbeat is not None),
        "takes_work": float(worker.state is WorkerState.ONLINE),
        "slots": 0.0 if lost else float(worker.info.capacity.slots),
        "busy_slots": float(worker.busy),
        "queued_batches": float(worker.queued),
        "heartbeat_age_seconds": worker.heartbeat_age if worker.heartbeat_age is not None else age,
        "disk_free_bytes": float(beat.disk_free) if beat else None,
        "disk_total_bytes": float(beat.disk_total) if beat else None,
        "cpu_percent": beat.cpu_percent if beat else None,
        "memory_percent": beat.memory_percent if beat else None,
        "clock_skew_seconds": beat.clock_skew if beat else None,
    }


def _ages(site: Site, pool: Iterable[WorkerView]) -> dict[str, float]:
    """Seconds since the last sample of each worker that has no heartbeat."""
    silent = [worker.info.id for worker in pool if worker.heartbeat is None]
    if not silent:
        return {}
    now = connection.now(site.db)
    return {
        id: max(0.0, (now - kept[-1].at).total_seconds()) for id, kept in samples.of(site.db, silent).items() if kept
    }
