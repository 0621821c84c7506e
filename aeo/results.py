"""The controller's side of a result: check what arrived, put it into the job folder, record it.

The order makes every crash harmless: rename into the job folder, then the store, then forget the manifest. What lies in
the job folder is committed, whatever the store says; a second result never replaces it.
"""

from __future__ import annotations

import errno
import logging
import shutil
from datetime import datetime, timezone
from pathlib import Path

from aeo import executors, records
from aeo.core.errors import InputError, NotFound
from aeo.core.model import Outcome, PlannedTrial, TrialRow, TrialState
from aeo.executors import TrialContext
from aeo.layout import inside, manifest_of
from aeo.records import Record
from aeo.site import Site
from aeo.store import events, history, trials
from aeo.store.inbox import Arrival
from aeo.store.trials import Requeued
from aeo.transfer import manifest as manifests
from aeo.transfer.manifest import Manifest

log = logging.getLogger(__name__)


def commit(site: Site, arrival: Arrival) -> bool:
    """Take one arrived result; True when it is the one that counts.

    A result that is damaged, or not this trial's, is kept under ``superseded/`` and the trial runs again. Calling it
    twice for the same arrival does no harm.

    Raises:
        OSError: the disk is full or cannot be written: nothing is lost, the same call works later.
        Unavailable: the store is away; likewise.
    """
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    try:
        record = records.read(site.shared.evaluation(arrival.evaluation))
        trial = record.trials[arrival.trial]
    except (NotFound, KeyError):
        log.warning("a result arrived for %s/%s, which nobody planned", arrival.evaluation, arrival.trial)
        return False
    place = inside(Path(record.evaluation.job_dir), trial.name)
    if not folder.exists():
        return _finish_interrupted(site, record, trial, arrival, place)
    try:
        manifest = _checked_manifest(folder, arrival)
        row = _row(record, trial, folder, manifest)
    except InputError as error:
        _reject(site, record, trial, arrival, folder, str(error))
        return False
    if _is_committed(site, arrival, place):
        _supersede(site, arrival, folder)
        return trials.commit(site.db, arrival.evaluation, row, arrival.token)
    _rename(folder, place)
    return _record(site, record, trial, arrival, row)


def _checked_manifest(folder: Path, arrival: Arrival) -> Manifest:
    manifest = manifests.load(manifest_of(folder))
    named = (manifest.evaluation, manifest.trial, manifest.token)
    if named != (arrival.evaluation, arrival.trial, arrival.token):
        raise InputError(f"the manifest is another run's: {'/'.join(named)[:200]}")
    manifests.verify(manifest, folder)
    return manifest


def _row(record: Record, trial: PlannedTrial, folder: Path, manifest: Manifest) -> TrialRow:
    executor = executors.load(record.evaluation.spec.executor)
    return TrialRow(
        summary=executor.summarise(trial, folder),
        worker=manifest.worker,
        attempt=manifest.attempt,
        committed_at=datetime.now(timezone.utc),
        notes=manifest.notes,
    )


def _is_committed(site: Site, arrival: Arrival, place: Path) -> bool:
    return place.exists() or trials.state(site.db, arrival.evaluation, arrival.trial) is TrialState.DONE


def _finish_interrupted(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, place: Path) -> bool:
    """The folder is gone: taken already, or we died between the rename and the store."""
    manifest_path = manifest_of(site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token))
    if not (place.exists() and manifest_path.exists()):
        return False
    try:
        row = _row(record, trial, place, manifests.load(manifest_path))
    except InputError:
        return False
    return _record(site, record, trial, arrival, row)


def _record(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, row: TrialRow) -> bool:
    first = trials.commit(site.db, arrival.evaluation, row, arrival.token)
    seconds = row.summary.seconds
    if first and seconds is not None and row.summary.outcome in (Outcome.SCORED, Outcome.INVALID):
        history.add(site.db, record.evaluation.spec.executor, trial.history_key, seconds)
    _forget(site, arrival)
    return first


def adopt(site: Site, record: Record, trial: PlannedTrial, logged: TrialRow | None) -> bool:
    """Record a trial that lies in the job folder while the store does not know it; False if it is no result.

    ``logged`` is its row from the event log, which knows more than the folder (who ran it, how often).
    """
    if logged is not None:
        return trials.commit(site.db, record.evaluation.id, logged, "recovered")
    place = inside(Path(record.evaluation.job_dir), trial.name)
    executor = executors.load(record.evaluation.spec.executor)
    try:
        summary = executor.summarise(trial, place)
    except InputError as error:
        log.warning("%s lies in the job folder but is no result: %s", trial.name, error)
        return False
    row = TrialRow(summary=summary, worker="", attempt=1, committed_at=datetime.now(timezone.utc))
    return trials.commit(site.db, record.evaluation.id, row, "recovered")


def _supersede(site: Site, arrival: Arrival, folder: Path) -> None:
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


def _reject(site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, folder: Path, why: str) -> None:
    """Put a bad result aside and run the trial again; when it may not be run again, record that it has none."""
    log.warning("the result of %s is not accepted: %s", arrival.trial, why)
    _supersede(site, arrival, folder)
    events.emit(site.db, arrival.evaluation, "rejected", trial=arrival.trial, token=arrival.token, reason=why[:500])
    requeued = trials.requeue(
        site.db,
        arrival.evaluation,
        arrival.trial,
        arrival.token,
        reason=f"result rejected: {why}"[:500],
        max_requeues=record.evaluation.spec.max_requeues,
    )
    if requeued is Requeued.EXHAUSTED:
        fail(site, record, trial, "ResultRejected", why)


def fail(site: Site, record: Record, trial: PlannedTrial, error_type: str, message: str) -> bool:
    """Record on the controller that a trial has no result of its own."""
    evaluation = record.evaluation
    place = inside(Path(evaluation.job_dir), trial.name)
    staging = site.shared.arrived(evaluation.id, trial.name, "failed")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    executor = executors.load(evaluation.spec.executor)
    context = TrialContext(trial_dir=staging, content_dir=None, final_dir=str(place))
    executor.fail(evaluation, trial, context, error_type, message)
    row = TrialRow(
        summary=executor.summarise(trial, staging), worker="", attempt=1, committed_at=datetime.now(timezone.utc)
    )
    if not place.exists():
        _rename(staging, place)
    shutil.rmtree(staging, ignore_errors=True)
    return trials.commit(site.db, evaluation.id, row, "failed")


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
