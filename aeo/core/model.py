"""What the platform talks about. Nothing here knows an executor, Redis, Celery or a disk."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Any


class Outcome(str, Enum):
    """How a trial ended. Only ``scored`` counts in a score; coverage says how many of the planned are."""

    #: It has a valid reward, passed or not.
    SCORED = "scored"
    #: The infrastructure failed it: environment, agent set-up, model provider, our own processes.
    INFRA_ERROR = "infra_error"
    #: It ran to its end, but there is no reward one could use.
    INVALID = "invalid"
    #: A person stopped it.
    CANCELLED = "cancelled"


class TrialState(str, Enum):
    """Where a planned trial is. Each trial is in exactly one of these."""

    #: Waiting in a batch's share.
    PENDING = "pending"
    #: A batch holds its lease.
    RUNNING = "running"
    #: Its result is on the controller's disk, not yet checked.
    PUSHED = "pushed"
    #: Committed: its result is in the job folder, or it was cancelled before it ran.
    DONE = "done"


class EvaluationState(str, Enum):
    """The life of an evaluation."""

    #: Batches are dispatched; trials wait or run.
    RUNNING = "running"
    #: No new trial starts until somebody resumes it; running ones go on.
    PAUSED = "paused"
    #: No new trial starts; running ones are being stopped.
    CANCELLING = "cancelling"
    #: Every trial is done; the job is being closed.
    MERGING = "merging"
    #: Closed; every trial ended scored or invalid, or it was stopped by its own rule (see the reason).
    SUCCEEDED = "succeeded"
    #: Closed, but trials ended as infrastructure errors, or the merge itself failed (see the reason).
    FAILED = "failed"
    #: Closed by a person before every trial ran.
    CANCELLED = "cancelled"

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self in (EvaluationState.SUCCEEDED, EvaluationState.FAILED, EvaluationState.CANCELLED)


#: From which states each state may be entered; what is not listed is refused.
TRANSITIONS: Mapping[EvaluationState, frozenset[EvaluationState]] = {
    EvaluationState.RUNNING: frozenset({EvaluationState.PAUSED}),
    EvaluationState.PAUSED: frozenset({EvaluationState.RUNNING}),
    EvaluationState.CANCELLING: frozenset({EvaluationState.RUNNING, EvaluationState.PAUSED}),
    EvaluationState.MERGING: frozenset({EvaluationState.RUNNING, EvaluationState.PAUSED, EvaluationState.CANCELLING}),
    EvaluationState.SUCCEEDED: frozenset({EvaluationState.MERGING}),
    EvaluationState.FAILED: frozenset({EvaluationState.MERGING}),
    EvaluationState.CANCELLED: frozenset({EvaluationState.MERGING}),
}


class WorkerState(str, Enum):
    """Whether a worker takes work."""

    ONLINE = "online"
    #: Finishes what it runs, claims nothing more.
    DRAINING = "draining"
    #: Told by a person to claim nothing until resumed.
    PAUSED = "paused"
    #: No heartbeat for the grace time.
    LOST = "lost"


@dataclass(frozen=True, kw_only=True)
class Needs:
    """What one trial takes of a worker while it runs; 0 means not declared."""

    cpus: float = 0.0
    #: MiB.
    memory_mb: int = 0
    #: MiB.
    disk_mb: int = 0

    def fit(self, capacity: Capacity) -> int:
        """How many such trials ``capacity`` holds at once, slots aside counted in."""
        fits = [capacity.slots]
        for need, offer in (
            (self.cpus, capacity.cpus),
            (self.memory_mb, capacity.memory_mb),
            (self.disk_mb, capacity.disk_mb or math.inf),
        ):
            if need > 0 and offer < math.inf:
                fits.append(int(offer * capacity.overcommit / need + 1e-9))
        return max(0, min(fits))


#: Most slots of one worker.
MOST_SLOTS = 10_000


@dataclass(frozen=True, kw_only=True)
class Capacity:
    """What a worker has (psutil), whether or not something runs there now."""

    slots: int
    cpus: float
    #: MiB.
    memory_mb: int
    #: MiB; 0 is not measured, and holds anything.
    disk_mb: int = 0
    #: What trials may declare together, in parts of what is there: above 1 where they declare more than they take.
    overcommit: float = 1.0


#: Largest whole number of a spec, either way, and what every factor on time-outs is below.
MOST_WHOLE = 10**9
MOST_FACTOR = 1_000_000


@dataclass(frozen=True, kw_only=True)
class StopRule:
    """When an evaluation is stopped early, stated before it runs, see `aeo.core.stopping`; one of the first two."""

    #: Every mean main reward is known to within so much.
    interval: float | None = None
    #: Two agents, models or ``agent/model``: one of them is better.
    compare: tuple[str, ...] = ()
    #: Before so many, nothing is decided: scored trials of each agent, model and dataset, or tasks compared.
    min_trials: int = 30


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What was asked for: the header every executor shares, and the executor's own configuration."""

    executor: str
    #: Also the job folder's name.
    name: str
    #: Worker ids to use; empty means every worker that fits.
    workers: tuple[str, ...] = ()
    #: How many slots of each worker this evaluation may use; None means all.
    per_worker_concurrency: int | None = 1
    #: Higher runs first.
    priority: int = 0
    #: Factor on the agent's time-out; None leaves the configuration as its executor reads it.
    agent_timeout_multiplier: float | None = None
    #: How often a trial lost to infrastructure is run again.
    max_requeues: int = 2
    #: None: it runs to its end.
    stop_when: StopRule | None = None
    #: Names of the variables its trials' processes get, see `aeo.secrets`; never their values.
    secrets: tuple[str, ...] = ()
    #: The executor's own; the platform never looks inside.
    config: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlannedTrial:
    """One attempt of one agent and model on one task; planned once, named once."""

    name: str
    #: The task's name as people know it.
    task: str
    #: Group labels for tables and comparisons: ``agent``, ``model``, ``dataset``, ``category``, ``difficulty``...
    labels: Mapping[str, str] = field(default_factory=dict)
    #: Expected duration, seconds; longest first.
    estimated_seconds: float = 60.0
    #: What the plan alone says of it, before past runs are looked at; 0: the same.
    planned_seconds: float = 0.0
    #: Hard deadline of our own, seconds from its start, beyond every time-out the executor keeps itself.
    deadline_seconds: float = 3600.0
    needs: Needs = Needs()
    #: Key of the content folder this trial needs on the worker (see `ContentFolder`); empty if none.
    content: str = ""
    #: The executor's own; JSON.
    payload: Mapping[str, Any] = field(default_factory=dict)

    @property
    def planned(self) -> float:
        """Seconds that the plan alone says, which may come from a time-out."""
        return self.planned_seconds or self.estimated_seconds

    @property
    def history_key(self) -> str:
        """Under which name the task's durations are remembered."""
        return f"{self.labels.get('dataset', '')}/{self.task}"


@dataclass(frozen=True, kw_only=True)
class ContentFolder:
    """A folder that travels to workers by content (a task)."""

    #: Digest of the content; the folder's key on both sides.
    digest: str
    #: Where it lies on the controller at planning time.
    source: str
    #: The folder's own name, kept on the worker (``tasks/<digest>/<name>``).
    name: str


@dataclass(frozen=True, kw_only=True)
class Asset:
    """A file or folder on the controller that a configuration names, and that its trials need on their worker."""

    #: As the plan names it: absolute.
    path: str
    #: Key of the content folder that it travels in, see `aeo.assets`.
    digest: str
    #: Its own name, in that folder.
    name: str
    #: Trials may write to it: each has a copy of its own.
    writable: bool = False
    #: It holds secrets: nobody else may read it, and it does not stay on a worker.
    private: bool = False


@dataclass(frozen=True, kw_only=True)
class Plan:
    """An evaluation resolved into trials."""

    trials: tuple[PlannedTrial, ...]
    #: Folders the trials need, one per digest.
    contents: tuple[ContentFolder, ...] = ()
    #: What the configuration names beside tasks; all trials need all of them.
    assets: tuple[Asset, ...] = ()
    #: What the executor needs again at merge time; JSON.
    header: Mapping[str, Any] = field(default_factory=dict)
    #: The executor's version that workers must match; empty if it has none.
    version: str = ""
    #: What a person should know: skipped task folders, settings that do not apply.
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What was asked and what it was resolved into; written once to ``evaluation.json``."""

    id: str
    spec: Spec
    plan: Plan
    submitted_at: datetime
    #: The job folder on the controller.
    job_dir: str = ""
    #: Name of the user who submitted it; empty if nobody was asked.
    owner: str = ""
    #: Id of the evaluation that this one reruns; empty if none.
    parent: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialSummary:
    """What came out of one trial, in the platform's words: one row of every table."""

    trial: str
    task: str
    outcome: Outcome
    #: Reward name to value; empty unless there is a valid reward.
    rewards: Mapping[str, float] = field(default_factory=dict)
    started_at: datetime | None = None
    finished_at: datetime | None = None
    #: Phase name to seconds, in the order they ran.
    phases: Mapping[str, float] = field(default_factory=dict)
    #: Input tokens, cached ones included; None is unknown.
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    #: US dollars as the executor reports them; None is unknown, never guessed.
    cost_usd: float | None = None
    error_type: str = ""
    error_message: str = ""
    #: Every recorded error type, the first first (a trial of several steps may have several).
    error_types: tuple[str, ...] = ()
    #: Whether running it again may help, where the infrastructure failed it.
    retryable: bool = True
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def seconds(self) -> float | None:
        """Wall time of the trial, if both ends are known."""
        if self.started_at is None or self.finished_at is None:
            return None
        return max(0.0, (self.finished_at - self.started_at).total_seconds())


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """A committed trial: its summary and where it came from."""

    summary: TrialSummary
    worker: str
    #: 1 for the first run of the trial, 2 after one requeue...
    attempt: int
    committed_at: datetime
    #: Files the transfer dropped or cut, for the trial's page.
    notes: tuple[str, ...] = ()
    #: Evaluation and trial, ``id/name``, that it was taken over from; empty: it ran for this evaluation.
    origin: str = ""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The share of one evaluation given to one slot of one worker: one message, one executor session."""

    id: str
    evaluation: str
    worker: str
    #: Celery message id, so that a lost message can be sent again as the same chord member.
    message: str = ""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The right to run one trial, until the lease ends."""

    evaluation: str
    trial: str
    batch: str
    worker: str
    #: Names this very run; a result is accepted under it.
    token: str
    #: 1 for the first run.
    attempt: int


@dataclass(frozen=True, kw_only=True)
class WorkerInfo:
    """What a worker says of itself at registration."""

    id: str
    display_name: str
    host: str
    capacity: Capacity
    #: Made anew at each start of the worker process.
    boot: str
    #: Lives in the worker's local root: tells a restart from a stranger with the same id.
    instance: str
    #: Executor name to version; "" when it has none.
    executors: Mapping[str, str] = field(default_factory=dict)
    #: The AEO version.
    version: str = ""
    #: Names of the secrets that stand in its environment, as far as its operator lets it tell them.
    variables: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What a worker last said, kept under a key that expires."""

    boot: str
    #: On the Redis server's clock.
    at: datetime
    #: Trials running now.
    busy: int = 0
    cpu_percent: float = 0.0
    memory_percent: float = 0.0
    #: Free bytes under the local root.
    disk_free: int = 0
    #: The worker claims nothing, and why ("draining", "disk nearly full").
    draining: str = ""
    #: Ids of the batches it works on.
    batches: tuple[str, ...] = ()
    #: Bytes of the disk that holds the local root; 0 is not told.
    disk_total: int = 0
    #: Seconds its clock is ahead of the Redis server's; None is not measured.
    clock_skew: float | None = None
    #: Container images it has; None without Docker.
    images: int | None = None
