"""Who takes a share of an evaluation, and which: workers that are asked for, take work, and have what it needs."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence

from aeo import credentials
from aeo.core import stopping
from aeo.core.allot import Allotment, Offer, allot
from aeo.core.errors import InputError, Problem
from aeo.core.model import Batch, Plan, PlannedTrial, Spec, WorkerState
from aeo.site import Site
from aeo.store import workers as store
from aeo.store.workers import WorkerStatus


def usable(pool: Sequence[WorkerStatus], spec: Spec, plan: Plan, variables: Collection[str] = ()) -> list[WorkerStatus]:
    """Workers of ``pool`` that may take a share now: asked for, taking work, with the executor in the plan's version.

    ``variables`` are secrets that they must have in their own environment.

    Raises:
        InputError: there is none; says why not for each.
    """
    asked_for = [w for w in pool if not spec.workers or w.info.id in spec.workers]
    return matching(taking_work(asked_for), spec, plan, variables)


def asked(
    pool: Sequence[WorkerStatus], spec: Spec, out: Callable[[], Mapping[str, str]] = dict[str, str]
) -> list[WorkerStatus]:
    """The workers that are asked for; every one where none is named.

    Raises:
        InputError: one is not registered.
    """
    known = {worker.info.id: worker for worker in pool}
    for id in spec.workers:
        if id not in known and (how := out().get(id)):
            fix = f"Let it in again: aeo workers allow {id}"
            raise InputError(f"worker {id!r} is {how}.", field="workers", fix=fix)
        if id not in known:
            raise InputError(
                f"no worker {id!r} is registered.", field="workers", fix=f"Known: {', '.join(sorted(known)) or 'none'}."
            )
    return [known[id] for id in spec.workers] or list(known.values())


def takes_work(worker: WorkerStatus) -> bool:
    """Whether a worker would claim trials now."""
    return worker.state is WorkerState.ONLINE and not (worker.heartbeat and worker.heartbeat.draining)


def kept_out(site: Site) -> dict[str, str]:
    """Workers that a person keeps out, by id: ``removed`` or ``revoked``; none that came back since."""
    present = {worker.info.id for worker in store.all(site.db)}
    removed = {item.id for item in store.removed(site.db)} - present
    found = {**dict.fromkeys(removed, "removed"), **dict.fromkeys(credentials.read(site).revoked, "revoked")}
    return dict(sorted(found.items()))


def taking_work(
    pool: Sequence[WorkerStatus], out: Callable[[], Mapping[str, str]] = dict[str, str]
) -> list[WorkerStatus]:
    """The workers that would claim trials now; ``out`` tells who is kept out.

    Raises:
        InputError: none would; says why not for each.
    """
    online = [worker for worker in pool if takes_work(worker)]
    if not online:
        outside = out()
        reasons = [*(f"{worker.info.id} is {standing(worker)}" for worker in pool), *outsiders(outside)]
        allow = f", or let one in again with `aeo workers allow {next(iter(outside))}`" if outside else ""
        raise InputError(
            f"no worker is online ({', '.join(reasons) or 'none has registered'}).",
            field="workers",
            fix=f"Start one with `aeo worker --controller-url ...`, or resume one with `aeo workers resume ID`{allow}.",
        )
    return online


def outsiders(out: Mapping[str, str]) -> list[str]:
    """Say of each who is kept out how: ``gpu-1 is revoked``."""
    return [f"{id} is {how}" for id, how in out.items()]


def standing(worker: WorkerStatus) -> str:
    """Why a worker claims nothing: ``lost``, ``paused: its disk is changed``."""
    why = worker.note or (worker.heartbeat.draining if worker.heartbeat else "")
    state = worker.state.value if worker.state is not WorkerState.ONLINE else "not taking work"
    return state + (f": {why}" if why else "")


def matching(
    pool: Sequence[WorkerStatus], spec: Spec, plan: Plan, variables: Collection[str] = ()
) -> list[WorkerStatus]:
    """Workers that have the executor, in the plan's version, and these secrets in their own environment.

    Raises:
        InputError: none has; says for each what it lacks.
    """
    missing = {worker.info.id: lacks(worker, spec.executor, plan.version) for worker in pool}
    out = {worker.info.id for worker in pool if spec.executor in worker.paused_executors}
    fits = [worker for worker in pool if not missing[worker.info.id]]
    having = [worker for worker in fits if not lacks_variables(worker, variables)]
    if having:
        return having
    if fits:
        lacking = "; ".join(f"{worker.info.id} {lacks_variables(worker, variables)}" for worker in fits)
        fix = "Set them once for all with `aeo secrets set`, or all of them on one worker and restart it."
        raise InputError(f"are neither on the controller nor all on one worker: {lacking}.", field="secrets", fix=fix)
    raise InputError(
        problems=tuple(
            Problem(
                field=f"worker {id}",
                message=f"{what}.",
                fix=f"Look after it, then: aeo workers resume {id}"
                if id in out
                else f"Install {spec.executor} {plan.version} there and restart the worker.",
            )
            for id, what in missing.items()
        )
    )


def lacks(worker: WorkerStatus, executor: str, version: str | None) -> str:
    """What a worker has not got of an executor in this version (None: in any); "" when it has it."""
    has = worker.info.executors.get(executor)
    if has is None:
        return f"has no {executor}"
    if executor in worker.paused_executors:
        return f"has paused {executor}: {worker.paused_executors[executor]}"
    return "" if version is None or has == version else f"has {executor} {has}, not {version}"


def lacks_variables(worker: WorkerStatus, names: Collection[str]) -> str:
    """Which of these secrets a worker has not in its environment, as a sentence goes on; "" when it has them all."""
    missing = sorted(set(names) - set(worker.info.variables))
    return f"has no {', '.join(missing)} in its environment" if missing else ""


def share_out(planned: Sequence[PlannedTrial], pool: Sequence[WorkerStatus], spec: Spec) -> Allotment:
    """Allot all of these trials over these workers.

    Raises:
        InputError: a trial fits no worker; says which need is unmet.
    """
    result = allot_over(planned, pool, spec)
    if not result.homeless:
        return result
    if all(worker.weight_override == 0 for worker in pool):
        raise InputError("every worker has weight 0.", field="workers", fix="Set a weight with `aeo workers weight`.")
    homeless = set(result.homeless)
    by_task = {trial.task: trial for trial in planned if trial.name in homeless}
    raise InputError(problems=tuple(_unmet(trial, pool) for trial in by_task.values()))


def allot_over(planned: Sequence[PlannedTrial], pool: Sequence[WorkerStatus], spec: Spec) -> Allotment:
    """Allot what fits of these trials over these workers."""
    if spec.stop_when:
        # What has ended at any time must be a random sample.
        planned = stopping.alike(stopping.order(spec.name, planned))
    offers = [Offer(worker=w.info.id, capacity=w.info.capacity, weight=w.weight_override, speed=w.speed) for w in pool]
    return allot(planned, offers, spec.per_worker_concurrency)


def _unmet(trial: PlannedTrial, pool: Sequence[WorkerStatus]) -> Problem:
    needs, most = trial.needs, [worker.info.capacity for worker in pool if worker.weight_override != 0]
    cpus = max((capacity.cpus * capacity.overcommit for capacity in most), default=0)
    memory = max((int(capacity.memory_mb * capacity.overcommit) for capacity in most), default=0)
    disk = max((int(capacity.disk_mb * capacity.overcommit) for capacity in most), default=0)
    wants = []
    if needs.cpus > cpus:
        wants.append(f"{needs.cpus:g} cpus, the largest worker has {cpus:g}")
    if needs.memory_mb > memory:
        wants.append(f"{needs.memory_mb} MiB memory, the largest worker has {memory} MiB")
    if needs.disk_mb > disk > 0:
        wants.append(f"{needs.disk_mb} MiB disk, the largest worker has {disk} MiB")
    return Problem(
        field=f"task {trial.task}",
        message=f"fits no worker: it needs {'; '.join(wants) or 'what no one worker has together'}.",
        fix="Leave it out, lower what it declares, or add a larger worker.",
    )


def batches_of(evaluation: str, shares: Allotment) -> dict[Batch, Sequence[str]]:
    """Name the batches of an allotment."""
    return {new_batch(evaluation, worker): names for worker, slots in shares.shares.items() for names in slots}


def new_batch(evaluation: str, worker: str) -> Batch:
    """Name another batch."""
    return Batch(id=f"{evaluation}-{secrets.token_hex(4)}", evaluation=evaluation, worker=worker)
