"""What somebody should look at now, gathered from store, disk and summaries; `aeo.core.alerts` judges."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta, timezone

import psutil

from aeo import event_log, records, sharing, upkeep, workers
from aeo.core import alerts as core
from aeo.core import estimate
from aeo.core.alerts import Alert, ControllerFacts, EvaluationFacts, RunFacts, WorkerFacts
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, WorkerState
from aeo.site import Site
from aeo.store import connection, events, health, samples, trials
from aeo.store import evaluations as store
from aeo.store import workers as worker_store
from aeo.store.evaluations import EvaluationStatus
from aeo.store.trials import Running
from aeo.summaries import counts
from aeo.workers import WorkerView

#: Seconds back that errors of runs are looked at, and at most so many bytes of an event log.
RECENT_SECONDS, RECENT_BYTES = 900.0, 128 * 1024
#: Seconds below which nobody asks whether a run takes too long, so that little is read for short ones.
_SHORT_SECONDS = 120.0


def now(site: Site) -> tuple[Alert, ...]:
    """Everything to look at, the worst first.

    Raises:
        Unavailable: the store is away.
    """
    return of(site, workers.views(site), store.several(site.db, store.open_ids(site.db)))


def of(site: Site, pool: Sequence[WorkerView], running: Sequence[EvaluationStatus]) -> tuple[Alert, ...]:
    """The same for one who has read the workers and the evaluations that are not closed."""
    moment = connection.now(site.db)
    runs = [facts for status in running for facts in _runs(site, status, trials.running(site.db, status.id), moment)]
    facts = [_evaluation(site, status, moment) for status in running]
    return core.judge(_controller(site, pool, running, moment), _workers(site, pool), facts, runs)


def _controller(
    site: Site, pool: Sequence[WorkerView], running: Sequence[EvaluationStatus], moment: datetime
) -> ControllerFacts:
    unwritten = events.take(site.db, 1)
    waiting, nobody = _waiting(site, pool, running)
    return ControllerFacts(
        waiting=waiting,
        nobody=nobody,
        settled=health.settled_seconds(site.db) is not None,
        unwritten_seconds=max(0.0, (moment - unwritten[0][1].at).total_seconds()) if unwritten else 0.0,
        disks=_disks(site),
    )


def _waiting(site: Site, pool: Sequence[WorkerView], running: Sequence[EvaluationStatus]) -> tuple[int, str]:
    """How many evaluations wait while no worker takes work, and why none does."""
    waiting = sum(status.state is EvaluationState.RUNNING and status.pending > 0 for status in running)
    taking = any(view.state is WorkerState.ONLINE and not _draining(view) for view in pool)
    if not waiting or taking:
        return 0, ""
    out = sharing.kept_out(site)
    said = [*(f"{view.info.id} is {view.note or _draining(view) or view.state.value}" for view in pool)]
    said += [f"{text} (aeo workers allow {id})" for id, text in zip(out, sharing.outsiders(out), strict=True)]
    return waiting, f"{', '.join(said) or 'none has registered'}."


def _draining(view: WorkerView) -> str:
    return view.heartbeat.draining if view.heartbeat else ""


def _disks(site: Site) -> dict[str, tuple[int, int]]:
    disks: dict[str, tuple[int, int]] = {}
    for folder in (site.shared.root, site.shared.jobs_dir):
        # A folder that is gone is not this rule's.
        with suppress(OSError):
            usage = psutil.disk_usage(str(folder))
            # The same figures are most likely the same disk: it is told once.
            if (usage.free, usage.total) not in disks.values():
                disks[str(folder)] = (usage.free, usage.total)
    return disks


def _workers(site: Site, pool: Sequence[WorkerView]) -> Iterator[WorkerFacts]:
    measured = samples.of(site.db, [view.info.id for view in pool])
    for view in pool:
        beat, kept = view.heartbeat, measured[view.info.id]
        yield WorkerFacts(
            id=view.info.id,
            # One executor of it is a reason to look as well.
            state=WorkerState.PAUSED if _has_executor_out(view) else view.state,
            note=view.note,
            last_seen=beat.at if beat else kept[-1].at if kept else None,
            # The first heartbeat, made at registration, has measured nothing.
            disk_free=beat.disk_free if beat and (beat.disk_free or beat.disk_total) else None,
            disk_total=beat.disk_total if beat else 0,
            disk_full=bool(beat and beat.draining.startswith(workers.DISK_FULL)),
            clock_skew=beat.clock_skew if beat else None,
        )


def _has_executor_out(view: WorkerView) -> bool:
    return view.state is WorkerState.ONLINE and worker_store.EXECUTOR_OUT in view.note


def _evaluation(site: Site, status: EvaluationStatus, moment: datetime) -> EvaluationFacts:
    return EvaluationFacts(
        id=status.id,
        name=status.name,
        state=status.state,
        reason=status.reason,
        errors=tuple(_errors(site, status.id, moment - timedelta(seconds=RECENT_SECONDS))),
    )


def _errors(site: Site, id: str, since: datetime) -> Iterator[str]:
    """What the last runs ended with: those that are run again are known to the event log alone."""
    for event in event_log.latest(site.shared.events(id), RECENT_BYTES):
        if event.get("kind") not in ("committed", "requeued") or _moment(event) < since:
            continue
        summary = _part(_part(event, "row"), "summary")
        known = " ".join(str(summary.get(name) or "") for name in ("error_type", "error_message")).strip()
        yield known or str(event.get("reason") or "")


def _part(value: Mapping[str, object], name: str) -> Mapping[str, object]:
    part = value.get(name)
    return part if isinstance(part, Mapping) else {}


def _moment(event: Mapping[str, object]) -> datetime:
    try:
        at = datetime.fromisoformat(str(event.get("at")))
    except ValueError:
        return datetime.min.replace(tzinfo=timezone.utc)
    return at if at.tzinfo else at.replace(tzinfo=timezone.utc)


def _runs(site: Site, status: EvaluationStatus, running: Sequence[Running], moment: datetime) -> Iterator[RunFacts]:
    begun = [(run, (moment - run.started_at).total_seconds()) for run in running]
    long = [(run, seconds) for run, seconds in begun if seconds > _SHORT_SECONDS]
    if not long or status.state is EvaluationState.CANCELLING:
        return
    try:
        planned = records.read(site.shared.evaluation(status.id)).trials
    except InputError:
        # Damaged or just being removed; the doctor says so.
        return
    upkeep.catch_up(site, status)
    factor = estimate.factor(counts.durations(site.book, status.id))
    for run, seconds in long:
        trial = planned.get(run.claim.trial)
        yield RunFacts(
            evaluation=status.id,
            trial=run.claim.trial,
            worker=run.claim.worker,
            seconds=seconds,
            expected=trial.estimated_seconds * factor if trial and factor is not None else None,
            deadline=trial.deadline_seconds if trial else None,
        )
