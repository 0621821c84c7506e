"""The controller's side of a result: check what arrived, put it into the job folder, record it.

The order makes every crash harmless: rename into the job folder, then the store, then forget the manifest. What lies in
the job folder is committed, whatever the store says; a second result never replaces it.
"""

from __future__ import annotations

import errno
import logging
import shutil
import threading
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

from aeo import executors, records, redaction, summaries
from aeo.core.breaker import tripped
from aeo.core.errors import AeoError, InputError, NotFound, Unavailable
from aeo.core.model import EvaluationState, Outcome, PlannedTrial, TrialRow, TrialState, TrialSummary, WorkerState
from aeo.executors import TrialContext
from aeo.layout import inside, manifest_of, redacting
from aeo.records import Record
from aeo.site import Site
from aeo.store import evaluations, events, history, trials, workers
from aeo.store.inbox import Arrival
from aeo.store.trials import Requeued
from aeo.transfer import manifest as manifests
from aeo.transfer import tree
from aeo.transfer.manifest import Manifest

log = logging.getLogger(__name__)

#: One writer of job folders at a time: the commit loop and the repairs are two threads of one process.
_writing = threading.Lock()


def commit(site: Site, arrival: Arrival) -> bool:
    """Take one arrived result; True when it is the one that counts.

    A result that is damaged or not this trial's, and one of failed infrastructure while the trial may be run again, is
    kept under ``superseded/``. Calling it twice for the same arrival does no harm.

    Raises:
        OSError: the disk is full or cannot be written: nothing is lost, the same call works later.
        Unavailable: the store is away; likewise.
    """
    try:
        record = records.read(site.shared.evaluation(arrival.evaluation))
        trial = record.trials[arrival.trial]
        folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
        place = inside(Path(record.evaluation.job_dir), trial.name)
    except (InputError, KeyError) as error:
        if _is_known(site, arrival.evaluation) and not isinstance(error, KeyError):
            raise Unavailable(f"evaluation {arrival.evaluation} cannot be read now: {error}") from None
        log.warning("a result of %r arrived, which nobody planned: %s", arrival.trial, error)
        return False
    with _writing:
        return _commit(site, record, trial, arrival, folder, place)


def _commit(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, folder: Path, place: Path) -> bool:
    if not folder.exists():
        return _finish_interrupted(site, record, trial, arrival, place)
    try:
        manifest = _checked_manifest(folder, arrival)
        row = _row(site, record, trial, folder, replace(manifest, notes=(*manifest.notes, *_redact(site, folder))))
    except InputError as error:
        return _run_again(site, record, trial, arrival, folder, f"result rejected: {error}", "ResultRejected")
    if place.exists() or trials.state(site.db, arrival.evaluation, trial.name) is TrialState.DONE:
        # Somebody's result is there already, known to the store or not, or the trial was cancelled: this one is late.
        if place.exists():
            adopt(site, record, trial, None)
        _supersede(site, arrival, folder)
        return _keep(site, arrival.evaluation, row, arrival.token)
    if row.summary.outcome is Outcome.INFRA_ERROR and row.summary.retryable:
        reason = f"{row.summary.error_type}: {row.summary.error_message}"
        if _requeue(site, record, arrival, reason) is not Requeued.EXHAUSTED:
            _supersede(site, arrival, folder)
            _watch(site, arrival.evaluation, row)
            return False
    _ensure_job(record)
    _rename(folder, place)
    first = _record(site, record, trial, arrival, row)
    _watch(site, arrival.evaluation, row)
    return first


def _is_known(site: Site, evaluation: str) -> bool:
    try:
        evaluations.get(site.db, evaluation)
    except NotFound:
        return False
    return True


def _watch(site: Site, evaluation: str, row: TrialRow) -> None:
    """Pause the worker, or else the evaluation, when too many runs in a row fail by infrastructure."""
    config, failed = site.config, row.summary.outcome is Outcome.INFRA_ERROR
    keep = max(1, config.breaker_runs, config.worker_breaker_runs)
    of_evaluation, of_worker = trials.note_run(site.db, evaluation, row.worker, failed=failed, keep=keep)
    last = f"the last: {row.summary.error_type}: {row.summary.error_message}"[:300]
    if tripped(of_worker, config.worker_breaker_runs, config.breaker_share):
        runs = of_worker[: config.worker_breaker_runs]
        note = f"{sum(runs)} of its last {len(runs)} runs failed by infrastructure, {last}"
        with suppress(NotFound):
            workers.set_state(site.db, row.worker, WorkerState.PAUSED, note)
        events.emit(site.db, evaluation, "worker_paused", worker=row.worker, reason=note)
        # The evaluation goes on with the others; what this one broke says nothing about them.
        evaluations.forget_recent(site.db, evaluation)
    elif tripped(of_evaluation, config.breaker_runs, config.breaker_share):
        runs = of_evaluation[: config.breaker_runs]
        reason = f"{sum(runs)} of the last {len(runs)} runs failed by infrastructure, {last}"
        evaluations.move(site.db, evaluation, EvaluationState.PAUSED, reason)


def _checked_manifest(folder: Path, arrival: Arrival) -> Manifest:
    manifest = manifests.load(manifest_of(folder))
    named = (manifest.evaluation, manifest.trial, manifest.token)
    if named != (arrival.evaluation, arrival.trial, arrival.token):
        raise InputError(f"the manifest is another run's: {'/'.join(named)[:200]}")
    if not redacting(folder).exists():
        manifests.verify(manifest, folder)
    return manifest


def _redact(site: Site, folder: Path) -> tuple[str, ...]:
    """Take known secrets out of a run's folder; returns notes that say so.

    What is rewritten is not what the manifest says any more: the folder beside it, made first, tells the next look.
    """
    redactor = redaction.known(site.config.secret_names)
    # Also of a folder that was refused, so what it is made of is not known.
    if not redactor or folder.is_symlink() or not folder.is_dir():
        return ()
    found = redaction.holding(redactor, folder, tree.read(folder, odd_names=True).files)
    if not found:
        return ()
    drafts = redacting(folder)
    drafts.mkdir(exist_ok=True)
    for name in found:
        redaction.rewrite(redactor, folder / name, drafts / "draft")
    return (tree.note("secrets were taken out of", found),)


def _row(site: Site, record: Record, trial: PlannedTrial, folder: Path, manifest: Manifest) -> TrialRow:
    summary = _summary(record, trial, folder)
    if summary.outcome is Outcome.CANCELLED and not _is_cancelled(site, record):
        # Nobody asked for it: something inside the run cancelled itself.
        summary = replace(summary, outcome=Outcome.INFRA_ERROR)
    return TrialRow(
        summary=summary,
        worker=manifest.worker,
        attempt=manifest.attempt,
        committed_at=datetime.now(timezone.utc),
        notes=manifest.notes,
    )


def _summary(record: Record, trial: PlannedTrial, folder: Path) -> TrialSummary:
    """What the executor reads from a folder.

    Raises:
        InputError: it is no result of this trial, or its reader failed on it.
    """
    executor = executors.load(record.evaluation.spec.executor)
    try:
        return executor.summarise(trial, folder)
    except (AeoError, OSError):
        raise
    except Exception as error:
        # A plug-in's fault on one result must not keep all others from being committed.
        log.exception("executor %s failed on %s", executor.name, trial.name)
        raise InputError(f"it could not be read: {type(error).__name__}: {error}"[:500]) from error


def _is_cancelled(site: Site, record: Record) -> bool:
    try:
        return evaluations.get(site.db, record.evaluation.id).state is EvaluationState.CANCELLING
    except NotFound:
        # Wiped: let it come again when the store knows the evaluation.
        raise Unavailable(f"evaluation {record.evaluation.id} is not known now") from None


def _ensure_job(record: Record) -> None:
    """Make the job folder again if somebody took it away while the evaluation runs."""
    job_dir = Path(record.evaluation.job_dir)
    if not job_dir.is_dir():
        log.warning("the job folder %s is gone; it is made again without what it held", job_dir)
        job_dir.mkdir(parents=True)
        executors.load(record.evaluation.spec.executor).start_job(record.whole(), job_dir)


def _finish_interrupted(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, place: Path) -> bool:
    """The folder is gone: taken already, or we died half-way."""
    manifest_path = manifest_of(site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token))
    if place.exists() and manifest_path.exists():
        try:
            row = _row(site, record, trial, place, manifests.load(manifest_path))
            return _record(site, record, trial, arrival, row)
        except InputError:
            log.warning("the manifest of %s cannot be used", arrival.trial)
    if place.exists():
        return adopt(site, record, trial, None)
    # Put aside, and the trial not given back: it would wait for ever. Does nothing when it was.
    _requeue(site, record, arrival, "its result is gone")
    return False


def _record(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, row: TrialRow) -> bool:
    first = _keep(site, arrival.evaluation, row, arrival.token)
    seconds = row.summary.seconds
    if first and seconds is not None and row.summary.outcome in (Outcome.SCORED, Outcome.INVALID):
        history.add(site.db, record.evaluation.spec.executor, trial.history_key, seconds)
    _forget(site, arrival)
    return first


def _keep(site: Site, id: str, row: TrialRow, token: str) -> bool:
    """Record a row in the store, which decides, and in the summaries, which only follow it."""
    first = trials.commit(site.db, id, row, token)
    if first:
        summaries.put(site.book, id, row)
    return first


def adopt(site: Site, record: Record, trial: PlannedTrial, logged: TrialRow | None) -> bool:
    """Record a trial that lies in the job folder while the store does not know it; False if it is no result.

    ``logged`` is its row from the event log, which knows more than the folder (who ran it, how often).
    """
    if trials.state(site.db, record.evaluation.id, trial.name) is TrialState.DONE:
        return False
    if logged is not None:
        return _keep(site, record.evaluation.id, logged, "recovered")
    place = inside(Path(record.evaluation.job_dir), trial.name)
    try:
        summary = _summary(record, trial, place)
    except InputError as error:
        log.warning("%s lies in the job folder but is no result: %s", trial.name, error)
        return False
    row = TrialRow(summary=summary, worker="", attempt=1, committed_at=datetime.now(timezone.utc))
    return _keep(site, record.evaluation.id, row, "recovered")


def _supersede(site: Site, arrival: Arrival, folder: Path) -> None:
    _redact(site, folder)
    kept = site.shared.superseded(arrival.evaluation, arrival.trial, arrival.token)
    kept.parent.mkdir(exist_ok=True)
    if kept.exists():
        shutil.rmtree(folder)
    else:
        _rename(folder, kept)
    _forget(site, arrival)


def _forget(site: Site, arrival: Arrival) -> None:
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    manifest_of(folder).unlink(missing_ok=True)
    # Last: until the manifest is gone, somebody may look at the folder again.
    shutil.rmtree(redacting(folder), ignore_errors=True)
    shutil.rmtree(site.shared.live(arrival.evaluation, arrival.trial, arrival.token), ignore_errors=True)


def _requeue(site: Site, record: Record, arrival: Arrival, reason: str) -> Requeued:
    limit = record.evaluation.spec.max_requeues
    where = (arrival.evaluation, arrival.trial, arrival.token)
    return trials.requeue(site.db, *where, reason=reason[:500], max_requeues=limit)


def _run_again(
    site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, folder: Path, why: str, error_type: str
) -> bool:
    """Run the trial again and put its result aside; when it may not be run again, record that it has none."""
    why = redaction.known(site.config.secret_names).text(why)
    log.warning("%s: %s", arrival.trial, why)
    requeued = _requeue(site, record, arrival, why)
    events.emit(site.db, arrival.evaluation, "rejected", trial=arrival.trial, token=arrival.token, reason=why[:500])
    first = requeued is Requeued.EXHAUSTED and _fail(site, record, trial, error_type, why)
    _supersede(site, arrival, folder)
    return first


def fail(site: Site, record: Record, trial: PlannedTrial, error_type: str, message: str) -> bool:
    """Record on the controller that a trial has no result of its own; False when it has one meanwhile."""
    with _writing:
        return _fail(site, record, trial, error_type, message)


def _fail(site: Site, record: Record, trial: PlannedTrial, error_type: str, message: str) -> bool:
    evaluation = record.evaluation
    place = inside(Path(evaluation.job_dir), trial.name)
    if place.exists():
        return adopt(site, record, trial, None)
    staging = site.shared.arrived(evaluation.id, trial.name, "failed")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    executor = executors.load(evaluation.spec.executor)
    context = TrialContext(trial_dir=staging, content_dir=None, final_dir=str(place))
    message = redaction.known(site.config.secret_names).text(message)
    executor.fail(evaluation, trial, context, error_type, message)
    row = TrialRow(
        summary=executor.summarise(trial, staging), worker="", attempt=1, committed_at=datetime.now(timezone.utc)
    )
    _ensure_job(record)
    _rename(staging, place)
    return _keep(site, evaluation.id, row, "failed")


def _rename(source: Path, target: Path) -> None:
    """Move a folder into place in one step, also from another file system.

    Raises:
        OSError: it cannot be moved now.
    """
    try:
        source.rename(target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        # Beside the job, never inside: a job folder holds trials only.
        staging = target.parent.parent / f".incoming.{source.name}"
        shutil.rmtree(staging, ignore_errors=True)
        shutil.copytree(source, staging, symlinks=True)
        staging.rename(target)
        shutil.rmtree(source, ignore_errors=True)
