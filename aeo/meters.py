"""Counters and times of results, counted from the events as they are written down and kept in ``meters.json``.

Monitoring wants numbers that only grow; the store's go when an evaluation is removed. They are kept on disk, so that
the web process reads them, and a restart goes on with them. A crash may lose what was counted since the last `keep`.
"""

from __future__ import annotations

import logging
import time
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from aeo import codec, folders
from aeo.core.errors import InputError
from aeo.core.model import Outcome
from aeo.store.events import Event

log = logging.getLogger(__name__)

#: Upper ends of the classes of commit times, seconds; the last class has none.
BOUNDS = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
#: Seconds between two writes, at least.
KEEP_SECONDS = 2.0
#: Results on their way that are remembered: of more, the commit times of the oldest are not measured.
_MOST_ON_THE_WAY = 20_000


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What was counted so far."""

    #: Committed trials by outcome; those taken over from another evaluation are left out.
    outcomes: Mapping[str, int] = field(default_factory=lambda: {outcome.value: 0 for outcome in Outcome})
    #: Runs given back, to be run again.
    requeued: int = 0
    #: Second results of a trial, kept beside the one that counts.
    superseded: int = 0
    #: Commits by the time from the result's arrival to its commit, one number for each class of `BOUNDS` and the rest.
    commits: tuple[int, ...] = (0,) * (len(BOUNDS) + 1)
    #: Sum of those times, seconds.
    commit_seconds: float = 0.0


def read(path: Path) -> Reading:
    """What was kept; zeros when nothing was, or it cannot be read: monitoring takes that for a restart."""
    try:
        reading = codec.loads(Reading, path.read_bytes())
    except FileNotFoundError:
        return Reading()
    except (InputError, OSError) as error:
        log.warning("%s cannot be read, counting begins anew: %s", path.name, error)
        return Reading()
    return reading if len(reading.commits) == len(BOUNDS) + 1 else Reading()


class Meters:
    """Counts in the control process. Of one thread."""

    def __init__(self, path: Path) -> None:
        self._path = path
        kept = read(path)
        self._outcomes = {**Reading().outcomes, **kept.outcomes}
        self._requeued, self._superseded = kept.requeued, kept.superseded
        self._commits, self._commit_seconds = list(kept.commits), kept.commit_seconds
        self._arrived: OrderedDict[tuple[str, str, str], datetime] = OrderedDict()
        self._changed, self._kept_at = False, 0.0

    def note(self, event: Event) -> None:
        """Count one event."""
        run = (event.evaluation, event.fields.get("trial", ""), event.fields.get("token", ""))
        if event.kind == "pushed":
            self._arrived[run] = event.at
            if len(self._arrived) > _MOST_ON_THE_WAY:
                self._arrived.popitem(last=False)
            return
        if event.kind not in ("committed", "requeued", "superseded"):
            return
        arrived = self._arrived.pop(run, None)
        self._changed = True
        if event.kind == "requeued":
            self._requeued += 1
        elif event.kind == "superseded":
            self._superseded += 1
        else:
            outcome = event.fields.get("outcome", "")
            self._outcomes[outcome] = self._outcomes.get(outcome, 0) + 1
            if arrived is not None:
                self._measure(max(0.0, (event.at - arrived).total_seconds()))

    def _measure(self, seconds: float) -> None:
        self._commits[bisect_left(BOUNDS, seconds)] += 1
        self._commit_seconds += seconds

    def reading(self) -> Reading:
        """What was counted so far."""
        return Reading(
            outcomes=dict(self._outcomes),
            requeued=self._requeued,
            superseded=self._superseded,
            commits=tuple(self._commits),
            commit_seconds=self._commit_seconds,
        )

    def keep(self, *, at_once: bool = False) -> None:
        """Write it down, if it changed and the last time is a while ago. A disk that is full is not this one's."""
        now = time.monotonic()
        if not self._changed or (now - self._kept_at < KEEP_SECONDS and not at_once):
            return
        self._kept_at = now
        try:
            folders.write(self._path, codec.dumps(self.reading()))
            self._changed = False
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path.name, error)
