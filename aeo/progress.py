"""Looking at evaluations: what the pages, the API and the command line show.

Results come from the summaries, which are brought in line first; where a trial without a result is, from the store.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from aeo import records, summaries, upkeep
from aeo.core import estimate
from aeo.core.errors import NotFound
from aeo.core.model import Claim, EvaluationState, Outcome, Spec, TrialRow, TrialState
from aeo.site import Site
from aeo.store import connection, limits
from aeo.store import evaluations as store
from aeo.store import trials as trial_store
from aeo.store.evaluations import BatchState, BatchStatus, EvaluationStatus
from aeo.store.trials import Running
from aeo.summaries import Line, counts


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
    #: Reward name to the ends of its 95 % interval; see `aeo.core.statistics`. Missing where nothing can be said.
    lows: Mapping[str, float] = field(default_factory=dict)
    highs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Relative:
    """An evaluation that reruns another one, or is rerun."""

    id: str
    #: Empty when it is not known any more.
    name: str = ""
    state: EvaluationState | None = None


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
    #: Seconds to the end; None when nothing runs, it is held up, or too few trials have ended to tell.
    eta_seconds: float | None = None
    #: Four of five times the end lies between these.
    eta_low_seconds: float | None = None
    eta_high_seconds: float | None = None
    #: The evaluation that this one reruns; None if it reruns none.
    parent: Relative | None = None
    #: Those that rerun this one, oldest first.
    reruns: tuple[Relative, ...] = ()


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


class Placed(NamedTuple):
    """A line of the summaries and where its trial is now."""

    line: Line
    state: TrialState
    #: While it runs or is pushed.
    claim: Claim | None


def detail(site: Site, id_or_name: str) -> EvaluationDetail:
    """Look at one evaluation.

    Raises:
        NotFound: there is none of this id or name.
    """
    status = found(site, id_or_name)
    asked = records.header(site.shared.evaluation(status.id))
    running = tuple(trial_store.running(site.db, status.id))
    batches = store.batches(site.db, status.id)
    end = _eta(site, status, running, batches)
    return EvaluationDetail(
        status=status,
        spec=asked.spec,
        warnings=asked.plan.warnings,
        job_dir=str(site.shared.job(status.name)),
        shares=_shares(site, status.id, running, batches),
        scores=_scores(summaries.scores(site.book, status.id)),
        running=running,
        eta_seconds=end.likely if end else None,
        eta_low_seconds=end.low if end else None,
        eta_high_seconds=end.high if end else None,
        parent=_parent(site, status),
        reruns=tuple(map(_relative, store.reruns(site.db, status.id))),
    )


def _parent(site: Site, status: EvaluationStatus) -> Relative | None:
    if not status.parent:
        return None
    known = store.several(site.db, [status.parent])
    return _relative(known[0]) if known else Relative(id=status.parent)


def _relative(status: EvaluationStatus) -> Relative:
    return Relative(id=status.id, name=status.name, state=status.state)


def found(site: Site, id_or_name: str) -> EvaluationStatus:
    """The status of one evaluation, with its summaries brought in line: what reads them by themselves calls this first.

    Raises:
        NotFound: there is none of this id or name.
        Unavailable: the store is away, or the summaries cannot be read.
    """
    status = store.find(site.db, id_or_name)
    upkeep.catch_up(site, status)
    return status


def eta(site: Site, status: EvaluationStatus) -> estimate.Range | None:
    """The time to an evaluation's end; None when it does not run, or too few trials have ended to tell."""
    if status.state is not EvaluationState.RUNNING:
        return None
    upkeep.catch_up(site, status)
    running = trial_store.running(site.db, status.id)
    return _eta(site, status, running, store.batches(site.db, status.id))


def _shares(site: Site, id: str, running: Iterable[Running], batches: Iterable[BatchStatus]) -> dict[str, Share]:
    numbers: dict[str, dict[str, int]] = {}

    def add(worker: str, what: str, count: int = 1) -> None:
        if worker:
            of_worker = numbers.setdefault(worker, {})
            of_worker[what] = of_worker.get(what, 0) + count

    for item in batches:
        add(item.batch.worker, "batches")
        add(item.batch.worker, "waiting", item.left)
    for run in running:
        add(run.claim.worker, "running")
    for worker, counted in summaries.worker_counts(site.book, id).items():
        add(worker, "done", counted.done)
    return {worker: Share(**values) for worker, values in sorted(numbers.items())}


def _scores(items: Iterable[summaries.Score]) -> tuple[Score, ...]:
    groups: dict[tuple[tuple[str, str], ...], list[summaries.Score]] = {}
    for item in items:
        groups.setdefault(tuple(item.labels.items()), []).append(item)
    return tuple(_score(dict(labels), rewards) for labels, rewards in groups.items())


def _score(labels: Mapping[str, str], rewards: Sequence[summaries.Score]) -> Score:
    known = sorted((item for item in rewards if item.mean is not None), key=lambda item: item.reward)
    return Score(
        labels=labels,
        means={item.reward: item.mean for item in known if item.mean is not None},
        counts={item.reward: item.count for item in known},
        scored=rewards[0].scored,
        planned=rewards[0].planned,
        lows={item.reward: item.low for item in known if item.low is not None},
        highs={item.reward: item.high for item in known if item.high is not None},
    )


def _eta(
    site: Site, status: EvaluationStatus, running: Sequence[Running], batches: Iterable[BatchStatus]
) -> estimate.Range | None:
    if status.state is not EvaluationState.RUNNING:
        return None
    durations = counts.durations(site.book, status.id)
    if len(durations) < estimate.ENOUGH:
        return None
    waiting = counts.waiting_estimates(site.book, status.id)
    now = connection.now(site.db)
    begun = [
        (waiting.pop(run.claim.trial), (now - run.started_at).total_seconds())
        for run in running
        if run.claim.trial in waiting
    ]
    # A batch is a slot: in use, or to be used once its worker gets to it.
    slots = [item for item in batches if item.state is not BatchState.ENDED]
    return estimate.between(
        list(waiting.values()),
        begun,
        slots=max(len(running), len(slots)),
        finished=durations,
        held=limits.held(site.db, status.id),
    )


def lines(
    site: Site,
    id_or_name: str,
    *,
    state: TrialState | None = None,
    worker: str | None = None,
    **asked: Any,
) -> tuple[list[Placed], int]:
    """A page of an evaluation's trials with where each is now, and how many match.

    ``asked`` is what `summaries.page` takes: paging, sorting, search and filters.

    Raises:
        NotFound: there is none of this id or name.
    """
    status = found(site, id_or_name)
    claims = trial_store.claims(site.db, status.id)
    if state is not None:
        asked |= _in_state(site, status.id, state, list(claims))
    if worker is not None:
        there = [name for name, claim in claims.items() if claim.worker == worker]
        asked |= {"worker": worker, "running_there": there}
    shown, total = summaries.page(site.book, status.id, **asked)
    return _placed(site, status.id, shown, claims), total


def _in_state(site: Site, id: str, state: TrialState, claimed: Sequence[str]) -> dict[str, Any]:
    """What `summaries.page` is to be asked for this state: it knows done from not done, the store knows the rest."""
    if state is TrialState.DONE:
        return {"done": True}
    states = trial_store.states_of(site.db, id, claimed)
    if state is TrialState.PENDING:
        held = [name for name, known in states.items() if known in (TrialState.RUNNING, TrialState.PUSHED)]
        return {"done": False, "without": held}
    return {"done": False, "only": [name for name, known in states.items() if known is state]}


def _placed(site: Site, id: str, shown: Sequence[Line], claims: Mapping[str, Claim]) -> list[Placed]:
    states = trial_store.states_of(site.db, id, [line.trial for line in shown if line.outcome is None])
    return [
        Placed(
            line,
            TrialState.DONE if line.outcome is not None else states.get(line.trial, TrialState.PENDING),
            claims.get(line.trial) if line.outcome is None else None,
        )
        for line in shown
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
    **asked: Any,
) -> tuple[list[TrialView], int]:
    """A page of an evaluation's trials in planned order, unless asked otherwise as in `lines`, and how many match.

    Raises:
        NotFound: there is none of this id or name.
    """
    shown, total = lines(
        site,
        id_or_name,
        state=state,
        worker=worker,
        **{"offset": offset, "limit": limit, "outcome": outcome, "task": task, **asked},
    )
    return list(map(_view, shown)), total


def trial(site: Site, id_or_name: str, name: str) -> TrialView:
    """One trial of an evaluation.

    Raises:
        NotFound: there is no such evaluation or trial.
    """
    return _view(line(site, id_or_name, name))


def line(site: Site, id_or_name: str, name: str) -> Placed:
    """The line of one trial with where it is now.

    Raises:
        NotFound: there is no such evaluation or trial.
    """
    status = found(site, id_or_name)
    known = summaries.one(site.book, status.id, name)
    if known is None:
        raise NotFound(f"evaluation {status.name} has no trial {name!r}.", field="name")
    claims = {} if known.outcome is not None else trial_store.claims(site.db, status.id)
    return _placed(site, status.id, [known], claims)[0]


def _view(placed: Placed) -> TrialView:
    line, state, claim = placed
    return TrialView(
        trial=line.trial,
        task=line.task,
        labels=line.labels,
        estimated_seconds=line.estimated_seconds,
        state=state,
        worker=claim.worker if claim else line.worker,
        attempt=claim.attempt if claim else line.run,
        row=summaries.row(line),
    )


def history(
    site: Site,
    *,
    search: str = "",
    state: EvaluationState | Collection[EvaluationState] | None = None,
    owner: str | None = None,
    offset: int = 0,
    limit: int = 25,
) -> tuple[list[EvaluationStatus], int]:
    """A page of all evaluations, newest first, and how many match.

    ``search``: every word of it is in the name, id, executor, owner, or an agent, model or dataset.

    Raises:
        Unavailable: the store is away, or the summaries cannot be read.
    """
    states = {state} if isinstance(state, EvaluationState) else set(state or ())
    if not search.strip() and owner is None and len(states) <= 1:
        return store.page(site.db, offset=offset, limit=limit, state=next(iter(states), None))
    ids = store.ids(site.db)
    if search.strip() or owner is not None:
        matching = set(summaries.search(site.book, text=search, owner=owner))
        ids = [id for id in ids if id in matching]
    if states:
        matching = {id for one in states for id in store.ids(site.db, one)}
        ids = [id for id in ids if id in matching]
    return store.several(site.db, ids[offset : offset + limit]), len(ids)
