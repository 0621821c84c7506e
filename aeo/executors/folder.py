"""A job folder in Harbor's layout, so that ``harbor view`` opens it while it runs and after.

::

    <job>/
    ├── config.json     what was asked
    ├── result.json     statistics; brought up to date while the job runs, closed by the merge
    ├── job.log
    └── <trial>/        see `aeo.executors.result`

`refresh` and `close` know no executor: they are made from rows. The rest serves the executors that write all of their
folders through this package.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from secrets import choice
from typing import Any
from uuid import uuid4

from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Needs, Plan, PlannedTrial, Spec, TrialRow
from aeo.core.words import count
from aeo.executors import JobProgress, TrialContext, result, statistics

_LETTERS = "23456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"
#: `finished_at` stands before the statistics, so the first bytes of a result.json tell whether the job is closed.
_HEAD = 400
_CLOSED = re.compile(rb'"finished_at":\s*"')


@dataclass(frozen=True, kw_only=True)
class TaskPlan:
    """One task to be planned `attempts` times."""

    name: str
    estimated_seconds: float
    deadline_seconds: float
    needs: Needs = field(default_factory=Needs)
    labels: Mapping[str, str] = field(default_factory=dict)
    #: The executor's own; JSON.
    payload: Mapping[str, Any] = field(default_factory=dict)


def plan(
    tasks: Sequence[TaskPlan], *, labels: Mapping[str, str], attempts: int, warnings: tuple[str, ...] = ()
) -> Plan:
    """Name the trials, attempt by attempt, and make the header the other functions of this module read.

    ``labels`` are those of every trial: ``agent``, ``dataset`` and, if there is one, ``model`` and ``provider``.
    """
    job_id = str(uuid4())
    names: set[str] = set()
    trials = tuple(_trial(task, labels, job_id, names) for _ in range(attempts) for task in tasks)
    header = {"job_id": job_id, "n_trials": len(trials), "attempts": attempts, "labels": dict(labels)}
    return Plan(trials=trials, header=header, warnings=warnings)


def _trial(task: TaskPlan, labels: Mapping[str, str], job_id: str, names: set[str]) -> PlannedTrial:
    name = trial_name(task.name, names)
    names.add(name)
    return PlannedTrial(
        name=name,
        task=task.name,
        labels={**task.labels, **labels},
        estimated_seconds=task.estimated_seconds,
        deadline_seconds=task.deadline_seconds,
        needs=task.needs,
        payload={**task.payload, "id": result.trial_id(job_id, name)},
    )


def trial_name(task: str, taken: set[str]) -> str:
    """A new name ``<task, at most 32 characters>__<7 characters>`` that is not in ``taken``."""
    while True:
        name = f"{task[:32].rstrip('_-.')}__{''.join(choice(_LETTERS) for _ in range(7))}"
        if name not in taken:
            return name


def start(evaluation: Evaluation, job_dir: Path) -> None:
    """Write ``config.json``, a first ``result.json`` and ``job.log``. Idempotent; never reopens a closed job."""
    spec, header = evaluation.spec, evaluation.plan.header
    labels = header["labels"]
    result.write_json(
        job_dir / "config.json",
        {
            "schema_version": 1,
            "job_name": job_dir.name,
            "jobs_dir": str(job_dir.parent),
            "n_attempts": header["attempts"],
            "n_concurrent_trials": 1,
            "agent_timeout_multiplier": spec.agent_timeout_multiplier,
            "environment": {"import_path": f"aeo.executors.{spec.executor}"},
            "agents": [{"name": labels["agent"], "model_name": result.full_model(labels)}],
            "datasets": [{"path": labels["dataset"]}],
        },
    )
    if not (job_dir / "result.json").exists():
        refresh(job_dir, JobProgress(), **_identity(evaluation))
        result.write_text(job_dir / "job.log", _started(spec, evaluation))


def _started(spec: Spec, evaluation: Evaluation) -> str:
    moment = evaluation.submitted_at.isoformat()
    return f"{moment} {spec.executor}: {count(evaluation.plan.header['n_trials'], 'trial')}\n"


def _identity(evaluation: Evaluation) -> dict[str, Any]:
    header = evaluation.plan.header
    return {"job_id": header["job_id"], "total": header["n_trials"], "started_at": evaluation.submitted_at}


def refresh_job(evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
    """`refresh` for an evaluation planned by `plan`."""
    refresh(job_dir, progress, **_identity(evaluation))


def refresh(job_dir: Path, progress: JobProgress, *, job_id: str, total: int, started_at: datetime) -> bool:
    """Bring the ``result.json`` of a running job up to date, atomically; linear in the rows, reads no trial folder.

    Returns whether it was written: a closed job stays as it is, so that a late refresh cannot reopen it.
    """
    path = job_dir / "result.json"
    if _closed(path):
        return False
    stats = statistics.of(progress.rows, total=total, running=len(progress.running), retries=progress.requeues)
    result.write_json(path, _document(job_id, total, started_at, datetime.now(timezone.utc), None, stats))
    return True


def close(
    job_dir: Path, progress: JobProgress, *, job_id: str, total: int, started_at: datetime, finished_at: datetime
) -> None:
    """Write the final ``result.json``. Idempotent."""
    stats = statistics.of(progress.rows, total=total, retries=progress.requeues)
    result.write_json(job_dir / "result.json", _document(job_id, total, started_at, finished_at, finished_at, stats))


def _closed(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return _CLOSED.search(file.read(_HEAD)) is not None
    except FileNotFoundError:
        return False


def _document(
    job_id: str,
    total: int,
    started_at: datetime,
    updated_at: datetime,
    finished_at: datetime | None,
    stats: Mapping[str, Any],
) -> dict[str, Any]:
    return {
        "schema_version": 1,
        "id": job_id,
        "started_at": _local(started_at),
        "updated_at": _local(updated_at),
        "finished_at": _local(finished_at) if finished_at else None,
        "n_total_trials": total,
        "stats": stats,
    }


def _local(moment: datetime) -> str:
    """Job times are local and without zone in Harbor's files."""
    return moment.astimezone().replace(tzinfo=None).isoformat()


def merge(evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
    """Close the job over its trial folders. Idempotent: the same rows and folders give the same file.

    A folder without a row (its commit was interrupted) is read; a row whose folder is gone does not count.
    """
    rows = [row for row in progress.rows if _cancelled_early(row) or _ended(job_dir, row.summary.trial)]
    known = {row.summary.trial for row in rows}
    rows += _read_rows(job_dir, (trial for trial in evaluation.plan.trials if trial.name not in known))
    identity = _identity(evaluation)
    ends = [row.summary.finished_at or row.committed_at for row in rows]
    finished_at = max([evaluation.submitted_at, *ends])
    close(job_dir, JobProgress(rows=tuple(rows), requeues=progress.requeues), **identity, finished_at=finished_at)
    log = (
        f"{_started(evaluation.spec, evaluation)}{finished_at.isoformat()} closed, {count(len(rows), 'trial')} ended\n"
    )
    result.write_text(job_dir / "job.log", log + (f"{stopped_line(progress)}\n" if progress.stopped else ""))


def stopped_line(progress: JobProgress) -> str:
    """What a job's log says of a job that was stopped by its rule."""
    return f"stopped early by its rule: {progress.stopped}"


def _cancelled_early(row: TrialRow) -> bool:
    return row.summary.started_at is None and not row.summary.error_types


def _ended(job_dir: Path, trial: str) -> bool:
    return (job_dir / trial / "result.json").is_file()


def _read_rows(job_dir: Path, trials: Iterable[PlannedTrial]) -> Iterable[TrialRow]:
    for trial in trials:
        if not _ended(job_dir, trial.name):
            continue
        try:
            summary = result.summarise(trial, job_dir / trial.name)
        except InputError:
            continue
        ended = summary.finished_at or datetime.fromtimestamp(0, timezone.utc)
        yield TrialRow(summary=summary, worker="", attempt=1, committed_at=ended)


class FlatCarrier:
    """See `aeo.executors.carrying.Carrier`; for trials planned by `plan` whose payload says what they are."""

    def __init__(self, *, timeouts: bool = False):
        #: Whether the factor on the agent's time-out says how long a trial may take.
        self._timeouts = timeouts

    def identities(self, spec: Spec, plan: Plan) -> Iterator[Mapping[str, Any]]:
        """See `aeo.executors.carrying.Carrier`."""
        factor = {"agent_timeout_multiplier": spec.agent_timeout_multiplier or 1.0} if self._timeouts else {}
        for trial in plan.trials:
            yield {**{key: value for key, value in trial.payload.items() if key != "id"}, **factor}

    def carry(self, evaluation: Evaluation, trial: PlannedTrial, trial_dir: Path, final_dir: str) -> None:
        """See `aeo.executors.carrying.Carrier`."""
        result.rename(trial_dir, evaluation, trial, final_dir)


def fail(evaluation: Evaluation, trial: PlannedTrial, context: TrialContext, error_type: str, message: str) -> None:
    """Write the folder of a trial that got no result of its own."""
    now = datetime.now(timezone.utc)
    ending = result.Ending(started_at=now, finished_at=now, error_type=error_type, error_message=message)
    result.begin(context.trial_dir, evaluation, trial, context.final_dir)
    result.finish(context.trial_dir, evaluation, trial, context.final_dir, ending)
