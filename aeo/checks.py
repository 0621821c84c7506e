"""What would come of a submission, without making anything."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from aeo import assets, evaluations, executors, sharing, submission
from aeo.core import bounds, simulate
from aeo.core.allot import Allotment
from aeo.core.choose import covers
from aeo.core.entered import model_of
from aeo.core.errors import InputError, Problem
from aeo.core.estimate import Basis
from aeo.core.model import Plan, PlannedTrial, Spec
from aeo.core.pool import Limit
from aeo.core.simulate import Machine, Work
from aeo.core.words import count
from aeo.evaluations import Inherit, Legacy
from aeo.executors import Executor, source
from aeo.secrets import needs
from aeo.site import Site
from aeo.store import limits, workers
from aeo.store.workers import WorkerStatus
from aeo.submission import Submission

_T = TypeVar("_T")
#: Most trials, and most trials times slots, that are played through: a second or two.
_PLAYED = 10_000, 1_000_000
#: The same under limits, where whoever waits for one looks again and again.
_PLAYED_HELD = 5_000, 200_000
#: Stands for the evaluation's id, of which a name by the time has four characters.
_ID = "0000"


@dataclass(frozen=True, kw_only=True)
class AgentTrials:
    """How many trials one agent with one model gets."""

    agent: str
    model: str
    trials: int


@dataclass(frozen=True, kw_only=True)
class WorkerShare:
    """What one worker would get."""

    worker: str
    trials: int
    #: Trials it would run at once for this evaluation.
    slots: int
    #: Trials of any evaluation it runs now: its slots may have to be waited for.
    busy: int
    #: Seconds its share needs on its fullest slot, before faster workers help, and under the limits of model providers;
    #: None is unknown.
    estimated_seconds: float | None


@dataclass(frozen=True, kw_only=True)
class Unfit:
    """A worker that gets nothing, or not everything."""

    worker: str
    reason: str
    #: Trials it cannot take.
    trials: int


@dataclass(frozen=True, kw_only=True)
class Check:
    """What a submission would become. Without problems it would be accepted now."""

    executor: str = ""
    version: str = ""
    #: Of the evaluation and its job folder; empty: it will get one by the time.
    name: str = ""
    trials: int = 0
    tasks: int = 0
    #: Trials whose result is taken over from an earlier evaluation: they are not run, and in no share.
    carried: int = 0
    agents: tuple[AgentTrials, ...] = ()
    shares: tuple[WorkerShare, ...] = ()
    #: Seconds from start to end on these slots when they are free; None is unknown: too few of its tasks ran before.
    estimated_seconds: float | None = None
    #: Trials whose task ran before, so that its duration is known.
    known: int = 0
    #: Keys of the limits of model providers that its trials are under; the time is told as if it had them alone.
    limits: tuple[str, ...] = ()
    unfit: tuple[Unfit, ...] = ()
    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()


class _Problems(list[Problem]):
    """The faults found so far."""

    def of(self, step: Callable[[], _T]) -> _T | None:
        """Take a step; None, and its faults kept, when it fails."""
        try:
            return step()
        except InputError as error:
            self.extend(error.problems)
            return None


def check(site: Site, request: Submission, *, inherit: Inherit = evaluations.nothing) -> Check:
    """Plan a submission and share it out, as submitting would, and tell all that is wrong with it. Makes nothing.

    ``inherit`` says which results of an earlier evaluation would be taken over.

    Raises:
        Unavailable: the store or the executor is away.
    """
    problems = _Problems()
    found = _check(site, request, problems, inherit)
    return replace(found, problems=tuple(_placed(problem, request) for problem in problems))


def _check(site: Site, request: Submission, problems: _Problems, inherit: Inherit) -> Check:
    read = problems.of(lambda: submission.look(request))
    if read is None:
        return Check()
    spec, file, faults = read
    problems.extend(faults)
    executor = problems.of(lambda: executors.load(spec.executor))
    if executor is None:
        return Check(executor=spec.executor)
    name = problems.of(lambda: evaluations.name_of(executor, spec, _ID))
    # Otherwise it gets one by the time, when it is submitted.
    given = name if spec.name or executor.config_name(spec.config) else ""
    if given:
        problems.of(lambda: evaluations.check_free(site, given))
    spec = replace(spec, name=name or _ID)
    # Every worker is looked at where one that is named does not exist.
    pool = problems.of(lambda: sharing.asked(workers.all(site.db), spec, lambda: sharing.kept_out(site)))
    taking = None if pool is None else problems.of(lambda: sharing.taking_work(pool, lambda: sharing.kept_out(site)))
    plan = problems.of(lambda: evaluations.check_plan(executor.plan(spec, file)))
    found = Check(executor=spec.executor, name=given or "")
    settled, sound = _secrets(site, executor, spec, plan, taking or pool or (), problems)
    spec = settled
    # What nobody has is told once.
    elsewhere = needs.elsewhere(site, settled) if sound else frozenset()
    if plan is None:
        return replace(found, unfit=_unfit(pool or (), spec, None, {}, elsewhere))
    whole = plan
    problems.of(lambda: evaluations.check_rule(spec, whole))
    whole = plan = problems.of(lambda: assets.joined(site, executor, spec, file, whole)) or whole
    legacy = problems.of(lambda: inherit(executor, spec, whole)) or Legacy()
    found = replace(
        found,
        version=plan.version,
        trials=len(plan.trials),
        tasks=len({trial.history_key for trial in plan.trials}),
        carried=len(legacy.trials),
        agents=_agents(plan),
        warnings=(
            *plan.warnings,
            *needs.advice(site, executor, spec, plan, taking or pool or ()),
            *legacy.warnings,
        ),
    )
    plan = evaluations.to_run(plan, legacy)
    usable = None if taking is None else problems.of(lambda: sharing.matching(taking, spec, plan, elsewhere))
    if usable is None:
        return replace(found, unfit=_unfit(pool or (), spec, plan, {}, elsewhere))
    planned = evaluations.estimated(site, spec, plan).trials
    problems.of(lambda: sharing.share_out(planned, usable, spec))
    shares = sharing.allot_over(planned, usable, spec)
    unfit = _unfit(pool or (), spec, plan, shares.unfit, elsewhere)
    return _timed(site, spec, plan, shares, replace(found, unfit=unfit), usable)


def _secrets(
    site: Site, executor: Executor, spec: Spec, plan: Plan | None, pool: Sequence[WorkerStatus], problems: _Problems
) -> tuple[Spec, bool]:
    """The spec with all the secrets it needs, and whether each is set somewhere."""
    settled, before = needs.settled(executor, spec, plan), len(problems)
    problems.of(lambda: needs.check(site, executor, settled, plan, pool))
    return settled, len(problems) == before


def _agents(plan: Plan) -> tuple[AgentTrials, ...]:
    counts = Counter((trial.labels.get("agent", ""), trial.labels.get("model", "")) for trial in plan.trials)
    return tuple(AgentTrials(agent=agent, model=model, trials=count) for (agent, model), count in counts.items())


def _unfit(
    pool: Sequence[WorkerStatus],
    spec: Spec,
    plan: Plan | None,
    unfit: Mapping[str, frozenset[str]],
    elsewhere: Collection[str],
) -> tuple[Unfit, ...]:
    found = []
    total = len(plan.trials) if plan else 0
    for worker in pool:
        number = len(unfit.get(worker.info.id, ()))
        lacks = sharing.lacks(worker, spec.executor, plan.version if plan else None)
        lacks = lacks or sharing.lacks_variables(worker, elsewhere)
        if not sharing.takes_work(worker):
            reason, number = sharing.standing(worker), total
        elif lacks:
            reason, number = lacks, total
        elif worker.weight_override == 0:
            reason, number = "has weight 0", total
        elif plan and number:
            most = _largest([trial for trial in plan.trials if trial.name in unfit[worker.info.id]])
            capacity = worker.info.capacity
            has = f"it has {count(capacity.cpus, 'cpu')} and {capacity.memory_mb} MiB"
            reason = f"cannot hold {number} of {count(total, 'trial')}: they need up to {most}, {has}"
        else:
            continue
        found.append(Unfit(worker=worker.info.id, reason=reason, trials=number))
    return tuple(found)


def _largest(trials: Sequence[PlannedTrial]) -> str:
    cpus = max(trial.needs.cpus for trial in trials)
    return f"{count(cpus, 'cpu')} and {max(trial.needs.memory_mb for trial in trials)} MiB"


def _timed(site: Site, spec: Spec, plan: Plan, shares: Allotment, found: Check, pool: Sequence[WorkerStatus]) -> Check:
    known, expected = _durations(site, spec, plan)
    held = _limits(site, plan)
    models = {trial.name: model_of(trial) for trial in plan.trials}
    busy = {worker.info.id: worker.busy for worker in pool}
    given = tuple(
        WorkerShare(
            worker=worker,
            trials=sum(map(len, batches)),
            slots=len(batches),
            busy=busy[worker],
            estimated_seconds=_share_seconds(batches, expected, models, held) if expected else None,
        )
        for worker, batches in shares.shares.items()
    )
    seconds = _makespan(plan, spec, expected, pool, held)
    return replace(found, shares=given, estimated_seconds=seconds, known=known, limits=tuple(held))


def _limits(site: Site, plan: Plan) -> dict[str, Limit]:
    """Those that hold for its trials."""
    models = {model_of(trial) for trial in plan.trials}
    return {key: one for key, one in limits.of(site.db).items() if any(covers(key, model) for model in models)}


def _share_seconds(
    batches: Sequence[Sequence[str]],
    expected: Mapping[str, float],
    models: Mapping[str, str],
    held: Mapping[str, Limit],
) -> float:
    names = [name for batch in batches for name in batch]
    least = [
        bounds.limited([expected[name] for name in names if covers(key, models[name])], limit)
        for key, limit in held.items()
    ]
    return max([0.0, *(sum(expected[name] for name in batch) for batch in batches), *least])


def _makespan(
    plan: Plan,
    spec: Spec,
    expected: Mapping[str, float],
    pool: Sequence[WorkerStatus],
    held: Mapping[str, Limit],
) -> float | None:
    """Seconds from start to end on these workers when nothing else runs there or has the model providers' limits:
    played through, or the least possible where there are so many trials that both are alike."""
    if not expected:
        return None
    machines = [
        Machine(
            name=worker.info.id,
            slots=worker.info.capacity.slots,
            capacity=worker.info.capacity,
            weight=worker.weight_override,
            speed=worker.speed,
        )
        for worker in pool
    ]
    trials = [replace(trial, estimated_seconds=expected[trial.name]) for trial in plan.trials]
    work = Work(trials=trials, limit=spec.per_worker_concurrency)
    taking = [machine for machine in machines if machine.weight != 0]
    if _is_long(work, taking, held):
        return max(1.0, bounds.bound_of(work, taking, held))
    return max(1.0, simulate.simulate([work], machines, limits=held).makespan)


def _is_long(work: Work, taking: Sequence[Machine], held: Mapping[str, Limit]) -> bool:
    """Whether it takes too long to play it through for whoever waits for the answer."""
    most, most_looks = _PLAYED_HELD if held else _PLAYED
    slots = sum(machine.slots if work.limit is None else min(work.limit, machine.slots) for machine in taking)
    number = len(work.trials)
    return number > most or number * min(slots, number) > most_looks


def _durations(site: Site, spec: Spec, plan: Plan) -> tuple[int, Mapping[str, float]]:
    """How many trials' tasks ran before, and what each trial is expected to take; empty when that is not known.

    What a plan says may come from a time-out alone, so it counts only by how far it was off where the truth is known.
    """
    found = evaluations.expected(site, spec, plan.trials)
    known = sum(item.basis in (Basis.SAME, Basis.TASK) for item in found.values())
    if any(item.basis is Basis.PLAN for item in found.values()):
        return known, {}
    return known, {name: item.seconds for name, item in found.items()}


def _placed(problem: Problem, request: Submission) -> Problem:
    """With the line, for a key of our header that stands in the text."""
    if problem.field not in submission.HEADER or not request.text or problem.field in request.options:
        return problem
    return replace(problem, field=source.place(request.file_name, request.text, (problem.field,)))
