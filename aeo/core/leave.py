"""What a slot leaves to faster ones, where the workers of an evaluation are of different speeds. Pure.

A slot takes the first of a queue, which is longest first, that it would end before everything else is done: within
the work that is left over all slots' speeds, or what runs longest (after the longest-first rule for machines of
different speeds: Gonzalez, Ibarra and Sahni 1977). Longer ones wait for a faster slot. Three things keep them from
waiting in vain:

- What no faster worker can hold is not left, and the fastest leave nothing.
- The longer a slot has left what waits, the longer trials it takes: a trial of ``t`` seconds is left for
  `PATIENT` x (t/own speed - t/fastest) at most, by when nobody seems to come for it.
- Only workers count that take work and are alive; who keeps `Pace` sees to that.

What nobody has an estimate for takes no time here, so it is not left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from aeo.core.pool import Job, Pace, Waiting

#: So much longer than all the rest a trial may take that is not left: estimates are no better than that.
SLACK = 1.02
#: A worker is faster that is so many times as fast.
FASTER = 1.1
#: How many times as long a trial is left as the fastest worker would gain on it.
PATIENT = 2


def is_slow(pace: Pace | None, worker: str) -> bool:
    """Whether an evaluation has a worker that is faster than this one."""
    speed = pace.speeds.get(worker) if pace else None
    return pace is not None and speed is not None and max(pace.speeds.values()) >= FASTER * speed


class Leave:
    """What one batch leaves."""

    def __init__(self, job: Job, batch: str, now: float) -> None:
        self._job, self._batch, self._now = job, batch, now
        self._worker = job.seats[batch].worker
        self._fastest: dict[str, float] = {}
        self._horizon: float | None = None
        #: Whether anything was left.
        self.left = False

    def begin(self, queue: Sequence[Waiting], kind: str) -> tuple[int, float]:
        """The place in a queue of a kind from which on nothing is left, and the most seconds of what is not."""
        pace = self._job.pace
        speed = pace.speeds.get(self._worker) if pace else None
        if pace is None or speed is None or not queue:
            return 0, inf
        if kind not in self._fastest:
            self._fastest[kind] = self._faster(pace, speed, queue[0].trial)
        fastest = self._fastest[kind]
        if not fastest:
            return 0, inf
        since = self._job.seats[self._batch].leaves
        waited = 0.0 if since is None else self._now - since
        # Slots do not end all at once: by half of a short trial, on average.
        within = SLACK * (self._within(pace) + queue[-1].seconds / fastest / 2)
        longest = speed * max(within, waited / (1 - speed / fastest) / PATIENT)
        # One that was given back is the first, whatever it takes.
        low, high = 0, 0 if queue[0].seconds <= longest else len(queue)
        while low < high:
            middle = (low + high) // 2
            if queue[middle].seconds <= longest:
                high = middle
            else:
                low = middle + 1
        self.left = self.left or low > 0
        return low, longest

    def _faster(self, pace: Pace, speed: float, trial: str) -> float:
        """The speed of the fastest that is faster and can hold a trial; 0 if none is."""
        unfit = self._job.unfit
        return max(
            (
                other
                for worker, other in pace.speeds.items()
                if other >= FASTER * speed and trial not in unfit.get(worker, ())
            ),
            default=0.0,
        )

    def _within(self, pace: Pace) -> float:
        """Seconds until everything else is done, at least."""
        if self._horizon is None:
            work, longest = sum(share.seconds for share in self._job.shares.values()), 0.0
            for run in self._job.running.values():
                if run.batch != self._batch:
                    speed = pace.speeds.get(run.worker, 1.0)
                    rest = max(0.0, run.seconds / speed - (self._now - run.since))
                    work, longest = work + rest * speed, max(longest, rest)
            self._horizon = max(work / pace.power, longest)
        return self._horizon
