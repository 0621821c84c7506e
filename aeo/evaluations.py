"""Submit, cancel, look at an evaluation."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from aeo import contents, dispatch, executors, records, submission
from aeo.core import estimate
from aeo.core.allot import Allotment, Offer, allot
from aeo.core.errors import Conflict, InputError, Problem
from aeo.core.model import Batch, Evaluation, EvaluationState, Needs, Plan, PlannedTrial, Spec, WorkerState
from aeo.core.names import check_name
from aeo.executors import Executor
from aeo.layout import inside
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import history, trials, workers
from aeo.store.evaluations import EvaluationStatus
from aeo.store.workers import WorkerStatus
from aeo.submission import Submission

#: A run's folder and manifest are named after the trial, its token and an ending, and names have 200 characters.
LONGEST_TRIAL_NAME = 160


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submission taken."""

    evaluation: Evaluation
    status: EvaluationStatus
    warnings: tuple[str, ...]


def submit(site: Site, request: Submission) -> Submitted:
    """Plan, share out and dispatch. Everything is checked before anything is made; a failure leaves nothing.

    Raises:
        InputError: the request cannot be run as it is (one problem per fault).
        Conflict: its job folder exists, or an evaluation of this name runs.
        Unavailable: the store or the executor is away.
    """
    spec, file = submission.read(request)
    executor = executors.load(spec.executor)
    id = secrets.token_hex(6)
    spec = replace(spec, name=spec.name or _name(executor, spec, id))
    _check_free(site, spec.name)
    pool = _online(workers.all(site.db), spec)
    plan = _estimated(site, spec, _check_plan(executor.plan(spec, file)))
    shares = share_out(plan.trials, _matching(pool, spec, plan), spec)
    evaluation = Evaluation(
        id=id,
        spec=spec,
        plan=plan,
        submitted_at=datetime.now(timezone.utc),
        job_dir=str(site.shared.job(spec.name)),
    )
    _create(site, executor, evaluation, shares)
    return Submitted(evaluation=evaluation, status=store.get(site.db, id), warnings=plan.warnings)


def _name(executor: Executor, spec: Spec, id: str) -> str:
    asked = executor.config_name(spec.config)
    if asked:
        return check_name(asked, "job name", field="job_name")
    return f"{datetime.now(timezone.utc):%Y-%m-%d--%H-%M-%S}-{id[:4]}"


def _check_free(site: Site, name: str) -> None:
    job_dir = site.shared.job(name)
    if job_dir.exists():
        raise Conflict(
            f"the job folder {job_dir} exists already.",
            field="name",
            fix="Choose another name, or move the folder away.",
        )


def usable(pool: Sequence[WorkerStatus], spec: Spec, plan: Plan) -> list[WorkerStatus]:
    """Workers of ``pool`` that may take a share: asked for, online, and with the executor in the plan's version.

    Raises:
        InputError: there is none; says why not for each.
    """
    return _matching(_online(pool, spec), spec, plan)


def _online(pool: Sequence[WorkerStatus], spec: Spec) -> list[WorkerStatus]:
    known = {worker.info.id: worker for worker in pool}
    for id in spec.workers:
        if id not in known:
            raise InputError(
                f"no worker {id!r} is registered.", field="workers", fix=f"Known: {', '.join(sorted(known)) or 'none'}."
            )
    asked = [known[id] for id in spec.workers] or list(known.values())
    online = [worker for worker in asked if worker.state is WorkerState.ONLINE]
    if not online:
        states = ", ".join(f"{worker.info.id} is {worker.state.value}" for worker in asked)
        raise InputError(
            f"no worker is online ({states or 'none has registered'}).",
            field="workers",
            fix="Start one with `aeo worker --controller-url ...`, or resume one.",
        )
    return online


def _check_plan(plan: Plan) -> Plan:
    if not plan.trials:
        raise InputError("no task is left to run.", fix="Check the task filters and the dataset's path.")
    seen: set[str] = set()
    for trial in plan.trials:
        check_name(trial.name, "trial name")
        if len(trial.name) > LONGEST_TRIAL_NAME:
            raise InputError(f"the trial name {trial.name!r} is longer than {LONGEST_TRIAL_NAME} characters.")
        if trial.name in seen:
            raise InputError(f"two trials are named {trial.name!r}.")
        seen.add(trial.name)
    return plan


def _estimated(site: Site, spec: Spec, plan: Plan) -> Plan:
    past = history.durations(site.db, spec.executor, (trial.history_key for trial in plan.trials))
    if not past:
        return plan
    return replace(
        plan,
        trials=tuple(
            replace(t, estimated_seconds=estimate.seconds(t.estimated_seconds, past.get(t.history_key, ())))
            for t in plan.trials
        ),
    )


def _matching(pool: Sequence[WorkerStatus], spec: Spec, plan: Plan) -> list[WorkerStatus]:
    """Workers that have the executor, in the plan's version."""
    fits = [w for w in pool if w.info.executors.get(spec.executor) == plan.version]
    if fits:
        return fits
    problems = []
    for worker in pool:
        has = worker.info.executors.get(spec.executor)
        what = f"has no {spec.executor}" if has is None else f"has {spec.executor} {has}, not {plan.version}"
        problems.append(
            Problem(
                field=f"worker {worker.info.id}",
                message=f"{what}.",
                fix=f"Install {spec.executor} {plan.version} there and restart the worker.",
            )
        )
    raise InputError(problems=tuple(problems))


def share_out(planned: Sequence[PlannedTrial], pool: Sequence[WorkerStatus], spec: Spec) -> Allotment:
    """Allot over these workers.

    Raises:
        InputError: a trial fits no worker; says which need is unmet.
    """
    offers = [Offer(worker=w.info.id, capacity=w.info.capacity, weight=w.weight_override) for w in pool]
    result = allot(planned, offers, spec.per_worker_concurrency)
    if not result.homeless:
        return result
    if all(offer.weight == 0 for offer in offers):
        raise InputError("every worker has weight 0.", field="workers", fix="Set a weight with `aeo workers weight`.")
    homeless = set(result.homeless)
    lost = [trial for trial in planned if trial.name in homeless]
    raise InputError(problems=tuple(_unmet(trial, offers) for trial in {t.task: t for t in lost}.values()))


def _unmet(trial: PlannedTrial, offers: Sequence[Offer]) -> Problem:
    most = {offer.worker: offer.capacity for offer in offers if offer.weight != 0}
    needs: Needs = trial.needs
    cpus = max((c.cpus for c in most.values()), default=0)
    memory = max((c.memory_mb for c in most.values()), default=0)
    wants = []
    if needs.cpus > cpus:
        wants.append(f"{needs.cpus:g} cpus, the largest worker has {cpus:g}")
    if needs.memory_mb > memory:
        wants.append(f"{needs.memory_mb} MiB memory, the largest worker has {memory} MiB")
    return Problem(
        field=f"task {trial.task}",
        message=f"fits no worker: it needs {'; '.join(wants) or 'cpus and memory no one worker has together'}.",
        fix="Leave it out, lower what it declares, or add a larger worker.",
    )


def batches_of(evaluation: str, shares: Allotment) -> dict[Batch, Sequence[str]]:
    """Name the batches of an allotment."""
    return {
        Batch(id=f"{evaluation}-{secrets.token_hex(4)}", evaluation=evaluation, worker=worker): names
        for worker, slots in shares.shares.items()
        for names in slots
    }


def _create(site: Site, executor: Executor, evaluation: Evaluation, shares: Allotment) -> None:
    """Make all that an evaluation is, or nothing."""
    id, name = evaluation.id, evaluation.spec.name
    staging = inside(site.shared.evaluations, f"new.{id}")
    folder, job_dir = site.shared.evaluation(id), site.shared.job(name)
    with ExitStack() as undo:
        undo.callback(shutil.rmtree, staging, ignore_errors=True)
        staging.mkdir()
        records.write(staging, evaluation)
        for content in evaluation.plan.contents:
            contents.publish(site.shared, content)
        try:
            job_dir.mkdir()
        except FileExistsError:
            _check_free(site, name)
            raise
        undo.callback(shutil.rmtree, job_dir, ignore_errors=True)
        executor.start_job(evaluation, job_dir)
        staging.rename(folder)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        batches = batches_of(id, shares)
        undo.callback(_forget, site, id)
        store.save(site.db, evaluation, batches, shares.unfit)
        dispatch.send(site, id, list(batches), priority=evaluation.spec.priority)
        undo.pop_all()


def _forget(site: Site, id: str) -> None:
    # The store may be what failed; what it kept then is swept by recovery, which finds no folder.
    with suppress(Exception):
        store.delete(site.db, id)


def cancel(site: Site, id_or_name: str) -> EvaluationStatus:
    """Stop an evaluation: what waits never runs, what runs is stopped, what is finished is merged.

    Raises:
        NotFound: there is none of this id or name.
        Conflict: it has ended already.
    """
    status = store.find(site.db, id_or_name)
    if status.state is EvaluationState.CANCELLING:
        return status
    if not store.move(site.db, status.id, EvaluationState.CANCELLING, "cancelled by a person"):
        now = store.get(site.db, status.id).state
        raise Conflict(f"evaluation {status.name} is {now.value}.", field="id", fix="Only a running one is cancelled.")
    trials.cancel_pending(site.db, status.id)
    status = store.get(site.db, status.id)
    if status.done == status.total:
        dispatch.ring(site, status.id)
    return status
