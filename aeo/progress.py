"""Looking at evaluations: what the pages, the API and the command line show."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from aeo import records
from aeo.core import estimate
from aeo.core.errors import NotFound
from aeo.core.model import EvaluationState, Outcome, PlannedTrial, Spec, TrialRow, TrialState
from aeo.site import Site
from aeo.store import connection
from aeo.store import evaluations as store
from aeo.store import trials as trial_store
from aeo.store.evaluations import BatchState, EvaluationStatus
from aeo.store.trials import Running


@dataclass(frozen=True, kw_only=True)
class Share:
    """One worker's part of an evaluation."""

    batches: int = 0
    #: Trials still waiting in its batches' shares.
    waiting: int = 0
    running: int = 0
    done: int = 0


@dataclass(frozen=True, kw_only=True)
class Score:
    """The result of one agent and model on one dataset; never shown without its coverage."""

    labels: Mapping[str, str]
    #: Reward name to its mean over the scored trials that have it.
    means: Mapping[str, float]
    #: Reward name to how many trials that are: tasks may give different rewards.
    counts: Mapping[str, int]
    scored: int
    planned: int


@dataclass(frozen=True, kw_only=True)
class EvaluationDetail:
    """One evaluation, looked at closely."""

    status: EvaluationStatus
    spec: Spec
    warnings: tuple[str, ...]
    #: On the controller.
    job_dir: str
    shares: Mapping[str, Share]
    scores: tuple[Score, ...]
    running: tuple[Running, ...]
    #: Seconds to the end, at least; None when nothing runs, it is held up, or too few trials have ended to tell.
    eta_seconds: float | None = None


@dataclass(frozen=True, kw_only=True)
class TrialView:
    """One planned trial and where it is."""

    trial: str
    task: str
    state: TrialState
    labels: Mapping[str, str] = field(default_factory=dict)
    estimated_seconds: float = 0.0
    worker: str = ""
    attempt: int = 0
    #: Its committed result.
    row: TrialRow | None = None


def detail(site: Site, id_or_name: str) -> EvaluationDetail:
    """Look at one evaluation.

    Raises:
        NotFound: there is none of this id or name.
    """
    status = store.find(site.db, id_or_name)
    record = records.read(site.shared.evaluation(status.id))
    rows = trial_store.rows_since(site.db, status.id, 0)
    running = tuple(trial_store.running(site.db, status.id))
    return EvaluationDetail(
        status=status,
        spec=record.evaluation.spec,
        warnings=record.evaluation.plan.warnings,
        job_dir=str(site.shared.job(status.name)),
        shares=_shares(site, status.id, rows, running),
        scores=scores(record.trials.values(), rows),
        running=running,
        eta_seconds=_eta(site, status, record.trials, rows, running),
    )


def _shares(site: Site, id: str, rows: Iterable[TrialRow], running: Iterable[Running]) -> dict[str, Share]:
    counts: dict[str, dict[str, int]] = {}

    def add(worker: str, what: str, count: int = 1) -> None:
        if worker:
            of_worker = counts.setdefault(worker, {})
            of_worker[what] = of_worker.get(what, 0) + count

    for item in store.batches(site.db, id):
        add(item.batch.worker, "batches")
        add(item.batch.worker, "waiting", item.left)
    for run in running:
        add(run.claim.worker, "running")
    for row in rows:
        add(row.worker, "done")
    return {worker: Share(**values) for worker, values in sorted(counts.items())}


def scores(planned: Iterable[PlannedTrial], rows: Iterable[TrialRow]) -> tuple[Score, ...]:
    """Mean rewards by agent, model and dataset, each beside how many of the planned trials it rests on."""

    def group(labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
        return tuple((key, labels[key]) for key in ("agent", "model", "dataset") if labels.get(key))

    totals: dict[tuple[tuple[str, str], ...], int] = {}
    groups: dict[str, tuple[tuple[str, str], ...]] = {}
    for trial in planned:
        groups[trial.name] = group(trial.labels)
        totals[groups[trial.name]] = totals.get(groups[trial.name], 0) + 1
    values: dict[tuple[tuple[str, str], ...], list[Mapping[str, float]]] = {key: [] for key in totals}
    for row in rows:
        if row.summary.outcome is Outcome.SCORED and row.summary.trial in groups:
            values[groups[row.summary.trial]].append(row.summary.rewards)
    return tuple(_score(dict(key), got, totals[key]) for key, got in sorted(values.items()))


def _score(labels: Mapping[str, str], got: Sequence[Mapping[str, float]], planned: int) -> Score:
    by_name: dict[str, list[float]] = {}
    for rewards in got:
        for name, value in rewards.items():
            by_name.setdefault(name, []).append(value)
    return Score(
        labels=labels,
        means={name: fmean(by_name[name]) for name in sorted(by_name)},
        counts={name: len(by_name[name]) for name in sorted(by_name)},
        scored=len(got),
        planned=planned,
    )


def _eta(
    site: Site,
    status: EvaluationStatus,
    planned: Mapping[str, PlannedTrial],
    rows: Sequence[TrialRow],
    running: Sequence[Running],
) -> float | None:
    if status.state is not EvaluationState.RUNNING:
        return None
    factor = estimate.factor(_durations(planned, rows))
    if factor is None:
        return None
    now = connection.now(site.db)
    begun = {run.claim.trial: (now - run.started_at).total_seconds() for run in running}
    over = {row.summary.trial for row in rows}
    waiting = [trial.estimated_seconds for name, trial in planned.items() if name not in begun and name not in over]
    # A batch is a slot: in use, or to be used once its worker gets to it.
    batches = [item for item in store.batches(site.db, status.id) if item.state is not BatchState.ENDED]
    return estimate.remaining(
        waiting,
        [(planned[name].estimated_seconds, so_far) for name, so_far in begun.items() if name in planned],
        slots=max(len(running), len(batches)),
        factor=factor,
    )


def _durations(planned: Mapping[str, PlannedTrial], rows: Iterable[TrialRow]) -> list[tuple[float, float]]:
    """Actual and estimated seconds of the trials that ran to their end."""
    return [
        (row.summary.seconds, planned[row.summary.trial].estimated_seconds)
        for row in rows
        if row.summary.outcome in (Outcome.SCORED, Outcome.INVALID)
        and row.summary.seconds is not None
        and row.summary.trial in planned
    ]


def trials(
    site: Site,
    id_or_name: str,
    *,
    offset: int = 0,
    limit: int = 100,
    outcome: Outcome | None = None,
    task: str | None = None,
    worker: str | None = None,
    state: TrialState | None = None,
) -> tuple[list[TrialView], int]:
    """A page of an evaluation's trials in planned order, and how many match.

    Raises:
        NotFound: there is none of this id or name.
    """
    status = store.find(site.db, id_or_name)
    views = _views(site, status.id)
    wanted = [
        view
        for view in views
        if (task is None or view.task == task)
        and (worker is None or view.worker == worker)
        and (state is None or view.state is state)
        and (outcome is None or (view.row is not None and view.row.summary.outcome is outcome))
    ]
    return wanted[offset : offset + limit], len(wanted)


def trial(site: Site, id_or_name: str, name: str) -> TrialView:
    """One trial of an evaluation.

    Raises:
        NotFound: there is no such evaluation or trial.
    """
    status = store.find(site.db, id_or_name)
    for view in _views(site, status.id):
        if view.trial == name:
            return view
    raise NotFound(f"evaluation {status.name} has no trial {name!r}.", field="name")


def _views(site: Site, id: str) -> Iterable[TrialView]:
    record = records.read(site.shared.evaluation(id))
    rows = {row.summary.trial: row for row in trial_store.rows_since(site.db, id, 0)}
    running = {run.claim.trial: run.claim for run in trial_store.running(site.db, id)}
    states = trial_store.states(site.db, id)
    for planned in record.trials.values():
        row, claim = rows.get(planned.name), running.get(planned.name)
        yield TrialView(
            trial=planned.name,
            task=planned.task,
            labels=planned.labels,
            estimated_seconds=planned.estimated_seconds,
            state=states.get(planned.name, TrialState.PENDING),
            worker=row.worker if row else claim.worker if claim else "",
            attempt=row.attempt if row else claim.attempt if claim else 0,
            row=row,
        )
