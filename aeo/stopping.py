"""Stopping evaluations by their own rule: what waits never runs, what runs ends as usual, then the job is closed."""

from __future__ import annotations

import logging
import threading
from contextlib import suppress

from aeo import dispatch, records, upkeep
from aeo.core.errors import InputError, NotFound
from aeo.core.model import EvaluationState, StopRule
from aeo.core.stopping import Watch
from aeo.site import Site
from aeo.store import evaluations, events, health, trials
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import counts

log = logging.getLogger(__name__)

#: Seconds between two looks at what was committed.
ROUND_SECONDS = 0.5
#: Trials looked at in one query.
_CHUNK = 500
#: Seconds after the store was rebuilt before what waits is ended: what ran may only seem to wait.
_RECLAIM_SECONDS = 5.0
_OPEN = (EvaluationState.RUNNING, EvaluationState.PAUSED)


class Stopper:
    """Looks at what was committed, each result once, of the evaluations that have a rule."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self._site, self._stop = site, stop
        self._watches: dict[str, Watch] = {}
        self._seen: dict[str, int] = {}

    def round(self) -> None:
        """Stop what is to be stopped."""
        open_ids = evaluations.open_ids(self._site.db)
        for gone in self._watches.keys() - set(open_ids):
            del self._watches[gone]
            self._seen.pop(gone, None)
        for id in open_ids:
            with suppress(NotFound):
                self._look(id)
        self._stop.wait(ROUND_SECONDS)

    def _look(self, id: str) -> None:
        try:
            rule = records.header(self._site.shared.evaluation(id)).spec.stop_when
        except InputError:
            # Just being submitted, or damaged: recovery says so.
            return
        if rule is None:
            return
        status = evaluations.get(self._site.db, id)
        if status.state not in _OPEN:
            return
        if status.stopped:
            # A run that was given back, or a stop that was interrupted. After a wipe, runs get their time to come back.
            if (health.settled_seconds(self._site.db) or 0.0) >= _RECLAIM_SECONDS:
                _end_waiting(self._site, status)
        elif status.pending and self._seen.get(id) != status.done:
            reason = self._decided(status, rule)
            self._seen[id] = status.done
            if reason:
                stop(self._site, status, reason)

    def _decided(self, status: EvaluationStatus, rule: StopRule) -> str:
        if status.id not in self._watches:
            record = records.read(self._site.shared.evaluation(status.id))
            self._watches[status.id] = Watch(status.name, rule, tuple(record.trials.values()))
        upkeep.catch_up(self._site, status)
        watch = self._watches[status.id]
        while names := watch.next_tasks(_CHUNK):
            ended = counts.ended(self._site.book, status.id, names)
            reason = watch.look(ended)
            if reason or len(ended) < len(names):
                return reason
        return ""


def stop(site: Site, status: EvaluationStatus, reason: str) -> None:
    """End what waits of an evaluation whose rule is met; what runs goes on to its end.

    Raises:
        Unavailable: the store is away.
    """
    if evaluations.mark_stopped(site.db, status.id, reason):
        log.info("evaluation %s is stopped by its rule: %s", status.name, reason)
        events.emit(site.db, status.id, "stopped", reason=reason)
        evaluations.set_reason(site.db, status.id, f"stopped early by its rule: {reason}")
    _end_waiting(site, evaluations.get(site.db, status.id))


def _end_waiting(site: Site, status: EvaluationStatus) -> None:
    if status.pending:
        trials.cancel_pending(site.db, status.id)
        status = evaluations.get(site.db, status.id)
        if status.done == status.total:
            dispatch.ring(site, status.id)
