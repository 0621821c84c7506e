"""Writes the folder of a trial that got no result of its own."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from uuid import uuid4

from aeo.core.model import Evaluation, PlannedTrial
from aeo.executors import TrialContext
from aeo.executors.harbor import trial_files
from aeo.executors.harbor.summary import INVALIDATING
from aeo.executors.result import clean, write_json, write_text


def fail(evaluation: Evaluation, trial: PlannedTrial, context: TrialContext, error_type: str, message: str) -> None:
    """See `aeo.executors.Executor.fail`."""
    header = evaluation.plan.header
    config = trial_files.config(header, trial, context.final_dir)
    write_json(context.trial_dir / "config.json", config)
    write_json(context.trial_dir / "lock.json", trial_files.lock(header, trial))
    write_text(context.trial_dir / "exception.txt", f"{error_type}: {message}\n")
    now = datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")
    document: dict[str, Any] = {
        "schema_version": 1,
        "id": str(uuid4()),
        "task_name": trial.task,
        "trial_name": trial.name,
        "trial_uri": Path(context.final_dir).absolute().as_uri(),
        "task_id": task_id(config["task"]),
        "source": config["task"]["source"],
        "task_checksum": trial.payload["checksum"],
        "config": config,
        "agent_info": trial_files.agent_info(header, trial),
        "agent_result": None,
        "verifier_result": None,
        "verifier_environment_mode": None,
        "exception_info": {
            "exception_type": error_type,
            "exception_message": clean(message),
            "exception_traceback": "",
            "occurred_at": now,
            "policy": {
                "should_retry": False,
                "should_grade": False,
                "has_valid_reward": error_type not in INVALIDATING,
            },
        },
        "started_at": now,
        "finished_at": now,
        **dict.fromkeys(("environment_setup", "agent_setup", "agent_execution", "verifier", "step_results")),
        "reward_valid": False,
    }
    write_json(context.trial_dir / "result.json", document)


def task_id(task: dict[str, Any]) -> dict[str, Any]:
    """Harbor's identity of a task, from its reference in a trial's configuration."""
    if task.get("name"):
        org, _, name = task["name"].partition("/")
        return {"org": org, "name": name, "ref": task.get("ref")}
    if task.get("git_url"):
        return {"git_url": task["git_url"], "git_commit_id": task.get("git_commit_id"), "path": task["path"]}
    return {"path": task["path"]}
