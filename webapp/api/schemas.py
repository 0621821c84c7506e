"""What goes in and out of the API, for validation and for the OpenAPI document.

Answers are described by the model's own dataclasses, so the document cannot tell other than what `codec.encode` gives.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, RootModel, WithJsonSchema, model_validator

from aeo.core.alerts import Kind, Level
from aeo.core.allot import MOST_WEIGHT
from aeo.core.estimate import Range
from aeo.core.model import MOST_SLOTS, EvaluationState, Outcome, TrialState
from aeo.progress import EvaluationDetail, TrialView
from aeo.store.evaluations import EvaluationStatus
from aeo.store.workers import RemovedWorker
from aeo.summaries import SORTS
from aeo.workers import Removed, WorkerDetail, WorkerView

#: Most rows of one page.
LIMIT = 1000

Text = Annotated[str, Field(max_length=4096)]
Name = Annotated[str, Field(min_length=1, max_length=200)]


def _sort(name: str) -> str:
    if name not in SORTS:
        raise ValueError(f"is none of {', '.join(SORTS)}")
    return name


Sort = Annotated[str, AfterValidator(_sort), WithJsonSchema({"type": "string", "enum": list(SORTS)})]


class In(BaseModel):
    """A body: unknown keys and values of another type are errors, not guesses."""

    model_config = ConfigDict(extra="forbid", strict=True)


class SubmissionIn(In):
    text: str = Field("", description="The file as it is, YAML or JSON.")
    config: dict[str, Any] | None = Field(None, description="The same, parsed; instead of `text`.")
    file_name: Text = Field("", description="As the user named it; for messages.")
    working_dir: Text = Field("", description="Absolute folder on the controller that relative paths start from.")
    options: dict[str, Any] = Field({}, description="Header keys that win over the file's.")

    @model_validator(mode="after")
    def _one_source(self) -> SubmissionIn:
        if self.text and self.config is not None:
            raise ValueError("Give 'text' or 'config', not both.")
        return self


class CapacityIn(In):
    slots: int = Field(ge=1, le=MOST_SLOTS)
    cpus: float = Field(gt=0, le=1_000_000)
    memory_mb: int = Field(ge=0, le=1_000_000_000)
    disk_mb: int = Field(default=0, ge=0, le=1_000_000_000_000, description="MiB; 0 means not known.")
    overcommit: float = Field(default=1.0, gt=0, le=1000)


class WorkerIn(In):
    id: Name
    display_name: str = Field(max_length=200)
    host: str = Field(max_length=255)
    capacity: CapacityIn
    boot: Name = Field(description="Made anew at each start.")
    instance: Name = Field(description="Kept by the worker: tells a restart from a stranger with the same id.")
    executors: dict[Name, Annotated[str, Field(max_length=200)]] = Field(
        {}, max_length=50, description="Executor name to version."
    )
    version: str = Field("", max_length=100)
    variables: list[Name] = Field([], max_length=500, description="Names of secrets in its environment, no values.")


class WeightIn(In):
    weight: float | None = Field(ge=0, le=MOST_WEIGHT, allow_inf_nan=False, description="null: back to the capacity.")


class PauseIn(In):
    reason: str = Field("", max_length=1000, description="Why, for people; may be left out.")


class NoteIn(In):
    note: str = Field("", max_length=1000, description="Why, for people; may be left out.")


class RemoveQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    force: bool = Field(False, description="Also when it is alive and runs trials: they are given back.")


class Page(BaseModel):
    """A part of a list. A parameter given empty counts as not given, as HTML forms send them."""

    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=10**9)
    limit: int = Field(100, ge=1, le=LIMIT)

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in values.items() if value != ""}


class EvaluationsQuery(Page):
    state: EvaluationState | None = None
    search: str = Field("", max_length=200, description="Words of name, id, executor, owner, agents, models, datasets.")
    owner: str | None = Field(None, max_length=200)


class TrialsQuery(Page):
    outcome: Outcome | None = None
    task: str | None = None
    worker: str | None = None
    state: TrialState | None = None
    sort: Sort = "planned"
    descending: bool = False
    search: str = Field("", max_length=200, description="Part of trial, task, error type, worker, agent or model.")
    error: str | None = Field(None, description="An error type.")
    agent: str | None = None
    model: str | None = None
    dataset: str | None = None
    category: str | None = None
    difficulty: str | None = None


class HealthOut(BaseModel):
    status: str
    redis: bool
    version: str
    #: Names this run of the web process to whoever started it.
    instance: str = ""


class WorkersOut(BaseModel):
    workers: list[WorkerView]
    out: dict[str, str] = Field(default_factory=dict, description="Whom a person keeps out: `removed` or `revoked`.")


class WorkerOut(BaseModel):
    worker: WorkerView


class WorkerDetailOut(RootModel[WorkerDetail]):
    pass


class RemovedOut(BaseModel):
    removed: Removed


class RemovedWorkersOut(BaseModel):
    removed: list[RemovedWorker]
    revoked: list[str]


class RegisterQuery(BaseModel):
    again: bool = Field(False, description="The process has credentials already and keeps them.")


class AddressesOut(BaseModel):
    broker_url: str
    transfer_url: str
    transfer_password: str
    shared_root: str = Field(description="The same as a path, for who finds `shared_mark` in it.")
    shared_mark: str
    lease_seconds: float
    grace_seconds: float
    kept: bool = Field(description="It keeps the credentials it has; they are not told again.")


class EvaluationOut(BaseModel):
    evaluation: EvaluationStatus


class SubmittedOut(BaseModel):
    evaluation: EvaluationStatus
    warnings: list[str]


class EvaluationsOut(BaseModel):
    evaluations: list[EvaluationStatus]
    total: int


class TrialsOut(BaseModel):
    trials: list[TrialView]
    total: int


class DetailOut(RootModel[EvaluationDetail]):
    pass


class TrialOut(RootModel[TrialView]):
    pass


class SlotsOut(BaseModel):
    busy: int
    total: int


class AlertOut(BaseModel):
    kind: Kind
    level: Level
    text: str
    worker: str = Field(description="What it is about; empty where it is about none, as the next two.")
    evaluation: str
    trial: str
    since: datetime | None


class AlertsOut(BaseModel):
    alerts: list[AlertOut] = Field(description="The worst first.")


class DashboardOut(BaseModel):
    evaluations: list[EvaluationStatus] = Field(description="Not ended, newest first.")
    ends: dict[str, Range | None] = Field(description="By id: seconds to its end, as far as they can be told.")
    recent: list[EvaluationStatus] = Field(description="Ended last.")
    slots: SlotsOut = Field(description="Of the workers that are not lost.")
    queued_batches: int = Field(description="Waiting in the workers' queues.")
    pending_trials: int
    workers: dict[str, int] = Field(description="How many workers are in each state.")
    alerts: list[AlertOut] = Field(description="What to look at, the worst first.")


class ProblemItem(BaseModel):
    message: str
    field: str = ""
    fix: str = ""


class ProblemOut(BaseModel):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str
    problems: list[ProblemItem] = Field(description="What is wrong, where, and what to do.")
