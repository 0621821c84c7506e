"""The whole at one glance: what runs and until when, what waits, who works, what to look at."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from aeo import alerts, progress, workers
from aeo.core.alerts import Alert
from aeo.core.estimate import Range
from aeo.core.model import Outcome, WorkerState
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.evaluations import EvaluationStatus


@dataclass(frozen=True, kw_only=True)
class Open:
    """An evaluation that is not closed."""

    status: EvaluationStatus
    #: None while it cannot be told, see `progress.eta`.
    end: Range | None
    #: Share of its ended trials that infrastructure failed, cancelled ones left out; None before any has ended.
    infra_rate: float | None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """What the dashboard shows."""

    #: The newest first.
    open: tuple[Open, ...]
    #: Of the workers that are not lost.
    busy: int
    slots: int
    #: Batches waiting in the workers' queues.
    queued: int
    pending: int
    #: How many workers are in each state.
    workers: Mapping[WorkerState, int]
    alerts: tuple[Alert, ...]


def look(site: Site) -> Overview:
    """Look at everything now.

    Raises:
        Unavailable: the store is away, or the summaries cannot be read.
    """
    pool = workers.views(site)
    present = [worker for worker in pool if worker.state is not WorkerState.LOST]
    running = store.several(site.db, store.open_ids(site.db)[::-1])
    return Overview(
        open=tuple(
            Open(status=status, end=progress.eta(site, status), infra_rate=infra_rate(status)) for status in running
        ),
        busy=sum(worker.busy for worker in present),
        slots=sum(worker.info.capacity.slots for worker in present),
        queued=sum(worker.queued for worker in pool),
        pending=sum(status.pending for status in running),
        workers=Counter(worker.state for worker in pool),
        alerts=alerts.of(site, pool, running),
    )


def infra_rate(status: EvaluationStatus) -> float | None:
    """Share of an evaluation's ended trials that infrastructure failed; None before any has ended."""
    ended = status.done - status.outcomes.get(Outcome.CANCELLED, 0)
    return status.outcomes.get(Outcome.INFRA_ERROR, 0) / ended if ended > 0 else None
