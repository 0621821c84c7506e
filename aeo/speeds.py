"""Learns how fast workers are, and tells the evaluations that run: who counts, and how fast each is."""

from __future__ import annotations

import threading

from aeo import records, sharing
from aeo.core import speeds as core
from aeo.core.errors import InputError
from aeo.core.leave import FASTER
from aeo.core.model import EvaluationState
from aeo.site import Site
from aeo.store import evaluations, speeds, workers

#: Seconds between two rounds: for so long a worker that is paused or lost still counts.
ROUND_SECONDS = 1.0


class Pacer:
    """Learns in rounds."""

    def __init__(self, site: Site, stop: threading.Event) -> None:
        self._site, self._stop = site, stop
        #: How many runs were noted, and which workers there were.
        self._seen: tuple[int, list[str]] = (-1, [])
        #: Whether an evaluation's order leaves no choice: what has ended is to be a random sample.
        self._fixed: dict[str, bool] = {}
        #: Evaluations that were told; None: nobody knows, those of an earlier process.
        self._told: set[str] | None = None

    def round(self) -> None:
        """Learn what is new, and tell it."""
        pool = workers.all(self._site.db)
        known = self._learn([worker.info.id for worker in pool])
        taking = {
            worker.info.id: known.get(worker.info.id, 1.0)
            for worker in pool
            if sharing.takes_work(worker) and worker.weight_override != 0
        }
        uneven = bool(taking) and max(taking.values()) >= FASTER * min(taking.values())
        if uneven or self._told is None or self._told:
            told = evaluations.ids(self._site.db, EvaluationState.RUNNING)
            for id in told:
                if not self._is_fixed(id):
                    speeds.tell(self._site.db, id, taking)
            self._told = set(told) if uneven else set()
        else:
            self._fixed.clear()
        self._stop.wait(ROUND_SECONDS)

    def _learn(self, names: list[str]) -> dict[str, float]:
        db = self._site.db
        seen = (speeds.noted(db), sorted(names))
        if seen == self._seen:
            return speeds.learnt(db)
        learnt = core.learn(speeds.timed(db, names))
        speeds.keep(db, learnt)
        self._seen = seen
        return learnt

    def _is_fixed(self, id: str) -> bool:
        if id not in self._fixed:
            try:
                self._fixed[id] = records.header(self._site.shared.evaluation(id)).spec.stop_when is not None
            except InputError:
                # Just being submitted, or damaged: recovery says so.
                return True
        return self._fixed[id]
