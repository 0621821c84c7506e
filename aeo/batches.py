"""The worker's side: a batch claims trials, runs them one at a time, and hands each result to the sender."""

from __future__ import annotations

import logging
import shutil
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import partial
from pathlib import Path

from aeo import assets, contents, executors, live, logs, outbox, records, turns
from aeo.core.breaker import tripped
from aeo.core.errors import AeoError, ExecutorFailed, InputError, TransferFailed, Unavailable
from aeo.core.model import Batch, Claim, Evaluation, Outcome, PlannedTrial
from aeo.executors import Executor, Session, TrialContext, views
from aeo.layout import run_name
from aeo.leases import Hold, Stopped, clock
from aeo.records import Record
from aeo.secrets import delivery, keeping
from aeo.sender import Handed, Parcel
from aeo.site import WorkerSite
from aeo.store import evaluations, trials, workers
from aeo.store.trials import Requeued
from aeo.turns import Turn

log = logging.getLogger(__name__)

#: Batches that fail in a row before the worker is paused.
FAILED_BATCHES = 3
#: Seconds that a result which cannot be pushed holds up the cancelling of its evaluation.
CANCEL_PUSH_SECONDS = 30.0


@dataclass(frozen=True, kw_only=True)
class Work:
    """An opened batch."""

    site: WorkerSite
    batch: Batch
    record: Record
    executor: Executor
    session: Session
    #: Ends and begins with each turn the batch has.
    turn: Turn
    #: Finished runs that the worker's sender has.
    handed: Handed


def run(site: WorkerSite, batch: Batch) -> dict[str, object]:
    """Run a batch to its end: until nothing is left to claim, the worker may claim no more, or another goes first.

    A second copy of its message finds it started and returns at once. One that let another go first says ``again``: its
    message was sent once more, and it has not returned as far as its chord is concerned.

    Raises:
        AeoError: the batch could not go on; what it held is given back, its share stays for others to claim.
    """
    if why := site.draining():
        # Not started: it is sent again, here or to another worker.
        return {"batch": batch.id, "ran": 0, "note": why}
    if why := _executor_out(site, batch):
        return {"batch": batch.id, "ran": 0, "note": why}
    if turns.gives_way(site, batch):
        return {"batch": batch.id, "ran": 0, "again": True}
    if not evaluations.start_batch(site.db, batch):
        _close(site.resting.take(batch.id))
        return {"batch": batch.id, "ran": 0, "note": "started before"}
    ran, failed = 0, True
    work: Work | None = None
    try:
        work = _open(site, batch)
        for claim in work.turn.claims():
            with logs.of_run(claim):
                _run_trial(work, claim)
            ran += 1
            work.handed.check()
        work.handed.wait()
        work.handed.check()
        failed = False
    except TransferFailed as error:
        # A controller out of reach says nothing about this worker; the batch is sent again.
        failed = error.permanent
        raise
    except Unavailable as error:
        # Nor does a store that is away; an executor that failed does.
        failed = isinstance(error, ExecutorFailed)
        raise
    finally:
        if work is None or not work.turn.given:
            _close(work)
            # If the store is away, the heartbeat will tell that this batch is no more.
            with suppress(AeoError, OSError):
                evaluations.end_batch(site.db, batch)
                _count(site, batch, failed=failed)
            with suppress(OSError):
                outbox.tidy(site, batch.evaluation)
    if work.turn.given:
        # Before its message, which may arrive at once.
        for oldest in site.resting.put(batch.id, work, most=site.config.slots):
            _close(oldest)
        turns.send_again(site, batch)
    return {"batch": batch.id, "ran": ran, "note": site.draining(), "again": work.turn.given}


def _open(site: WorkerSite, batch: Batch) -> Work:
    """Open a batch, or go on with what it kept when it gave its turn."""
    rested: Work | None = site.resting.take(batch.id)
    if rested is not None:
        return replace(rested, turn=_turn(site, batch, rested.executor, rested.record))
    record = _fetch_record(site, batch.evaluation)
    executor = executors.load(record.evaluation.spec.executor)
    workdir = site.local.batch(batch.id)
    workdir.mkdir(parents=True, exist_ok=True)
    session = executor.open(record.evaluation, workdir)
    turn = _turn(site, batch, executor, record)
    return Work(
        site=site,
        batch=batch,
        record=record,
        executor=executor,
        session=session,
        turn=turn,
        handed=Handed(site=site),
    )


def _turn(site: WorkerSite, batch: Batch, executor: Executor, record: Record) -> Turn:
    most = site.config.max_starting or executors.max_starting(executor, record.evaluation)
    return Turn(site, batch, max_starting=most)


def _close(work: Work | None) -> None:
    if work is None:
        return
    workdir = work.site.local.batch(work.batch.id)
    work.session.close()
    work.handed.wait()
    try:
        work.executor.sweep(workdir)
    except ExecutorFailed as error:
        log.warning("batch %s: %s", work.batch.id, error)
    shutil.rmtree(workdir, ignore_errors=True)


def close_resting(site: WorkerSite) -> None:
    """Close what batches keep that gave their turn; at the end of a worker."""
    for work in site.resting.clear():
        _close(work)


def _executor_out(site: WorkerSite, batch: Batch) -> str:
    """Why this worker starts no batch of the executor that this one is of; "" if it does."""
    out = workers.paused_executors(site.db, site.config.worker_id)
    executor = evaluations.get(site.db, batch.evaluation).executor if out else ""
    return f"{executor} is paused here" if executor in out else ""


def _count(site: WorkerSite, batch: Batch, *, failed: bool) -> None:
    """Let this worker take no more when its batches fail one after the other: it would only break more.

    No more of that executor, which is what is broken; or nothing at all, where the machine is: its disk, what it gets.
    """
    error, id = sys.exc_info()[1], site.config.worker_id
    executor = (
        "" if isinstance(error, (OSError, TransferFailed)) else evaluations.get(site.db, batch.evaluation).executor
    )
    count = workers.count_batch(site.db, id, failed=failed, executor=executor)
    if count < FAILED_BATCHES:
        return
    note = f"{count} batches failed in a row, the last: {error or 'see its log'}"[:500]
    log.error("%s is paused: %s", executor or "this worker", note)
    if executor:
        workers.pause_executor(site.db, id, executor, note)
    else:
        workers.pause_self(site.db, id, note)


def _fetch_record(site: WorkerSite, evaluation: str) -> Record:
    folder = site.local.evaluation(evaluation)
    if not (folder / records.EVALUATION).exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        names = (records.EVALUATION, records.TRIALS)
        contents.bring(site, f"evaluations/{evaluation}", folder, only=names, gives_up=site.draining)
    return records.read(folder)


def _run_trial(work: Work, claim: Claim) -> None:
    trial = work.record.trials[claim.trial]
    run_dir = work.site.local.batch(work.batch.id) / run_name(claim.trial, claim.token)
    hold = Hold(
        work.site.leases,
        work.site.db,
        claim,
        lease_seconds=work.site.config.lease_seconds,
        deadline_seconds=trial.deadline_seconds,
        stop_seconds=work.site.config.stop_seconds,
        stop=partial(work.session.stop, grace_seconds=work.site.config.stop_seconds),
        stopping=work.site.stopping.is_set,
    )
    handed = False
    try:
        hold.begin()
        parcel = _run_held(work, claim, trial, run_dir, hold)
        if parcel is not None:
            work.handed.over(parcel)
            handed = True
    except BaseException as error:
        # Before anybody waits for the lease to end.
        _give_back_broken(work, claim, hold, error)
        raise
    finally:
        if not handed:
            hold.end()
            shutil.rmtree(run_dir, ignore_errors=True)


def _give_back_broken(work: Work, claim: Claim, hold: Hold, error: BaseException) -> None:
    """Give back a run that broke its batch.

    What is not plainly the surroundings' fault counts, or one trial that breaks its batch each time would go round for
    ever.
    """
    surroundings = isinstance(error, (Unavailable, OSError)) or not isinstance(error, Exception)
    with suppress(Unavailable):
        _give_back(work, claim, hold, f"batch failed: {error}", counted=not surroundings)


def _run_held(work: Work, claim: Claim, trial: PlannedTrial, run_dir: Path, hold: Hold) -> Parcel | None:
    evaluation = work.record.evaluation
    run_dir.mkdir(parents=True)

    def gives_up() -> bool:
        return hold.stopped is not Stopped.NOT

    assets_dir = work.site.local.batch(work.batch.id) / "assets"
    content_dir = contents.fetch(work.site, evaluation.plan, trial, gives_up=gives_up)
    with assets.placed(work.site, evaluation.plan, assets_dir, run_dir.name, gives_up=gives_up) as places:
        context = TrialContext(
            trial_dir=run_dir,
            content_dir=content_dir,
            final_dir=f"{evaluation.job_dir}/{trial.name}",
            attempt=claim.attempt,
            assets=places,
        )
        return _run_in(work, claim, trial, context, hold)


def _run_in(work: Work, claim: Claim, trial: PlannedTrial, context: TrialContext, hold: Hold) -> Parcel | None:
    started_at = datetime.now(timezone.utc)
    names = work.record.evaluation.spec.secrets
    given = delivery.bring(work.site, claim, names, gives_up=lambda: hold.stopped is not Stopped.NOT)
    if given.refused:
        # For good, though the lease is held: not for ever from worker to worker.
        hold.trial_over()
        reason = f"The controller refuses its secrets to this worker: {given.refused}"
        if _give_back(work, claim, hold, reason) is not Requeued.EXHAUSTED:
            return None
        _write_failure(work, trial, context, "SecretRefusedError", reason)
    elif given.missing:
        # Set when it was submitted, and gone meanwhile. Another worker may have it.
        hold.trial_over()
        missing = ", ".join(given.missing)
        message = f"{missing}: set neither on the controller nor in the environment of this worker."
        _write_failure(work, trial, context, "SecretMissingError", message)
    else:
        failure = _failure_of(work, claim, trial, replace(context, environment=given.values), hold)
        hold.trial_over()
        if not _settle(work, claim, hold, trial, context, failure):
            return None
    return Parcel(
        claim=claim,
        hold=hold,
        run_dir=context.trial_dir,
        started_at=started_at,
        finished_at=datetime.now(timezone.utc),
        gives_up=partial(_gives_up, work, claim, hold, clock()),
        give_back=partial(_give_back_broken, work, claim, hold),
    )


def _failure_of(work: Work, claim: Claim, trial: PlannedTrial, context: TrialContext, hold: Hold) -> str:
    """Run a trial; why its executor failed, "" where it left a result."""
    secrets = {**assets.hidden(work.record.evaluation.plan, context.assets), **context.environment}
    try:
        if hold.stopped is not Stopped.NOT:
            raise ExecutorFailed(f"Stopped before it began: {hold.stopped.value}.")
        with (
            live.shown(work.site, claim, lambda: views.growing(work.session, trial, context), secrets),
            keeping.kept(secrets, context.trial_dir),
        ):
            work.session.run(trial, context, partial(_begin_phase, work, hold))
    except ExecutorFailed as error:
        return str(error)
    return ""


def _begin_phase(work: Work, hold: Hold, phase: str) -> None:
    work.turn.told(phase)
    hold.note_phase(phase)


#: What a trial that has no result of its own is recorded as, by why it was stopped.
_ERRORS: Mapping[Stopped, tuple[str, str]] = {
    Stopped.NOT: ("TrialProcessDied", "The trial's process died without a result."),
    Stopped.CANCELLED: ("CancelledError", "Cancelled by a person."),
    Stopped.DEADLINE: ("HardDeadlineExceeded", "The trial ran past the platform's hard deadline and was stopped."),
}


def _settle(work: Work, claim: Claim, hold: Hold, trial: PlannedTrial, context: TrialContext, failure: str) -> bool:
    """Decide what becomes of a run: True when its folder is a result to deliver."""
    stopped = hold.stopped
    has_result = not failure and (context.trial_dir / "result.json").is_file()
    if has_result and stopped in (Stopped.NOT, Stopped.CANCELLED):
        return True
    if stopped is Stopped.LOST:
        # It may have ended by itself before it could be stopped: what is finished is kept, if only beside the other.
        ended = has_result and _ended_by_itself(work, trial, context)
        log.warning("lease of %s lost, its run is %s", claim.trial, "kept aside" if ended else "dropped")
        return ended
    if stopped is Stopped.WORKER:
        _give_back(work, claim, hold, stopped.value, counted=False)
        return False
    error_type, message = _ERRORS[stopped]
    if stopped is not Stopped.CANCELLED:
        reason = failure or stopped.value or "no result"
        _watch_worker(work, claim)
        if _give_back(work, claim, hold, reason) is not Requeued.EXHAUSTED:
            return False
        message = f"{message} {failure}".strip()
    _write_failure(work, trial, context, error_type, message)
    return True


def _ended_by_itself(work: Work, trial: PlannedTrial, context: TrialContext) -> bool:
    try:
        summary = work.executor.summarise(trial, context.trial_dir)
    except InputError:
        return False
    return summary.outcome in (Outcome.SCORED, Outcome.INVALID)


def _gives_up(work: Work, claim: Claim, hold: Hold, since: float, problem: str) -> bool:
    """Whether a push that fails is left to the outbox: the worker stops, or a cancel has waited long enough."""
    # For people only: a store that is away must not end this.
    with suppress(Unavailable):
        trials.set_phase(work.site.db, claim, f"cannot push: {problem}"[:200])
    return work.site.stopping.is_set() or (hold.cancelled and clock() - since > CANCEL_PUSH_SECONDS)


def _give_back(work: Work, claim: Claim, hold: Hold, reason: str, *, counted: bool = True) -> Requeued:
    """Requeue a run; one that was nobody's fault does not count against the evaluation's limit."""
    limit = work.record.evaluation.spec.max_requeues
    where = (claim.evaluation, claim.trial, claim.token)
    with hold.giving_back():
        requeued = trials.requeue(work.site.db, *where, reason=reason[:500], max_requeues=limit, counted=counted)
        if requeued is Requeued.EXHAUSTED:
            hold.keep()
    return requeued


def _watch_worker(work: Work, claim: Claim) -> None:
    """Count a run without a result for the worker's breaker; runs with one are counted where they are committed."""
    config = work.site.config
    keep = max(1, config.breaker_runs, config.worker_breaker_runs)
    _, recent = trials.note_run(work.site.db, claim.evaluation, claim.worker, failed=True, keep=keep)
    if tripped(recent, config.worker_breaker_runs, config.breaker_share):
        note = f"most of its last {config.worker_breaker_runs} runs ended without a result or failed by infrastructure"
        workers.pause_self(work.site.db, claim.worker, note)


def _write_failure(work: Work, trial: PlannedTrial, context: TrialContext, error_type: str, message: str) -> None:
    """A result of our own in place of what the run left, which is kept beside it as far as it goes."""
    evaluation: Evaluation = work.record.evaluation
    (context.trial_dir / "result.json").unlink(missing_ok=True)
    work.executor.fail(evaluation, trial, context, error_type, message)
