"""Repairs: what is lost, left over or not known any more is put right. Every repair is idempotent and an event."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from aeo import codec, dispatch, evaluations, jobs, records, results
from aeo.core.errors import InputError, NotFound
from aeo.core.model import Claim, Evaluation, EvaluationState, TrialRow, TrialState, WorkerState
from aeo.records import Record
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import events, health, inbox, trials, workers
from aeo.store.evaluations import BatchStatus, EvaluationStatus
from aeo.store.trials import Requeued
from aeo.store.workers import WorkerStatus
from aeo.transfer import manifest as manifests

log = logging.getLogger(__name__)

#: Seconds that runs get to take their leases back after the store was wiped, before their trials are shared out anew.
RECLAIM_SECONDS = 5.0


def recover(site: Site) -> None:
    """Make the store agree with the disk: at controller start, and whenever the store was wiped.

    Raises:
        Unavailable: the store is away.
    """
    _sweep_staging(site)
    for folder in sorted(path for path in site.shared.evaluations.iterdir() if (path / records.EVALUATION).exists()):
        try:
            _recover_evaluation(site, folder)
        except InputError as error:
            log.error("evaluation %s cannot be recovered: %s", folder.name, error)
    inbox.restore(site.db)
    _recover_inbox(site)
    health.mark_recovered(site.db)


def _sweep_staging(site: Site) -> None:
    """Submissions that died half-way: their staging, and the job folder if nothing ran in it."""
    for staging in site.shared.evaluations.glob("new.*"):
        id = staging.name.removeprefix("new.")
        if not site.shared.evaluation(id).exists() and (staging / records.EVALUATION).exists():
            job_dir = Path(records.read(staging).evaluation.job_dir)
            if job_dir.is_dir() and not any(path.is_dir() for path in job_dir.iterdir()):
                shutil.rmtree(job_dir, ignore_errors=True)
        shutil.rmtree(staging, ignore_errors=True)


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
    store.save(site.db, evaluation, {}, {})
    last = last_state(site.shared.events(evaluation.id))
    _adopt_committed(site, record)
    if last is not None and last[0].final:
        store.move(site.db, evaluation.id, EvaluationState.MERGING)
        store.move(site.db, evaluation.id, *last)
    elif last is not None and last[0] is EvaluationState.CANCELLING:
        store.move(site.db, evaluation.id, *last)
        trials.cancel_pending(site.db, evaluation.id)
    events.emit(site.db, evaluation.id, "recovered")
    return store.get(site.db, evaluation.id)


def _adopt_committed(site: Site, record: Record) -> None:
    """Record what lies in the job folder; a trial committed is never run again."""
    job_dir = Path(record.evaluation.job_dir)
    rows = {row.summary.trial for row in trials.rows_since(site.db, record.evaluation.id, 0)}
    logged = logged_rows(site.shared.events(record.evaluation.id))
    for trial in record.trials.values():
        if trial.name not in rows and (job_dir / trial.name / "result.json").is_file():
            results.adopt(site, record, trial, logged.get(trial.name))


def last_state(path: Path) -> tuple[EvaluationState, str] | None:
    """The state an evaluation's own log says it was moved to last; None if it was never moved."""
    last = None
    for event in read_events(path):
        if event.get("kind") == "moved":
            last = (EvaluationState(str(event["state"])), str(event.get("reason", "")))
    return last


def logged_rows(path: Path) -> Mapping[str, TrialRow]:
    """The rows an evaluation's own log has of its committed trials."""
    rows = {}
    for event in read_events(path):
        if event.get("kind") == "committed" and event.get("attempt") != "0":
            with suppress(InputError):
                rows[str(event["trial"])] = codec.loads(TrialRow, str(event.get("row", "")))
    return rows


def read_events(path: Path) -> Iterable[Mapping[str, object]]:
    """The events of a log, a torn last line left out."""
    if not path.exists():
        return
    with path.open("rb") as lines:
        for line in lines:
            try:
                yield json.loads(line)
            except ValueError:
                continue


def _recover_inbox(site: Site) -> None:
    """Look at every result that arrived and was not taken."""
    for path in sorted(site.shared.inbox.glob("*/*.json")):
        try:
            manifest = manifests.load(path)
        except InputError as error:
            log.warning("a manifest in the inbox is damaged: %s", error)
            continue
        claim = Claim(
            evaluation=manifest.evaluation,
            trial=manifest.trial,
            batch="",
            worker=manifest.worker,
            token=manifest.token,
            attempt=manifest.attempt,
        )
        trials.pushed(site.db, claim)


def reconcile(site: Site) -> None:
    """One round of repairs over what is open.

    Raises:
        Unavailable: the store is away.
    """
    settled = health.settled_seconds(site.db)
    if settled is None:
        log.warning("the store was wiped; rebuilding it from disk")
        recover(site)
        settled = 0.0
    pool = {worker.info.id: worker for worker in workers.all(site.db)}
    for id in store.open_ids(site.db):
        try:
            record = records.read(site.shared.evaluation(id))
        except NotFound:
            # A submission that died after the store was told and before its folder stood.
            store.delete(site.db, id)
            continue
        if store.get(site.db, id).state is EvaluationState.CANCELLING:
            # A run that was given back while its evaluation is being cancelled.
            trials.cancel_pending(site.db, id)
        if settled >= site.config.grace_seconds:
            _requeue_expired(site, record, pool)
        if settled >= RECLAIM_SECONDS:
            _keep_going(site, record, pool)
        jobs.ring_if_all_in(site, id)


def _requeue_expired(site: Site, record: Record, pool: Mapping[str, WorkerStatus]) -> None:
    """Give back what nobody runs: at once when the worker is lost, after the grace when only its lease ended."""
    id, hung = record.evaluation.id, site.config.grace_seconds
    overdue = {claim.token for claim in trials.expired(site.db, id, ago_seconds=hung)}
    for claim in trials.expired(site.db, id):
        worker = pool.get(claim.worker)
        if worker is not None and worker.state is not WorkerState.LOST and claim.token not in overdue:
            continue
        requeued = trials.requeue(
            site.db,
            claim.evaluation,
            claim.trial,
            claim.token,
            reason=f"lease of worker {claim.worker} expired",
            max_requeues=record.evaluation.spec.max_requeues,
        )
        if requeued is Requeued.EXHAUSTED:
            message = f"The worker went away in each of {claim.attempt} runs."
            results.fail(site, record, record.trials[claim.trial], "WorkerLost", message)


def _keep_going(site: Site, record: Record, pool: Mapping[str, WorkerStatus]) -> None:
    """Send batches when trials wait and no batch is left that could take them."""
    status = store.get(site.db, record.evaluation.id)
    if status.state is not EvaluationState.RUNNING or not status.pending:
        return
    if any(_alive(batch, pool) for batch in store.batches(site.db, status.id)):
        return
    try:
        send_more(site, record.evaluation, record, pool.values())
    except InputError as error:
        log.warning("evaluation %s waits: %s", status.name, error)


def _alive(batch: BatchStatus, pool: Mapping[str, WorkerStatus]) -> bool:
    worker = pool.get(batch.batch.worker)
    online = worker is not None and worker.state is WorkerState.ONLINE
    return online and batch.state != "ended"


def send_more(site: Site, evaluation: Evaluation, record: Record, pool: Iterable[WorkerStatus]) -> None:
    """Share out what waits anew, over the workers that may take it now.

    Raises:
        InputError: no worker can.
    """
    states = trials.states(site.db, evaluation.id)
    waiting = [trial for trial in record.trials.values() if states.get(trial.name) is TrialState.PENDING]
    fit = evaluations.usable(list(pool), evaluation.spec, evaluation.plan)
    shares = evaluations.share_out(waiting, fit, evaluation.spec)
    batches = evaluations.batches_of(evaluation.id, shares)
    store.add_batches(site.db, evaluation.id, batches, shares.unfit)
    dispatch.send(site, evaluation.id, list(batches), priority=evaluation.spec.priority)
    events.emit(site.db, evaluation.id, "redispatched", batches=len(batches), waiting=len(waiting))
