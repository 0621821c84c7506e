"""The job folder's own files: begun, kept up to date, and closed by Harbor's own aggregate."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aeo.core.model import Evaluation
from aeo.executors import JobProgress, folder
from aeo.executors.harbor import drivers, trial_files
from aeo.executors.result import write_json, write_text

log = logging.getLogger(__name__)


def start_job(evaluation: Evaluation, job_dir: Path) -> None:
    """See `aeo.executors.Executor.start_job`."""
    _write_asked(evaluation, job_dir)
    if not (job_dir / "result.json").exists():
        refresh_job(evaluation, job_dir, JobProgress())
        write_text(job_dir / "job.log", f"{evaluation.submitted_at.isoformat()} planned, run by several workers\n")


def _write_asked(evaluation: Evaluation, job_dir: Path) -> None:
    header = evaluation.plan.header
    write_json(job_dir / "config.json", config(header, job_dir))
    locks = [trial_files.lock(header, trial) for trial in evaluation.plan.trials]
    write_json(job_dir / "lock.json", {**header["lock"], "trials": locks})


def config(header: Mapping[str, Any], job_dir: Path) -> dict[str, Any]:
    """``config.json`` of the job at ``job_dir``."""
    return {**header["config"], "job_name": job_dir.name, "jobs_dir": str(job_dir.parent)}


def refresh_job(evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
    """See `aeo.executors.Executor.refresh_job`."""
    folder.refresh(
        job_dir,
        progress,
        job_id=evaluation.plan.header["job_id"],
        total=len(evaluation.plan.trials),
        started_at=evaluation.submitted_at,
    )


def merge(evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
    """See `aeo.executors.Executor.merge`.

    Raises:
        ExecutorFailed: Harbor could not aggregate the results.
    """
    header = evaluation.plan.header
    _write_asked(evaluation, job_dir)
    answer = drivers.call(
        "merge",
        {
            "job_dir": str(job_dir),
            "header": {key: header[key] for key in ("config", "job_id", "metrics", "lock")},
            "trials": [trial.name for trial in evaluation.plan.trials],
            "started_at": evaluation.submitted_at.astimezone().replace(tzinfo=None).isoformat(),
            "finished_at": _closed_at(job_dir),
            "requeues": progress.requeues,
        },
    )["ok"]
    for line in answer["unread"]:
        log.warning("job %s: left out of the merge: %s", job_dir.name, line)
    with (job_dir / "job.log").open("a", encoding="utf-8") as file:
        file.writelines(f"left out of the merge: {line}\n" for line in answer["unread"])
        if progress.stopped:
            file.write(f"{folder.stopped_line(progress)}\n")


def _closed_at(job_dir: Path) -> str:
    """When an earlier merge closed the job, so that merging again changes nothing; "" if none did."""
    try:
        return str(json.loads((job_dir / "result.json").read_text())["finished_at"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
