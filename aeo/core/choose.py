"""What a batch does next: the choice that the store makes at each claim, as a pure function over what it looks at.

The store's ``claim.lua`` makes the same choice in one step; tests hold the two together on random states. Rules:

- A batch runs the first trial of its own share, then the first of the share with most estimated time left.
- A trial starts where what it declares is free: the worker's capacity times its overcommit, less what the trials that
  run there declared. One that does not fit is passed over, for `Pool.patience` seconds at most: from then on its worker
  starts nothing that would keep it from fitting.
- Under a key of a model provider no more trials run, and start in a minute, than its limit says.
- Where workers are of different speeds, a slow slot leaves to faster ones what it would end after all else
  (see `aeo.core.leave`).
- At the end of a trial a batch gives its slot to an evaluation that waits for one here: one of a higher priority, or of
  the same that has fewer of this worker's slots. A batch that has to wait itself gives its slot to any that could run.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from math import inf

from aeo.core.leave import SHARES, Leave, is_resting
from aeo.core.model import Capacity, Needs
from aeo.core.pool import Job, Kind, Limit, Place, Pool, Room, Waiting

#: Seconds for which a trial is left to others after it failed on a worker, if another works on its evaluation.
SHUN_SECONDS = 30.0
#: Seconds a batch has its slot before it gives it to an equal: a turn costs a message, which a short trial does not.
#: An evaluation that has not begun does not wait for that.
TURN_SECONDS = 1.0
#: Seconds for which a trial that does not fit is passed over.
PATIENCE_SECONDS = 60.0


class Answer(str, Enum):
    """What a batch does."""

    #: It runs a trial.
    CLAIM = "claim"
    #: Trials are left that may run here later: it asks again soon.
    WAIT = "wait"
    #: It leaves what waits to faster slots: it asks again, ever less often.
    LEAVE = "leave"
    #: Another evaluation gets its slot; it queues again behind it.
    TURN = "turn"
    #: Nothing is left for it.
    END = "end"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The choice made."""

    answer: Answer
    #: With `Answer.CLAIM`; else empty.
    trial: str = ""
    #: What the worker passed over, as it is after the choice.
    room: Room | None = None
    #: With `Answer.LEAVE` and `Answer.TURN`: it left trials to faster slots, and nobody makes way for it until then.
    rests: float | None = None


def covers(key: str, model: str) -> bool:
    """Whether a limit's key is this model, its provider, or anything between them."""
    return model == key or model.startswith(key + "/")


def amounts(needs: Needs) -> tuple[int, int, int]:
    """Thousandths of a cpu, MiB of memory, MiB of disk that a trial takes."""
    return round(needs.cpus * 1000), needs.memory_mb, needs.disk_mb


def offered(capacity: Capacity) -> tuple[float, float, float]:
    """The same of a worker; a disk of 0 is not measured and holds anything."""
    cpus, memory, disk = (
        int(value * capacity.overcommit + 1e-6)
        for value in (round(capacity.cpus * 1000), capacity.memory_mb, capacity.disk_mb)
    )
    return cpus, memory, disk or float("inf")


def choose(pool: Pool, evaluation: str, batch: str) -> Choice:
    """What a batch does next. Of the trial it ran before, if any, nothing is left to count."""
    job = pool.jobs.get(evaluation)
    seat = job.seats.get(batch) if job else None
    place = pool.places.get(seat.worker, Place()) if seat else Place()
    if job is None or seat is None or seat.state == "ended" or not job.runs or not place.takes:
        return Choice(answer=Answer.END, room=place.room)
    view = _View(pool, evaluation, batch)
    if not job.waits:
        return Choice(answer=Answer.END, room=view.room)
    started = seat.state == "started"
    if started and view.gives_way(arriving=False):
        return Choice(answer=Answer.TURN, room=view.room)
    trial, blocked, passed = view.pick()
    if not trial and not blocked:
        return Choice(answer=Answer.END, room=view.room)
    room = view.after(trial, passed or view.passed_for_others())
    if trial:
        return Choice(answer=Answer.CLAIM, trial=trial, room=room)
    rests = view.leave.rests
    waits = Answer.WAIT if rests is None else Answer.LEAVE
    return Choice(answer=Answer.TURN if started and view.has_heir() else waits, room=room, rests=rests)


def gives_way(pool: Pool, evaluation: str, batch: str) -> bool:
    """Whether a batch whose message has arrived queues again, behind an evaluation that is to have the slot before it.

    At most once for each that waits: if that does not come although it was let past, its message is lost.
    """
    job = pool.jobs.get(evaluation)
    seat = job.seats.get(batch) if job else None
    if job is None or seat is None or seat.state != "sent" or not job.runs or not job.waits:
        return False
    return _View(pool, evaluation, batch).gives_way(arriving=True)


class _View:
    """The pool as one batch sees it."""

    def __init__(self, pool: Pool, evaluation: str, batch: str) -> None:
        self.pool, self.evaluation, self.batch = pool, evaluation, batch
        self.job = pool.jobs[evaluation]
        self.seat = self.job.seats[batch]
        self.worker = self.seat.worker
        self.place = pool.places.get(self.worker, Place())
        used = [amounts(kind.needs) for seat, kind in self.place.loads.items() if seat != (evaluation, batch)]
        self.used = tuple(sum(column) for column in zip(*used, strict=True)) or (0, 0, 0)
        self.room = self.place.room if self._stands(self.place.room) else None
        self.leave = Leave(self.job, batch, pool.now)
        #: Verdicts by priority and kind: many shares hold the same kinds, and nothing changes while one looks.
        self.verdicts: dict[tuple[int, Kind], str] = {}
        self.shuns = any(
            other.state == "started" and other.worker != self.worker and pool.places.get(other.worker, Place()).takes
            for other in self.job.seats.values()
        )

    def pick(self) -> tuple[str, bool, Room | None]:
        """The trial to run; whether one is left for later; the first that was passed over because it did not fit."""
        room = self.room
        if room and room.evaluation == self.evaluation and self._binds(room) and self._fits(self.job.kinds[room.kind]):
            return room.trial, False, None
        blocked, passed, looked = False, None, 0
        fits: bool | None = None
        for share in self._shares():
            left = self.leave.left
            trial, more, first = self._pick_from(share)
            blocked, passed = blocked or more, passed or first
            looked += share != self.batch and self.leave.left > left
            if passed and fits is None:
                fits = self._could_run(self.evaluation, room=False)
            if trial or (passed and not fits) or looked == SHARES:
                return trial, blocked, passed
        return "", blocked, passed

    def _shares(self) -> Iterator[str]:
        """The batch's own share, then the others: who has most left first."""
        yield self.batch
        others = (other for other in self.job.shares if other != self.batch)
        yield from sorted(others, key=lambda other: (self.job.shares[other].seconds, other), reverse=True)

    def _pick_from(self, share: str) -> tuple[str, bool, Room | None]:
        best: Waiting | None = None
        tight: tuple[Waiting, str] | None = None
        blocked = False
        for kind, queue in self.job.shares[share].queues.items() if share in self.job.shares else ():
            verdict = self._verdict(self.job, self.job.kinds[kind])
            if verdict == "never":
                continue
            if verdict == "later":
                blocked = blocked or bool(queue)
                continue
            first, shunned = self._first(queue, kind)
            blocked = blocked or shunned or (verdict == "tight" and bool(queue))
            if first is None:
                continue
            if verdict == "yes" and (best is None or first.place < best.place):
                best = first
            if verdict == "tight" and (tight is None or first.place < tight[0].place):
                tight = first, kind
        passed = None
        if tight and (best is None or tight[0].place < best.place):
            passed = Room(evaluation=self.evaluation, trial=tight[0].trial, kind=tight[1], since=self.pool.now)
        return best.trial if best else "", blocked, passed

    def _first(self, queue: Sequence[Waiting], kind: str) -> tuple[Waiting | None, bool]:
        """The first that this worker may run, and whether one was left out that it may run later."""
        unfit: Set[str] = self.job.unfit.get(self.worker, frozenset())
        longest, shunned, begin = self.leave.longest(queue, kind), False, 0
        if queue and longest != inf:
            if queue[0].seconds <= longest and queue[0].trial not in unfit:
                shunned = self._is_shunned(queue[0].trial)
                if not shunned:
                    return queue[0], False
            left = self.leave.left
            begin = self.leave.begin(queue, kind, longest)
            shunned = shunned or self.leave.left > left
        for waiting in islice(queue, begin, None):
            if waiting.trial in unfit:
                continue
            if waiting.seconds > longest:
                self.leave.leave(queue, kind)
            elif not self._is_shunned(waiting.trial):
                return waiting, shunned
            shunned = True
        return None, shunned

    def _is_shunned(self, trial: str) -> bool:
        worker, since = self.job.avoid.get(trial, ("", 0.0))
        return self.shuns and worker == self.worker and since > self.pool.now - SHUN_SECONDS

    def after(self, trial: str, passed: Room | None) -> Room | None:
        """What the worker has passed over once this is chosen."""
        room = self.room
        if room and room.evaluation == self.evaluation and room.trial == trial:
            room = None
        if room or passed is None or self._is_kept_elsewhere(passed):
            return room
        return passed

    def passed_for_others(self) -> Room | None:
        """A trial that does not fit of an evaluation that waits for a slot: it could not pass it over itself."""
        if not any(kind.model or any(amounts(kind.needs)) for kind in self.job.kinds.values()):
            return None
        for _, _, other, batch in sorted(
            (seat.since, f"{id} {name}", id, name)
            for id, job in self.pool.jobs.items()
            if id != self.evaluation and job.runs and job.priority >= self.job.priority
            for name, seat in job.seats.items()
            if seat.worker == self.worker and seat.state == "sent" and name in job.shares
        ):
            job = self.pool.jobs[other]
            first = [
                (queue[0].place, queue[0].trial, kind)
                for kind, queue in job.shares[batch].queues.items()
                if queue and self._verdict(job, job.kinds[kind]) == "tight"
            ]
            if first:
                _, trial, kind = min(first)
                return Room(evaluation=other, trial=trial, kind=kind, since=self.pool.now)
        return None

    def _is_kept_elsewhere(self, passed: Room) -> bool:
        """Whether another worker has passed it over before, and will make room."""
        return any(
            place.alive
            and place.room
            and (place.room.evaluation, place.room.trial) == (passed.evaluation, passed.trial)
            for worker, place in self.pool.places.items()
            if worker != self.worker
        )

    def gives_way(self, *, arriving: bool) -> bool:
        """Whether an evaluation that waits here goes first."""
        job = self.job
        for other, since in self._rivals():
            rival = self.pool.jobs[other]
            if arriving and self.seat.turned is not None and since <= self.seat.turned:
                continue
            # Two that have not begun would give the slot to each other for ever.
            first = rival.untouched and not job.untouched
            held = arriving or first or self.pool.now - self.seat.since >= TURN_SECONDS
            equal = rival.priority == job.priority and held and self._has_fewer(other) and not self._has_kept()
            if (rival.priority > job.priority or equal) and self._could_run(other):
                return True
        room = self.room
        return (
            not arriving
            and room is not None
            and room.evaluation != self.evaluation
            and self._binds(room)
            and self._fits(self.pool.jobs[room.evaluation].kinds[room.kind])
            and any(other == room.evaluation for other, _ in self._rivals(resting=True))
        )

    def _has_kept(self) -> bool:
        """Whether this batch has the slot for the trial that room was kept for."""
        room = self.room
        return (
            self.seat.state == "started"
            and room is not None
            and room.evaluation == self.evaluation
            and self._binds(room)
            and self._fits(self.job.kinds[room.kind])
        )

    def has_heir(self) -> bool:
        """Whether anybody who waits here could use the slot."""
        return any(self._could_run(other) for other, _ in self._rivals())

    def _rivals(self, *, resting: bool = False) -> Iterator[tuple[str, float]]:
        """Other evaluations with trials and a batch that waits for a slot here, and since when it waits.

        ``resting``: also those that would leave what waits.
        """
        for id, job in self.pool.jobs.items():
            if id == self.evaluation or not job.runs or not job.waits:
                continue
            for seat in job.seats.values():
                waits = seat.worker == self.worker and seat.state == "sent"
                if waits and (resting or not is_resting(job, seat, self.pool.now)):
                    yield id, seat.since

    def _has_fewer(self, other: str) -> bool:
        """Whether another evaluation has fewer of this worker's slots."""
        return self._slots(other) < self._slots(self.evaluation)

    def _slots(self, evaluation: str) -> int:
        seats = self.pool.jobs[evaluation].seats.values()
        return sum(seat.worker == self.worker and seat.state == "started" for seat in seats)

    def _could_run(self, evaluation: str, *, room: bool = True) -> bool:
        job = self.pool.jobs[evaluation]
        left = {kind for share in job.shares.values() for kind, queue in share.queues.items() if queue}
        kept = self.room if room else None
        if kept and kept.evaluation == evaluation and self._binds(kept) and self._fits(job.kinds[kept.kind]):
            return True
        return any(self._verdict(job, job.kinds[kind]) == "yes" for kind in left)

    def _verdict(self, job: Job, kind: Kind) -> str:
        """``yes``; ``tight``: it does not fit now; ``later``: a limit or kept room; ``never``: it is too large."""
        key = job.priority, kind
        if key not in self.verdicts:
            self.verdicts[key] = self._judge(job.priority, kind)
        return self.verdicts[key]

    def _judge(self, priority: int, kind: Kind) -> str:
        needs = amounts(kind.needs)
        if not any(needs):
            return "yes" if self._allowed(kind.model) else "later"
        if self.place.capacity is None:
            return "later"
        if any(need > offer for need, offer in zip(needs, offered(self.place.capacity), strict=True)):
            return "never"
        if not self._allowed(kind.model):
            return "later"
        if not self._fits(kind):
            return "tight"
        room = self.room
        if room and self._binds(room, priority) and not self._leaves(room, needs):
            return "later"
        return "yes"

    def _fits(self, kind: Kind) -> bool:
        needs, free = amounts(kind.needs), self._free()
        return all(need <= amount for need, amount in zip(needs, free, strict=True) if need)

    def _free(self) -> tuple[float, ...]:
        if self.place.capacity is None:
            return (0, 0, 0)
        return tuple(offer - used for offer, used in zip(offered(self.place.capacity), self.used, strict=True))

    def _leaves(self, room: Room, needs: tuple[int, int, int]) -> bool:
        """Whether a trial that takes this leaves the room that is kept."""
        kept = amounts(self.pool.jobs[room.evaluation].kinds[room.kind].needs)
        return all(not need or free - need >= keep for need, free, keep in zip(needs, self._free(), kept, strict=True))

    def _stands(self, room: Room | None) -> bool:
        """Whether a trial that was passed over still waits, and a batch of its evaluation is here to run it."""
        job = self.pool.jobs.get(room.evaluation) if room else None
        if room is None or job is None or not job.runs or self.place.capacity is None:
            return False
        needs = amounts(job.kinds[room.kind].needs)
        return (
            any(
                waiting.trial == room.trial
                for share in job.shares.values()
                for waiting in share.queues.get(room.kind, ())
            )
            and self._has_seat(self.worker, job)
            and all(need <= offer for need, offer in zip(needs, offered(self.place.capacity), strict=True))
        )

    def _has_seat(self, worker: str, job: Job) -> bool:
        return any(seat.worker == worker and seat.state != "ended" for seat in job.seats.values())

    def _binds(self, room: Room, priority: int | None = None) -> bool:
        """Whether room is kept for it, against trials of this priority."""
        job = self.pool.jobs[room.evaluation]
        return (
            self.pool.now - room.since >= self.pool.patience
            and job.priority >= (self.job.priority if priority is None else priority)
            and self._allowed(job.kinds[room.kind].model)
        )

    def _allowed(self, model: str) -> bool:
        return not model or all(
            self._has_place(key, limit) for key, limit in self.pool.limits.items() if covers(key, model)
        )

    def _has_place(self, key: str, limit: Limit) -> bool:
        if limit.per_minute and self.pool.paced.get(key, 0.0) > self.pool.now:
            return False
        return not limit.trials or limit.trials > sum(
            covers(key, kind.model)
            for place in self.pool.places.values()
            for seat, kind in place.loads.items()
            if kind.model and seat != (self.evaluation, self.batch)
        )
