"""Harbor's trials taken over by another job."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aeo.core.model import Evaluation, Plan, PlannedTrial, Spec
from aeo.executors.harbor import trial_files
from aeo.executors.harbor.assets import HarborAssets
from aeo.executors.harbor.failure import task_id
from aeo.executors.harbor.summary import SIZE_LIMIT
from aeo.executors.result import read_json, trial_id, write_json

#: What names the job or the trial. The task is told apart by its content, wherever it lies.
_NAMES = ("trial_name", "trials_dir", "job_id", "task")
#: What limits how many trials run at once, and changes none of them.
_LIMITS = ("n_concurrent", "concurrency_group")


class HarborCarrier:
    """See `aeo.executors.carrying.Carrier`."""

    def identities(self, spec: Spec, plan: Plan) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002
        """The trials' configurations, with each file they name as a digest of its content."""
        digests = {path: _digest(content) for path, content in plan.header["files"].items()}
        # What holds secrets may be another one and measure the same.
        places = {asset.path: f"sha256:{asset.digest}" for asset in plan.assets if not asset.private}
        for trial in plan.trials:
            config = trial_files.config(plan.header, trial, "")
            kept = HarborAssets().placed({key: value for key, value in config.items() if key not in _NAMES}, places)
            agent = {key: value for key, value in kept["agent"].items() if key not in _LIMITS}
            yield _by_content({**kept, "agent": agent}, digests)

    def carry(self, evaluation: Evaluation, trial: PlannedTrial, trial_dir: Path, final_dir: str) -> None:
        """See `aeo.executors.carrying.Carrier`."""
        header = evaluation.plan.header
        config = trial_files.config(header, trial, final_dir)
        document = read_json(trial_dir / "result.json", limit=SIZE_LIMIT)
        document.update(
            id=trial_id(header["job_id"], trial.name),
            trial_name=trial.name,
            trial_uri=Path(final_dir).absolute().as_uri(),
            task_id=task_id(config["task"]),
            source=config["task"]["source"],
            config=config,
        )
        write_json(trial_dir / "config.json", config)
        write_json(trial_dir / "lock.json", trial_files.lock(header, trial))
        write_json(trial_dir / "result.json", document)


def _digest(content: Any) -> str:
    return "sha256:" + hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _by_content(value: Any, digests: Mapping[str, str]) -> Any:
    if not digests:
        return value
    if isinstance(value, Mapping):
        return {key: _by_content(item, digests) for key, item in value.items()}
    if isinstance(value, list):
        return [_by_content(item, digests) for item in value]
    return digests.get(value, value) if isinstance(value, str) else value
