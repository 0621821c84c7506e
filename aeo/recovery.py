"""The store is rebuilt from the disk: what was asked, what came out, what lies in the inbox. Idempotent."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aeo import credentials, event_log, jobs, logs, records, results
from aeo.core.errors import ExecutorFailed, InputError, NotFound, Unavailable
from aeo.core.model import EvaluationState
from aeo.records import Record
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import events, health, inbox, trials
from aeo.store.access import NotOffered
from aeo.store.evaluations import EvaluationStatus
from aeo.transfer import manifest as manifests

log = logging.getLogger(__name__)


def recover(site: Site) -> None:
    """Make the store agree with the disk: at controller start, and whenever the store was wiped.

    Raises:
        Unavailable: the store is away, or was wiped once more meanwhile.
    """
    begun = health.begin_recovery(site.db)
    # Workers get no time to come back but the one that begins at the end of this.
    with suppress(NotOffered):
        credentials.restore(site.shared, site.db)
    _sweep_staging(site)
    for folder in (path for path in site.shared.born() if (path / records.EVALUATION).exists()):
        with no_harm_to_others(folder.name, "recovered"):
            _recover_evaluation(site, folder)
    inbox.restore(site.db)
    _recover_inbox(site)
    health.mark_recovered(site.db, begun)


def _sweep_staging(site: Site) -> None:
    """Submissions that died half-way: their staging, and the job folder if nothing of others is in it."""
    with site.shared.nobody_submits() as alone:
        if alone:
            _sweep_left_overs(site)


def _sweep_left_overs(site: Site) -> None:
    for staging in site.shared.evaluations.glob("new.*"):
        id = staging.name.removeprefix("new.")
        if not site.shared.evaluation(id).exists() and (staging / records.EVALUATION).exists():
            record = records.read(staging)
            job_dir = Path(record.evaluation.job_dir)
            # What it took over has names of its own. Others mean that the folder is another evaluation's.
            if job_dir.is_dir() and all(path.name in record.trials for path in job_dir.iterdir() if path.is_dir()):
                shutil.rmtree(job_dir, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)
    for carried in site.shared.jobs_dir.glob(".carried.*"):
        shutil.rmtree(carried, ignore_errors=True)


def _recover_evaluation(site: Site, folder: Path) -> None:
    record = records.read(folder)
    try:
        status = store.get(site.db, folder.name)
    except NotFound:
        status = _rebuild(site, record)
    if not status.state.final:
        _adopt_committed(site, record)
        jobs.ring_if_all_in(site, status.id)


def _rebuild(site: Site, record: Record) -> EvaluationStatus:
    """Enter an evaluation into an empty store; its trials wait for `reconcile` to send batches."""
    evaluation = record.whole()
    stopped = event_log.stop_reason(event_log.read(site.shared.events(evaluation.id)))
    state, reason = event_log.last_state(event_log.read(site.shared.events(evaluation.id))) or (
        EvaluationState.RUNNING,
        "",
    )
    # In its last state from the first moment: one that is cancelled or closed must not run again.
    store.save(site.db, evaluation, {}, {}, state=state, reason=reason)
    _adopt_committed(site, record)
    if stopped:
        store.mark_stopped(site.db, evaluation.id, stopped)
    # One that its rule stopped and that is not closed: runs may take their leases back first.
    if state in (EvaluationState.CANCELLING, EvaluationState.CANCELLED) or (stopped and state.final):
        trials.cancel_pending(site.db, evaluation.id)
    events.emit(site.db, evaluation.id, "recovered")
    return store.get(site.db, evaluation.id)


def _adopt_committed(site: Site, record: Record) -> None:
    """Record what lies in the job folder; a trial committed is never run again."""
    job_dir = Path(record.evaluation.job_dir)
    rows = {row.summary.trial for row in trials.rows_since(site.db, record.evaluation.id, 0)}
    # What is just being committed is left to the commit, which knows who ran it.
    inbox_of = site.shared.inbox / record.evaluation.id
    arriving = {path.name.removesuffix(".json").rpartition(".")[0] for path in inbox_of.glob("*.json")}
    unknown = [
        trial
        for trial in record.trials.values()
        if trial.name not in rows and trial.name not in arriving and (job_dir / trial.name / "result.json").is_file()
    ]
    if not unknown:
        return
    folder = site.shared.evaluation(record.evaluation.id)
    logged = {
        **records.carried(folder),
        **event_log.committed_rows(event_log.read(site.shared.events(record.evaluation.id))),
    }
    for trial in unknown:
        results.adopt(site, record, trial, logged.get(trial.name))


def _recover_inbox(site: Site) -> None:
    """Look at every result that arrived and was not taken."""
    for path in sorted(site.shared.inbox.glob("*/*.json")):
        try:
            manifest = manifests.load(path)
        except InputError as error:
            log.warning("a manifest in the inbox is damaged: %s", error)
            continue
        trials.pushed(site.db, manifest.claim)


@contextmanager
def no_harm_to_others(id: str, what: str) -> Iterator[None]:
    """One evaluation that cannot be seen to must not keep the others from it."""
    with logs.about(evaluation=id):
        try:
            yield
        except Unavailable as error:
            if isinstance(error, ExecutorFailed):
                log.error("evaluation %s cannot be %s now: %s", id, what, error)
            else:
                raise
        except InputError as error:
            log.error("evaluation %s cannot be %s: %s", id, what, error)
        except Exception:
            log.exception("evaluation %s cannot be %s", id, what)
