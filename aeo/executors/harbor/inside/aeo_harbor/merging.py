"""Closes a job folder with Harbor's own aggregate."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

from harbor.job_plan import JobPlan
from harbor.metrics.base import BaseMetric
from harbor.metrics.factory import MetricFactory
from harbor.models.job.config import JobConfig
from harbor.models.job.lock import JobLock
from harbor.models.metric.type import MetricType
from harbor.models.trial.result import TrialResult


def merge(request: Mapping[str, Any]) -> dict[str, Any]:
    """Write the final ``result.json`` over the trial folders of a job; returns what was left out and why."""
    job_dir, header = Path(request["job_dir"]), request["header"]
    results, unread, retries = [], [], 0
    for name in request["trials"]:
        folder = job_dir / name
        if not folder.is_dir():
            continue
        try:
            results.append(TrialResult.model_validate_json((folder / "result.json").read_bytes()))
            retries += _retries(folder)
        except (OSError, ValueError) as error:
            unread.append(f"{name}: {str(error).splitlines()[0]}")
    with tempfile.TemporaryDirectory() as scratch:
        plan = JobPlan(
            config=JobConfig.model_validate(header["config"]),
            id=UUID(header["job_id"]),
            task_configs=[],
            trial_configs=[],
            metrics=_metrics(header["metrics"], Path(scratch)),
            task_download_results={},
            job_lock=JobLock.model_validate(header["lock"]),
        )
        finished = datetime.now()  # noqa: DTZ005 - Harbor's job times are naive local ones
        job = plan.aggregate(
            results,
            started_at=datetime.fromisoformat(request["started_at"]),
            finished_at=datetime.fromisoformat(request["finished_at"]) if request["finished_at"] else finished,
            n_retries=retries + request["requeues"],
            n_total_trials=len(request["trials"]),
        )
    text = job.model_dump_json(indent=4, exclude={"trial_results"})
    temporary = job_dir / ".result.json"
    temporary.write_text(text)
    temporary.replace(job_dir / "result.json")
    return {"unread": unread}


def _retries(folder: Path) -> int:
    try:
        count = json.loads((folder / "aeo.json").read_text())["retries"]
    except (OSError, ValueError, KeyError, TypeError):
        return 0
    return count if isinstance(count, int) and 0 < count < 1000 else 0


def _metrics(described: Mapping[str, Any], scratch: Path) -> dict[str, list[BaseMetric[Any]]]:
    metrics: dict[str, list[BaseMetric[Any]]] = {}
    for name, items in described.items():
        metrics[name] = []
        for item in items:
            kwargs = item.get("kwargs", {})
            if "script" in item:
                script = scratch / f"metric{len(list(scratch.iterdir()))}.py"
                script.write_text(item["script"])
                kwargs = {"script_path": script}
            metrics[name].append(MetricFactory.create_metric(MetricType(item["type"]), **kwargs))
    return metrics
