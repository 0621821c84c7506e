"""What an evaluation was made of, for simulating it: each trial that ran, with what it took and what it needs."""

from __future__ import annotations

from dataclasses import dataclass

from aeo import records
from aeo.site import Site
from aeo.store import speeds
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import counts


@dataclass(frozen=True, kw_only=True)
class TracedTrial:
    """A trial that ran."""

    task: str
    #: On a worker of speed 1.
    seconds: float
    #: As it was expected when it was submitted.
    estimated_seconds: float
    cpus: float
    memory_mb: int
    disk_mb: int
    #: ``provider/model``, as far as it is known.
    model: str


@dataclass(frozen=True, kw_only=True)
class Trace:
    """An evaluation's trials in planned order, without those that have not run."""

    id: str
    name: str
    #: Slots of each worker it may use; None means all.
    per_worker_concurrency: int | None
    #: Planned trials, those that have not run counted in.
    planned: int
    trials: tuple[TracedTrial, ...]


def trace(site: Site, status: EvaluationStatus) -> Trace:
    """Read what an evaluation took so far.

    Raises:
        NotFound: it is not on disk any more.
        Unavailable: the summaries cannot be read.
    """
    record = records.read(site.shared.evaluation(status.id))
    known = speeds.learnt(site.db)
    took = {
        name: seconds * known.get(worker, 1.0) for name, (seconds, worker) in counts.took(site.book, status.id).items()
    }
    return Trace(
        id=status.id,
        name=status.name,
        per_worker_concurrency=record.evaluation.spec.per_worker_concurrency,
        planned=len(record.trials),
        trials=tuple(
            TracedTrial(
                task=trial.task,
                seconds=took[name],
                estimated_seconds=trial.estimated_seconds,
                cpus=trial.needs.cpus,
                memory_mb=trial.needs.memory_mb,
                disk_mb=trial.needs.disk_mb,
                model="/".join(filter(None, (trial.labels.get("provider"), trial.labels.get("model")))),
            )
            for name, trial in record.trials.items()
            if name in took
        ),
    )
