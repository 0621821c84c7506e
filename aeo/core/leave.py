"""What a slot leaves to faster ones, where the workers of an evaluation are of different speeds. Pure.

A slot takes the first of a queue, which is longest first, that it would end before everything else is done: within
the work that is left over all slots' speeds, or what runs longest (after the longest-first rule for machines of
different speeds: Gonzalez, Ibarra and Sahni 1977). Longer ones wait for a faster slot. Three things keep them from
waiting in vain:

- What no faster worker can hold is not left, and the fastest leave nothing.
- The longer a slot has left what waits, the longer trials it takes: a trial of ``t`` seconds is left for
  `PATIENT` x (t/own speed - t/fastest) at most, by when nobody seems to come for it. What it gives its slot to
  meanwhile changes nothing of that. Until then, or for a minute at most, nobody makes way for it (`is_resting`): two
  evaluations would send each other the slot as fast as messages travel.
- Only workers count that take work and are alive; who keeps `Pace` sees to that.

What nobody has an estimate for takes no time here, so it is not left.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from aeo.core.pool import Horizon, Job, Pace, Seat, Waiting

#: So much longer than all the rest a trial may take that is not left: estimates are no better than that.
SLACK = 1.02
#: A worker is faster that is so many times as fast.
FASTER = 1.1
#: How many times as long a trial is left as the fastest worker would gain on it.
PATIENT = 2
#: Others' shares of which something was left before a slot looks no further: it asks often, and a pool has hundreds.
SHARES = 8
#: Seconds for which nobody makes way for one that leaves: as long as it has left already, within these; and the fewest.
REST_SECONDS, LONGEST_REST_SECONDS, SHORTEST_REST_SECONDS = 5.0, 60.0, 1.0
#: Seconds for which a look at all that runs serves every slot, for each run and each share it looked at; at most.
FRESH_SECONDS, LONGEST_FRESH_SECONDS = 0.001, 0.5
#: No speed is less, whatever was told.
LEAST_SPEED = 0.001


def is_slow(pace: Pace | None, worker: str) -> bool:
    """Whether an evaluation has a worker that is faster than this one."""
    speed = pace.speeds.get(worker) if pace else None
    return pace is not None and speed is not None and max(pace.speeds.values()) >= FASTER * speed


def is_resting(job: Job, seat: Seat, now: float) -> bool:
    """Whether a batch that waits for a slot would leave what waits to faster ones, as it said when it had one."""
    return seat.leaves is not None and seat.rests is not None and now < seat.rests and is_slow(job.pace, seat.worker)


class Leave:
    """What one batch leaves."""

    def __init__(self, job: Job, batch: str, now: float) -> None:
        self._job, self._batch, self._now = job, batch, now
        self._worker = job.seats[batch].worker
        self._fastest: dict[str, float] = {}
        self._horizon: float | None = None
        self._since = job.seats[batch].leaves
        self._patience = inf
        #: Of how many queues anything was left.
        self.left = 0

    def longest(self, queue: Sequence[Waiting], kind: str) -> float:
        """The most seconds of what is not left of a queue of a kind."""
        pace = self._job.pace
        speed = pace.speeds.get(self._worker) if pace else None
        if pace is None or speed is None or not queue or not is_slow(pace, self._worker):
            return inf
        if kind not in self._fastest:
            self._fastest[kind] = self._faster(pace, speed, queue[0].trial)
        fastest = self._fastest[kind]
        if not fastest:
            return inf
        waited = 0.0 if self._since is None else self._now - self._since
        # Slots do not end all at once: by half of a short trial, on average.
        within = SLACK * (self._within(pace) + queue[-1].seconds / fastest / 2)
        return speed * max(within, waited / (1 - speed / fastest) / PATIENT)

    def begin(self, queue: Sequence[Waiting], kind: str, longest: float) -> int:
        """The place behind the first from which on nothing is left: one that was given back is first at any length."""
        low, high = 1, len(queue)
        while low < high:
            middle = (low + high) // 2
            if queue[middle].seconds <= longest:
                high = middle
            else:
                low = middle + 1
        if low > 1 or queue[0].seconds > longest:
            self.leave(queue, kind)
        return low

    def leave(self, queue: Sequence[Waiting], kind: str) -> None:
        """Something of this queue is left: note for how long at most."""
        if self._job.pace:
            gain = 1 / self._job.pace.speeds[self._worker] - 1 / self._fastest[kind]
            self._patience = min(self._patience, PATIENT * queue[-1].seconds * gain)
        self.left += 1

    @property
    def rests(self) -> float | None:
        """Until when nobody makes way for this batch; None if it left nothing."""
        if not self.left:
            return None
        since = self._now if self._since is None else self._since
        rest = min(max(self._now - since, REST_SECONDS), LONGEST_REST_SECONDS)
        over = since + self._patience - self._now
        return self._now + (min(max(over, SHORTEST_REST_SECONDS), rest) if over > 0 else rest)

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
            seen = self._job.horizon
            if seen is None or not 0 <= self._now - seen.at < seen.fresh:
                seen = self._look(pace)
            since = self._now - seen.at
            self._horizon = max(seen.work / pace.power - since, seen.longest - since, 0.0)
        return self._horizon

    def _look(self, pace: Pace) -> Horizon:
        work, longest = sum(share.seconds for share in self._job.shares.values()), 0.0
        for run in self._job.running.values():
            if run.batch != self._batch:
                speed = pace.speeds.get(run.worker, 1.0)
                rest = max(0.0, run.seconds / speed - (self._now - run.since))
                work, longest = work + rest * speed, max(longest, rest)
        return Horizon(at=self._now, work=work, longest=longest, fresh=0.0)
