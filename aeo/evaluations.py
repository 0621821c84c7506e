"""Submit, cancel, look at an evaluation."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from aeo import assets, contents, credentials, dispatch, executors, records, sharing, submission, summaries
from aeo.core import estimate, stopping
from aeo.core.allot import Allotment
from aeo.core.errors import Conflict, InputError, Problem
from aeo.core.estimate import Basis, Expected
from aeo.core.model import Evaluation, EvaluationState, Plan, PlannedTrial, Spec, TrialRow
from aeo.core.names import check_name
from aeo.executors import Executor
from aeo.secrets import needs
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import history, speeds, trials, workers
from aeo.store.evaluations import EvaluationStatus
from aeo.submission import Submission

#: A run's folder and manifest are named after the trial, its token and an ending, and names have 200 characters.
LONGEST_TRIAL_NAME = 160


@dataclass(frozen=True, kw_only=True)
class Submitted:
    """A submission taken."""

    evaluation: Evaluation
    status: EvaluationStatus
    warnings: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Legacy:
    """What an evaluation begins with: results of an earlier one."""

    #: Id of that evaluation; empty if there is none.
    parent: str = ""
    #: Names of the planned trials that get a result.
    trials: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()
    #: Puts their folders into the new job's; returns their rows.
    hand_over: Callable[[Evaluation, Path], Sequence[TrialRow]] = lambda _evaluation, _job_dir: ()


#: What results a plan begins with.
Inherit = Callable[[Executor, Spec, Plan], Legacy]


def nothing(_executor: Executor, _spec: Spec, _plan: Plan) -> Legacy:
    """Begin with no results."""
    return Legacy()


def submit(site: Site, request: Submission, *, owner: str = "", inherit: Inherit = nothing) -> Submitted:
    """Plan, share out and dispatch. Everything is checked before anything is made; a failure leaves nothing.

    ``owner`` is the name of the user who asks; ``inherit`` says which results of an earlier evaluation are taken over.

    Raises:
        InputError: the request cannot be run as it is (one problem per fault).
        Conflict: its job folder exists, or an evaluation of this name runs.
        Unavailable: the store or the executor is away.
    """
    spec, file = submission.read(request)
    executor = executors.load(spec.executor)
    id = secrets.token_hex(6)
    spec = replace(spec, name=name_of(executor, spec, id))
    check_free(site, spec.name)
    out = partial(sharing.kept_out, site)
    pool = sharing.taking_work(sharing.asked(workers.all(site.db), spec, out), out)
    plan = estimated(site, spec, check_rule(spec, check_plan(executor.plan(spec, file))))
    plan = assets.joined(site, executor, spec, file, plan)
    spec = needs.settled(executor, spec, plan)
    needs.check(site, executor, spec, plan, pool)
    plan = replace(plan, warnings=(*plan.warnings, *needs.advice(site, executor, spec, plan, pool)))
    legacy = inherit(executor, spec, plan)
    plan = replace(plan, warnings=(*plan.warnings, *legacy.warnings))
    usable = sharing.matching(pool, spec, plan, needs.elsewhere(site, spec))
    shares = sharing.share_out(to_run(plan, legacy).trials, usable, spec)
    evaluation = Evaluation(
        id=id,
        spec=spec,
        plan=plan,
        submitted_at=datetime.now(timezone.utc),
        job_dir=str(site.shared.job(spec.name)),
        owner=owner,
        parent=legacy.parent,
    )
    _create(site, executor, evaluation, shares, legacy)
    return Submitted(evaluation=evaluation, status=store.get(site.db, id), warnings=plan.warnings)


def to_run(plan: Plan, legacy: Legacy) -> Plan:
    """The plan of the trials that get no result from an earlier evaluation."""
    if not legacy.trials:
        return plan
    return replace(plan, trials=tuple(trial for trial in plan.trials if trial.name not in legacy.trials))


def name_of(executor: Executor, spec: Spec, id: str) -> str:
    """The name an evaluation gets: the one given, its configuration's own, or one by the time.

    Raises:
        InputError: the configuration asks for one that is no folder's name.
    """
    own = spec.name or executor.config_name(spec.config)
    if own:
        return check_name(own, "job name", field="name" if spec.name else "job_name")
    return f"{datetime.now(timezone.utc):%Y-%m-%d--%H-%M-%S}-{id[:4]}"


def check_free(site: Site, name: str) -> None:
    """See that no job of this name exists.

    Raises:
        Conflict: one does.
    """
    job_dir = site.shared.job(name)
    if job_dir.exists():
        raise Conflict(
            f"the job folder {job_dir} exists already.",
            field="name",
            fix="Choose another name, or move the folder away.",
        )


def check_plan(plan: Plan) -> Plan:
    """Return the plan when its trials can be named apart and stored.

    Raises:
        InputError: they cannot, or there are none.
    """
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


def check_rule(spec: Spec, plan: Plan) -> Plan:
    """Return the plan when the rule to stop by can be used on it.

    Raises:
        InputError: it cannot.
    """
    faults = stopping.faults(spec.stop_when, plan.trials) if spec.stop_when else []
    if faults:
        known = sorted({trial.labels.get(key, "") for trial in plan.trials for key in ("agent", "model")} - {""})
        fix = f"Name two agents or models of it: {', '.join(known)}."
        raise InputError(problems=tuple(Problem(field="stop_when", message=f"{one}.", fix=fix) for one in faults))
    return plan


def expected(site: Site, spec: Spec, trials: Sequence[PlannedTrial]) -> dict[str, Expected]:
    """How long each of these trials is expected to take, by name, from all that ran before."""
    known = speeds.learnt(site.db)
    return estimate.expect(
        trials,
        estimate.at_usual_speed(history.runs(site.db, spec.executor, (trial.history_key for trial in trials)), known),
        estimate.at_usual_speed(
            history.meant(site.db, spec.executor, (trial.labels.get("dataset", "") for trial in trials)), known
        ),
    )


def estimated(site: Site, spec: Spec, plan: Plan) -> Plan:
    """The plan with the durations put in that are expected from what ran before."""
    found = expected(site, spec, plan.trials)
    if all(item.basis is Basis.PLAN for item in found.values()):
        return plan
    trials = tuple(
        replace(trial, estimated_seconds=found[trial.name].seconds, planned_seconds=trial.planned)
        for trial in plan.trials
    )
    return replace(plan, trials=trials)


def _create(site: Site, executor: Executor, evaluation: Evaluation, shares: Allotment, legacy: Legacy) -> None:
    """Make all that an evaluation is, or nothing."""
    id, name = evaluation.id, evaluation.spec.name
    staging = site.shared.unborn(id)
    folder, job_dir = site.shared.evaluation(id), site.shared.job(name)
    with site.shared.submitting(), ExitStack() as undo:
        undo.callback(shutil.rmtree, staging, ignore_errors=True)
        staging.mkdir()
        records.write(staging, evaluation)
        try:
            job_dir.mkdir()
        except FileExistsError:
            check_free(site, name)
            raise
        undo.callback(shutil.rmtree, job_dir, ignore_errors=True)
        executor.start_job(evaluation, job_dir)
        assets.publish(site, evaluation.plan)
        for content in evaluation.plan.contents:
            contents.publish(site.shared, content)
        rows = legacy.hand_over(evaluation, job_dir)
        if rows:
            records.write_carried(staging, rows)
        batches = sharing.batches_of(id, shares)
        undo.callback(_forget, site, id)
        # Before a worker has a seat of it: whatever it claims looks at the seats it has.
        credentials.grant(site, id, {batch.worker for batch in batches})
        # The store before the folder: if we die between them, the user saw a failure and nothing will run.
        store.save(site.db, evaluation, batches, shares.unfit)
        # Nobody claims before there is a folder, or a message.
        trials.carry(site.db, id, rows)
        undo.callback(shutil.rmtree, folder, ignore_errors=True)
        staging.rename(folder)
        dispatch.send(site, id, list(batches), priority=evaluation.spec.priority)
        undo.pop_all()
    summaries.enter(site.book, evaluation)


def _forget(site: Site, id: str) -> None:
    # The store may be what failed; what it kept then is swept by recovery, which finds no folder.
    with suppress(Exception):
        store.delete(site.db, id)


def cancel(site: Site, id_or_name: str, *, by: str = "") -> EvaluationStatus:
    """Stop an evaluation: what waits never runs, what runs is stopped, what is finished is merged.

    ``by`` is the name of the user who asks, here and below.

    Raises:
        NotFound: there is none of this id or name.
        Conflict: it has ended already.
    """
    status = store.find(site.db, id_or_name)
    # Asked twice it goes on where the first call may have died.
    asked = status.state is EvaluationState.CANCELLING
    if not asked and not store.move(site.db, status.id, EvaluationState.CANCELLING, _told("cancelled", by), by=by):
        now = store.get(site.db, status.id).state
        raise Conflict(f"evaluation {status.name} is {now.value}.", field="id", fix="Only a running one is cancelled.")
    trials.cancel_pending(site.db, status.id)
    status = store.get(site.db, status.id)
    if status.done == status.total:
        dispatch.ring(site, status.id)
    return status


def pause(site: Site, id_or_name: str, reason: str = "", *, by: str = "") -> EvaluationStatus:
    """Let no further trial start; those that run go on.

    Raises:
        NotFound: there is none of this id or name.
        Conflict: it does not run.
    """
    reason = _told("paused", by, reason)
    return _switch(site, id_or_name, EvaluationState.PAUSED, reason, "Only a running one is paused.", by)


def resume(site: Site, id_or_name: str, *, by: str = "") -> EvaluationStatus:
    """Let trials start again; batches are sent within seconds.

    Raises:
        NotFound: there is none of this id or name.
        Conflict: it is not paused.
    """
    # First, or a result that comes in between would pause it again for what is past.
    store.forget_recent(site.db, store.find(site.db, id_or_name).id)
    reason = _told("resumed", by)
    return _switch(site, id_or_name, EvaluationState.RUNNING, reason, "Only a paused one is resumed.", by)


def _told(done: str, by: str, why: str = "") -> str:
    """``paused by alice: quota used up``."""
    return f"{done} by {by or 'a person'}" + (f": {why}" if why else "")


def _switch(site: Site, id_or_name: str, to: EvaluationState, reason: str, fix: str, by: str) -> EvaluationStatus:
    status = store.find(site.db, id_or_name)
    if not store.move(site.db, status.id, to, reason, by=by):
        now = store.get(site.db, status.id).state
        raise Conflict(f"evaluation {status.name} is {now.value}.", field="id", fix=fix)
    return store.get(site.db, status.id)
