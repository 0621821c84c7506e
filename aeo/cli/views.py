"""What the tables show, read from the API's JSON. Every text is safe for a terminal; what is missing has a default.

A controller of another version may say more, or less: what is shown must not depend on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from aeo.cli.answers import Body, clean
from aeo.core.errors import Unavailable
from aeo.core.model import EvaluationState, Outcome


@dataclass(frozen=True, kw_only=True)
class EvaluationView:
    """One evaluation, in short or (from its own address) in full."""

    id: str
    name: str
    state: str
    executor: str = ""
    reason: str = ""
    submitted_at: datetime | None = None
    finished_at: datetime | None = None
    total: int = 0
    pending: int = 0
    running: int = 0
    pushed: int = 0
    done: int = 0
    requeues: int = 0
    #: Outcome to number of trials, only those that occur, in the order of `Outcome`.
    outcomes: Mapping[str, int] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    job_dir: str = ""
    shares: tuple[ShareView, ...] = ()
    scores: tuple[ScoreView, ...] = ()
    runs: tuple[RunView, ...] = ()
    eta_seconds: float | None = None
    #: Id of the evaluation that it reruns; its name where it is told.
    parent: str = ""
    parent_name: str = ""
    #: What stops it early; empty if nothing does.
    rule: str = ""
    #: Those that rerun it: id, name, state.
    reruns: tuple[tuple[str, str, str], ...] = ()

    @property
    def final(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in {state.value for state in EvaluationState if state.final}

    @property
    def scored(self) -> int:
        """Trials with a valid reward."""
        return self.outcomes.get(Outcome.SCORED.value, 0)


@dataclass(frozen=True, kw_only=True)
class ShareView:
    """One worker's part of an evaluation."""

    worker: str
    waiting: int
    running: int
    done: int


@dataclass(frozen=True, kw_only=True)
class ScoreView:
    """Mean rewards of one agent and model on one dataset."""

    labels: Mapping[str, str]
    means: Mapping[str, float]
    #: Reward name to how many trials its mean rests on.
    counts: Mapping[str, float]
    scored: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class RunView:
    """A trial that runs now."""

    trial: str
    worker: str
    attempt: int
    phase: str
    started_at: datetime | None


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """One planned trial and, if it has one, its result."""

    trial: str
    task: str
    state: str
    worker: str
    attempt: int
    outcome: str
    rewards: Mapping[str, float]
    seconds: float | None
    error: str


@dataclass(frozen=True, kw_only=True)
class WorkerView:
    """A worker as the controller sees it."""

    id: str
    display_name: str
    state: str
    busy: int
    slots: int
    #: Its part when trials are shared out.
    weight: float
    #: A person set the weight; else it follows the capacity.
    weight_set: bool
    #: Batches waiting in its queue.
    queued: int
    cpus: float
    memory_mb: int
    cpu_percent: float | None
    memory_percent: float | None
    #: Seconds since it last spoke.
    heartbeat_age: float | None
    executors: Mapping[str, str]
    note: str


@dataclass(frozen=True, kw_only=True)
class RemovedView:
    """A worker that was removed."""

    id: str
    given_back: int
    alive: bool


@dataclass(frozen=True, kw_only=True)
class UserView:
    """A named user."""

    name: str
    role: str
    created_at: datetime | None
    #: Only where it was made just now.
    token: str = field(default="", repr=False)


def user(body: Body) -> UserView:
    """Read the answer to a change of one user."""
    part = _part(body, "user")
    return UserView(
        name=_text(part, "name"),
        role=_text(part, "role"),
        created_at=_time(part.get("created_at")),
        token=_text(body, "token"),
    )


def users(body: Body) -> tuple[UserView, ...]:
    """Read the list of users."""
    return tuple(user(item) for item in _objects(body, "users"))


@dataclass(frozen=True, kw_only=True)
class LimitView:
    """A limit of a model provider; 0 is none."""

    key: str
    running: int
    trials: int
    per_minute: float


def limits(body: Body) -> tuple[LimitView, ...]:
    """Read the list of limits."""
    return tuple(
        LimitView(
            key=_text(item, "key"),
            running=_count(item, "running"),
            trials=_count(_part(item, "limit", {}), "trials"),
            per_minute=_number(_part(item, "limit", {}), "per_minute") or 0.0,
        )
        for item in _objects(body, "limits")
    )


def evaluation(body: Body) -> EvaluationView:
    """Read an evaluation from a list, or the detail of one."""
    status = _part(body, "status")
    id = _text(status, "id")
    if not id:
        raise Unavailable("The controller's answer holds no evaluation; is it of another version?")
    outcomes = _part(status, "outcomes", {})
    return EvaluationView(
        id=id,
        name=_text(status, "name") or id,
        state=_text(status, "state"),
        executor=_text(status, "executor"),
        reason=_text(status, "reason"),
        submitted_at=_time(status.get("submitted_at")),
        finished_at=_time(status.get("finished_at")),
        outcomes={item.value: _count(outcomes, item.value) for item in Outcome if _count(outcomes, item.value)},
        warnings=tuple(clean(text) for text in _items(body, "warnings")),
        job_dir=_text(body, "job_dir"),
        shares=tuple(_share(clean(worker), item) for worker, item in _part(body, "shares", {}).items()),
        scores=tuple(_score(item) for item in _objects(body, "scores")),
        runs=tuple(_run(item) for item in _objects(body, "running")),
        eta_seconds=_number(body, "eta_seconds"),
        parent=_text(status, "parent"),
        rule=_rule(_part(_part(body, "spec", {}), "stop_when", {})),
        parent_name=_text(_part(body, "parent", {}), "name"),
        reruns=tuple((_text(item, "id"), _text(item, "name"), _text(item, "state")) for item in _reruns(body)),
        **{key: _count(status, key) for key in ("total", "pending", "running", "pushed", "done", "requeues")},
    )


def _rule(body: Body) -> str:
    sides = _items(body, "compare")
    what = f"{' or '.join(map(clean, sides))} is better" if sides else f"known to within {_number(body, 'interval')}"
    return f"{what} (min. {_count(body, 'min_trials')})" if body else ""


def evaluations(body: Body) -> tuple[EvaluationView, ...]:
    """Read a page of evaluations."""
    return tuple(evaluation(item) for item in _objects(body, "evaluations"))


def accepted(body: Body) -> EvaluationView:
    """Read the answer to a submission or a cancellation."""
    return evaluation({**_part(body, "evaluation"), "warnings": _items(body, "warnings")})


def trials(body: Body) -> tuple[TrialView, ...]:
    """Read a page of trials."""
    return tuple(_trial(item) for item in _objects(body, "trials"))


def workers(body: Body) -> tuple[WorkerView, ...]:
    """Read the list of workers."""
    return tuple(_worker(item) for item in _objects(body, "workers"))


def worker(body: Body) -> WorkerView:
    """Read the answer to a change of one worker."""
    return _worker(_part(body, "worker"))


def removed(body: Body) -> RemovedView:
    """Read the answer to a removal."""
    part = _part(body, "removed")
    return RemovedView(id=_text(part, "id"), given_back=_count(part, "given_back"), alive=part.get("alive") is True)


def total(body: Body) -> int:
    """How many items there are beyond this page."""
    return _count(body, "total")


def _share(worker: str, body: Any) -> ShareView:
    body = body if isinstance(body, dict) else {}
    return ShareView(worker=worker, **{key: _count(body, key) for key in ("waiting", "running", "done")})


def _score(body: Body) -> ScoreView:
    return ScoreView(
        labels={clean(key): clean(value) for key, value in _part(body, "labels", {}).items()},
        means=_numbers(body, "means"),
        counts=_numbers(body, "counts"),
        scored=_count(body, "scored"),
        planned=_count(body, "planned"),
    )


def _run(body: Body) -> RunView:
    claim = _part(body, "claim")
    return RunView(
        trial=_text(claim, "trial"),
        worker=_text(claim, "worker"),
        attempt=_count(claim, "attempt"),
        phase=_text(body, "phase"),
        started_at=_time(body.get("started_at")),
    )


def _trial(body: Body) -> TrialView:
    row = _part(body, "row", {})
    summary = _part(row, "summary", {})
    begun, ended = _time(summary.get("started_at")), _time(summary.get("finished_at"))
    return TrialView(
        trial=_text(body, "trial"),
        task=_text(body, "task"),
        state=_text(body, "state"),
        worker=_text(body, "worker") or _text(row, "worker"),
        attempt=_count(body, "attempt") or _count(row, "attempt"),
        outcome=_text(summary, "outcome"),
        rewards=_numbers(summary, "rewards"),
        seconds=max(0.0, (ended - begun).total_seconds()) if begun and ended else None,
        error=_text(summary, "error_type"),
    )


def _worker(body: Body) -> WorkerView:
    info, heartbeat = _part(body, "info"), _part(body, "heartbeat", {})
    capacity = _part(info, "capacity", {})
    return WorkerView(
        id=_text(info, "id"),
        display_name=_text(info, "display_name"),
        state=_text(body, "state"),
        busy=_count(body, "busy") or _count(heartbeat, "busy"),
        slots=_count(capacity, "slots"),
        weight=_number(body, "weight") or 0.0,
        weight_set=_number(body, "weight_override") is not None,
        queued=_count(body, "queued"),
        cpus=_number(capacity, "cpus") or 0.0,
        memory_mb=_count(capacity, "memory_mb"),
        cpu_percent=_number(heartbeat, "cpu_percent"),
        memory_percent=_number(heartbeat, "memory_percent"),
        heartbeat_age=_number(body, "heartbeat_age"),
        executors={clean(key): clean(value) for key, value in _part(info, "executors", {}).items()},
        note=_text(body, "note") or _text(heartbeat, "draining"),
    )


def _part(body: Body, key: str, default: Body | None = None) -> Body:
    """The object under ``key``; without one, ``default`` or (a flat answer) the body itself."""
    value = body.get(key)
    if isinstance(value, dict):
        return value
    return body if default is None else default


def _items(body: Body, key: str) -> list[Any]:
    value = body.get(key)
    return value if isinstance(value, list) else []


def _objects(body: Body, key: str) -> list[Body]:
    return [item for item in _items(body, key) if isinstance(item, dict)]


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    return "" if value is None or isinstance(value, (dict, list)) else clean(value)


def _number(body: Body, key: str) -> float | None:
    value = body.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(body: Body, key: str) -> int:
    return int(_number(body, key) or 0)


def _numbers(body: Body, key: str) -> dict[str, float]:
    values = _part(body, key, {})
    return {clean(name): number for name in values if (number := _number(values, name)) is not None}


def _reruns(body: Body) -> list[Body]:
    """Older controllers tell nothing of them."""
    return _objects(body, "reruns") if "reruns" in body else []


def _time(value: Any) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(value).replace("Z", "+00:00"))
    except ValueError:
        return None
    return time if time.tzinfo else time.replace(tzinfo=timezone.utc)
