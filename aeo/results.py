"""The controller's side of a result: check what arrived, put it into the job folder, record it.

The order makes every crash harmless: rename into the job folder, then the store, then forget the manifest. What lies in
the job folder is committed, whatever the store says; a second result never replaces it.

Nothing of a result is forced to the disk here: the system writes it within seconds, and a power cut of the controller's
machine may cost the results of these last seconds. What was asked and what happened is forced (`records`, `event_log`).
"""

from __future__ import annotations

import logging
import shutil
import threading
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from pathlib import Path

from aeo import assets, executors, logs, records, redaction, rows, superseded
from aeo.core.errors import AeoError, InputError, NotFound, Unavailable
from aeo.core.model import EvaluationState, Outcome, PlannedTrial, TrialRow, TrialState, TrialSummary
from aeo.executors import TrialContext
from aeo.layout import inside, manifest_of, redacting
from aeo.records import Record
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import evaluations, events, trials
from aeo.store.inbox import Arrival
from aeo.store.trials import Requeued
from aeo.transfer import copy, tree
from aeo.transfer import manifest as manifests
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
    answer = commit_all(site, [arrival])[arrival]
    if isinstance(answer, Exception):
        raise answer
    return answer


def commit_all(site: Site, arrivals: Sequence[Arrival]) -> dict[Arrival, bool | Exception]:
    """`commit` several: what it would return or raise for each. Most are recorded in one step for all."""
    answers: dict[Arrival, bool | Exception] = {}
    left = list(arrivals)
    with _writing:
        while left:
            # A second result of one trial looks at what became of the first.
            group = list({(one.evaluation, one.trial): one for one in reversed(left)}.values())
            left = [one for one in left if one not in group]
            _commit_group(site, group[::-1], answers)
    return answers


@dataclass(frozen=True, kw_only=True)
class _Arrived:
    """A result that was looked at."""

    arrival: Arrival
    record: Record
    trial: PlannedTrial
    folder: Path
    #: Where it belongs.
    place: Path
    row: TrialRow


def _commit_group(site: Site, arrivals: Sequence[Arrival], answers: dict[Arrival, bool | Exception]) -> None:
    looked: list[_Arrived] = []
    for arrival in arrivals:
        try:
            with logs.about(evaluation=arrival.evaluation, trial=arrival.trial):
                found = _look(site, arrival)
        except Exception as error:
            answers[arrival] = error
            continue
        if isinstance(found, _Arrived):
            looked.append(found)
        else:
            answers[arrival] = found
    try:
        done = _done(site, looked)
    except Exception as error:
        answers.update((one.arrival, error) for one in looked)
        return
    placed: list[_Arrived] = []
    for one in looked:
        try:
            with logs.about(evaluation=one.arrival.evaluation, trial=one.trial.name, worker=one.row.worker):
                early = _place(site, one, done)
        except Exception as error:
            answers[one.arrival] = error
            continue
        if early is None:
            placed.append(one)
        else:
            answers[one.arrival] = early
    try:
        answers.update(_record_all(site, placed))
    except Exception as error:
        answers.update((one.arrival, error) for one in placed if one.arrival not in answers)


def _look(site: Site, arrival: Arrival) -> _Arrived | bool:
    """Look at what arrived; where it cannot be put into the job, deal with it at once."""
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
    if not folder.exists():
        return _finish_interrupted(site, record, trial, arrival, place)
    try:
        manifest = _checked_manifest(folder, arrival)
        notes = _redact(site, arrival.evaluation, folder)
        row = _row(site, record, trial, folder, replace(manifest, notes=(*manifest.notes, *notes)))
    except InputError as error:
        return _run_again(site, record, trial, arrival, folder, f"result rejected: {error}", "ResultRejected")
    return _Arrived(arrival=arrival, record=record, trial=trial, folder=folder, place=place, row=row)


def _done(site: Site, looked: Sequence[_Arrived]) -> set[tuple[str, str]]:
    """Those of their trials that are done, as evaluation and trial.

    Raises:
        NotFound: the store does not know one, as it was wiped.
    """
    names: dict[str, list[str]] = {}
    for one in looked:
        names.setdefault(one.arrival.evaluation, []).append(one.trial.name)
    done: set[tuple[str, str]] = set()
    for evaluation, trials_of in names.items():
        states = trials.states_of(site.db, evaluation, trials_of)
        if len(states) < len(trials_of):
            raise NotFound(f"evaluation {evaluation} is not known now")
        done |= {(evaluation, name) for name, state in states.items() if state is TrialState.DONE}
    return done


def _place(site: Site, one: _Arrived, done: Set[tuple[str, str]]) -> bool | None:
    """Put a result into the job folder; or deal with it, when that is not where it belongs."""
    arrival, row = one.arrival, one.row
    there = one.place.exists()
    known = (arrival.evaluation, one.trial.name) in done
    if there and superseded.is_again(site, arrival, one.folder, one.place, known=known):
        # The run that counts, come again: its worker did not learn that it had arrived.
        first = known or rows.keep(site, arrival.evaluation, row, arrival.token)
        shutil.rmtree(one.folder)
        _forget(site, arrival)
        return first
    if there or known:
        # Somebody's result is there already, known to the store or not, or the trial was cancelled: this one is late.
        if there:
            adopt(site, one.record, one.trial, None)
        _supersede(site, arrival, one.folder)
        return rows.keep(site, arrival.evaluation, row, arrival.token)
    if row.summary.outcome is Outcome.INFRA_ERROR and row.summary.retryable:
        reason = f"{row.summary.error_type}: {row.summary.error_message}"
        if _requeue(site, one.record, arrival, reason) is not Requeued.EXHAUSTED:
            _supersede(site, arrival, one.folder)
            rows.watch(site, [(arrival.evaluation, row)])
            return False
    _ensure_job(one.record)
    copy.rename(one.folder, one.place)
    return None


def _record_all(site: Site, placed: Sequence[_Arrived]) -> dict[Arrival, bool | Exception]:
    """Record what lies in its job folder."""
    if not placed:
        return {}
    firsts = rows.keep_all(site, [(one.arrival.evaluation, one.row, one.arrival.token) for one in placed])
    answers = {one.arrival: first for one, first in zip(placed, firsts, strict=True)}
    rows.note_durations(site, [(one.record, one.trial, one.row) for one in placed if answers[one.arrival]])
    for one in placed:
        _forget(site, one.arrival)
    rows.watch(site, [(one.arrival.evaluation, one.row) for one in placed])
    return dict(answers)


def _is_known(site: Site, evaluation: str) -> bool:
    try:
        evaluations.get(site.db, evaluation)
    except NotFound:
        return False
    return True


def _checked_manifest(folder: Path, arrival: Arrival) -> Manifest:
    manifest = manifests.load(manifest_of(folder))
    named = (manifest.evaluation, manifest.trial, manifest.token)
    if named != (arrival.evaluation, arrival.trial, arrival.token):
        raise InputError(f"the manifest is another run's: {'/'.join(named)[:200]}")
    if not redacting(folder).exists():
        manifests.verify(manifest, folder)
    return manifest


def _redact(site: Site, evaluation: str, folder: Path) -> tuple[str, ...]:
    """Take known secrets out of a run's folder; returns notes that say so.

    What is rewritten is not what the manifest says any more: the folder beside it, made first, tells the next look.
    """
    drafts, found = redacting(folder), set()
    for redactor in assets.redactors(site, evaluation):
        # Also of a folder that was refused, so what it is made of is not known.
        if folder.is_symlink() or not folder.is_dir():
            return ()
        for name in redaction.holding(redactor, folder, tree.read(folder, odd_names=True).files):
            drafts.mkdir(exist_ok=True)
            redaction.rewrite(redactor, folder / name, drafts / "draft")
            found.add(name)
    return (tree.note("secrets were taken out of", sorted(found)),) if found else ()


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
    first = rows.keep(site, arrival.evaluation, row, arrival.token)
    if first:
        rows.note_durations(site, [(record, trial, row)])
    _forget(site, arrival)
    return first


def adopt(site: Site, record: Record, trial: PlannedTrial, logged: TrialRow | None) -> bool:
    """Record a trial that lies in the job folder while the store does not know it; False if it is no result.

    ``logged`` is its row from the event log, which knows more than the folder (who ran it, how often).
    """
    if trials.state(site.db, record.evaluation.id, trial.name) is TrialState.DONE:
        return False
    if logged is not None:
        return rows.keep(site, record.evaluation.id, logged, "recovered")
    place = inside(Path(record.evaluation.job_dir), trial.name)
    try:
        summary = _summary(record, trial, place)
    except InputError as error:
        log.warning("%s lies in the job folder but is no result: %s", trial.name, error)
        return False
    return rows.keep(site, record.evaluation.id, _ownerless(summary), "recovered")


def _ownerless(summary: TrialSummary) -> TrialRow:
    """A row of which nobody knows who ran it, or that nobody did."""
    return TrialRow(summary=summary, worker="", attempt=1, committed_at=datetime.now(timezone.utc))


def _supersede(site: Site, arrival: Arrival, folder: Path) -> None:
    superseded.put_aside(site, arrival, folder)
    _forget(site, arrival)


def _forget(site: Site, arrival: Arrival) -> None:
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    manifest_of(folder).unlink(missing_ok=True)
    # Last: until the manifest is gone, somebody may look at the folder again.
    for left in (redacting(folder), site.shared.live(arrival.evaluation, arrival.trial, arrival.token)):
        if left.exists():
            shutil.rmtree(left, ignore_errors=True)


def _requeue(site: Site, record: Record, arrival: Arrival, reason: str) -> Requeued:
    limit = record.evaluation.spec.max_requeues
    where = (arrival.evaluation, arrival.trial, arrival.token)
    return trials.requeue(site.db, *where, reason=reason[:500], max_requeues=limit)


def _run_again(
    site: Site, record: Record, trial: PlannedTrial, arrival: Arrival, folder: Path, why: str, error_type: str
) -> bool:
    """Run the trial again and put its result aside; when it may not be run again, record that it has none."""
    why = hiding.redactor(site).text(why)
    log.warning("%s: %s", arrival.trial, why)
    requeued = _requeue(site, record, arrival, why)
    events.emit(site.db, arrival.evaluation, "rejected", trial=arrival.trial, token=arrival.token, reason=why[:500])
    first = requeued is Requeued.EXHAUSTED and _fail(site, record, trial, error_type, why)
    # What is no result was not looked through for secrets to its end.
    _redact(site, arrival.evaluation, folder)
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
    message = hiding.redactor(site).text(message)
    executor.fail(evaluation, trial, context, error_type, message)
    row = _ownerless(executor.summarise(trial, staging))
    _ensure_job(record)
    copy.rename(staging, place)
    return rows.keep(site, evaluation.id, row, "failed")
