"""What a task's own file says of how long its trials take and what they need."""

from __future__ import annotations

import hashlib
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harbor.agents.factory import AgentFactory
from harbor.models.job import lock as job_lock
from harbor.models.job.config import RetryConfig
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import task_has_any_separate_verifier
from harbor.models.trial.config import TrialConfig

#: Agents usually end long before their time-out: the share of it that is expected. Only the order matters much.
_EXPECTED = 0.25
#: Given to an agent without a time-out, seconds.
_NO_LIMIT = 24 * 3600.0
#: For uploads, logs, artifacts and teardown, which Harbor does not bound, seconds.
_MARGIN = 600.0


@dataclass(frozen=True)
class Loaded:
    """A task folder, read."""

    folder: Path
    name: str
    #: Names this content under this folder name.
    key: str
    #: Harbor's digest of a package's content.
    digest: str
    #: Harbor's older digest, which its results carry.
    checksum: str
    labels: dict[str, str]
    task: Task

    def limits(self, trial: TrialConfig, *, max_retries: int, retry: RetryConfig) -> dict[str, Any]:
        """Estimate, hard deadline and needs of a trial of this task."""
        build = self._scaled(trial, self.task.config.environment.build_timeout_sec, "environment_build")
        setup = self._scaled(trial, _setup_seconds(trial), "agent_setup")
        agent, verifier = self._agent_seconds(trial), self._verifier_seconds(trial)
        steps = len(self.task.config.steps or [None])
        environments = 1 + (steps if task_has_any_separate_verifier(self.task.config) else 0)
        once = environments * build + setup + agent + verifier + _MARGIN
        waits = sum(
            min(retry.min_wait_sec * retry.wait_multiplier**attempt, retry.max_wait_sec)
            for attempt in range(min(max_retries, 1000))
        )
        cpus = trial.environment.override_cpus or self.task.config.environment.cpus
        memory = trial.environment.override_memory_mb or self.task.config.environment.memory_mb
        disk = trial.environment.override_storage_mb or self.task.config.environment.storage_mb
        return {
            "estimated_seconds": max(1.0, _EXPECTED * (agent + verifier)),
            "deadline_seconds": once * (max_retries + 1) + waits,
            "needs": {"cpus": float(cpus or 0.0), "memory_mb": int(memory or 0), "disk_mb": int(disk or 0)},
        }

    def _agent_seconds(self, trial: TrialConfig) -> float:
        config = self.task.config
        own = [step.agent.timeout_sec for step in config.steps or []] or [None]
        total = 0.0
        for seconds in own:
            base = trial.agent.override_timeout_sec or seconds or config.agent.timeout_sec
            bounded = min(base, trial.agent.max_timeout_sec or base) if base else None
            total += self._scaled(trial, bounded, "agent") if bounded else _NO_LIMIT
        return total

    def _verifier_seconds(self, trial: TrialConfig) -> float:
        if trial.verifier.disable:
            return 0.0
        config = self.task.config
        own = [step.verifier.timeout_sec for step in config.steps or []] or [None]
        total = 0.0
        for seconds in own:
            base = trial.verifier.override_timeout_sec or seconds or config.verifier.timeout_sec
            total += self._scaled(trial, min(base, trial.verifier.max_timeout_sec or base), "verifier")
        return total

    @staticmethod
    def _scaled(trial: TrialConfig, seconds: float, which: str) -> float:
        multiplier = getattr(trial, f"{which}_timeout_multiplier")
        return seconds * (trial.timeout_multiplier if multiplier is None else multiplier)


def load(folder: Path, *, disable_verification: bool) -> Loaded:
    """Read a task folder.

    Raises:
        Exception: it is broken.
    """
    task = Task(folder, disable_verification=disable_verification)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        checksum = task.checksum
    digest, _ = job_lock.Packager.compute_content_hash(folder)
    metadata = task.config.metadata or {}
    return Loaded(
        folder=folder,
        name=task.name,
        digest=digest,
        # Harbor names a task without a name of its own by its folder, so the folder's name belongs to the content.
        key=hashlib.sha256(f"{digest}/{checksum}/{folder.name}".encode()).hexdigest(),
        checksum=checksum,
        labels={key: metadata[key] for key in ("category", "difficulty") if isinstance(metadata.get(key), str)},
        task=task,
    )


def _setup_seconds(trial: TrialConfig) -> float:
    if trial.agent.override_setup_timeout_sec is not None:
        return trial.agent.override_setup_timeout_sec
    return AgentFactory.get_agent_class_from_config(trial.agent).DEFAULT_SETUP_TIMEOUT_SEC
