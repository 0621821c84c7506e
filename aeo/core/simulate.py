"""When evaluations would end on a pool: the live policy played through in time that costs nothing.

Discrete events over the very functions that the live engine uses: `allot` shares out, `choose` says what a batch does
at each claim. Pure, and the same for the same input.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count

from aeo.core.allot import Offer, allot
from aeo.core.choose import PATIENCE_SECONDS, Answer, choose, gives_way
from aeo.core.entered import Entered, enter, leave
from aeo.core.gates import Gates
from aeo.core.leave import FASTER
from aeo.core.model import Capacity, PlannedTrial
from aeo.core.pool import Job, Kind, Limit, Place, Pool, Run
from aeo.core.speeds import pace

#: What a machine of which only slots are known is taken to have.
_PLENTY = 10**9


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A worker of the pool."""

    name: str
    slots: int
    #: 1 takes a trial as long as its seconds say, 2 half as long. The policy knows it.
    speed: float = 1.0
    #: None: room for anything.
    capacity: Capacity | None = None
    #: A person's weight for it, see `Offer`.
    weight: float | None = None

    @property
    def holds(self) -> Capacity:
        """What it has."""
        return self.capacity or Capacity(slots=self.slots, cpus=_PLENTY, memory_mb=_PLENTY)


@dataclass(frozen=True, kw_only=True)
class Work:
    """An evaluation to be run. What is expected of its trials stands in them, and decides their order."""

    id: str = "evaluation"
    trials: Sequence[PlannedTrial]
    #: What each trial does take at speed 1, by name; left out: as expected.
    seconds: Mapping[str, float] = field(default_factory=dict)
    #: Slots of each machine it may use; None means all.
    limit: int | None = None
    priority: int = 0
    submitted: float = 0.0

    def takes(self, trial: PlannedTrial) -> float:
        """Seconds of a trial at speed 1."""
        return self.seconds.get(trial.name, trial.estimated_seconds)


@dataclass(frozen=True, kw_only=True)
class Span:
    """A trial that ran; times in seconds."""

    evaluation: str
    trial: str
    worker: str
    start: float
    end: float


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What came of it."""

    #: In the order of their ends.
    spans: tuple[Span, ...]
    machines: tuple[Machine, ...]
    #: Trials that fit no machine, by evaluation.
    left: Mapping[str, tuple[str, ...]]
    #: How often a batch queued again, behind another evaluation.
    turns: int = 0

    @property
    def makespan(self) -> float:
        """Seconds from the start to the end of the last trial."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def utilisation(self) -> float:
        """Share of all slots' time in which they ran a trial."""
        whole = self.makespan * sum(machine.slots for machine in self.machines)
        return math.fsum(span.end - span.start for span in self.spans) / whole if whole else 0.0

    def of(self, worker: str) -> tuple[Span, ...]:
        """What one machine ran."""
        return tuple(span for span in self.spans if span.worker == worker)


def simulate(
    works: Sequence[Work],
    machines: Sequence[Machine],
    *,
    limits: Mapping[str, Limit] | None = None,
    overhead: float = 0.0,
    patience: float = PATIENCE_SECONDS,
    message: float = 0.0,
) -> Forecast:
    """Play evaluations through on a pool.

    ``limits``: by key of a model provider; ``overhead``: seconds a slot takes for each trial beside running it;
    ``patience``: see `choose`; ``message``: seconds until a batch that gave its turn has queued again.
    """
    return _Play(works, machines, limits or {}, overhead, patience, message).play()


class _Play:
    """The pool while it is played through."""

    def __init__(
        self,
        works: Sequence[Work],
        machines: Sequence[Machine],
        limits: Mapping[str, Limit],
        overhead: float,
        patience: float,
        message: float,
    ) -> None:
        self.works = {work.id: work for work in works}
        self.machines = {machine.name: machine for machine in machines}
        self.speeds = {machine.name: machine.speed for machine in machines if machine.weight != 0}
        self.uneven = bool(self.speeds) and max(self.speeds.values()) >= FASTER * min(self.speeds.values())
        self.gates, self.overhead, self.patience, self.message = Gates(limits), overhead, patience, message
        self.now = 0.0
        self.entered: dict[str, Entered] = {}
        self.jobs: dict[str, Job] = {}
        #: Loads by machine, the same as in its place.
        self.loads: dict[str, dict[tuple[str, str], Kind]] = {name: {} for name in self.machines}
        self.places = {
            name: Place(capacity=one.holds, takes=one.weight != 0, loads=self.loads[name])
            for name, one in self.machines.items()
        }
        self.free = {name: machine.slots for name, machine in self.machines.items()}
        #: Messages by machine: the highest priority first, then the oldest.
        self.queues: dict[str, list[tuple[float, int, str, str]]] = {name: [] for name in self.machines}
        #: Batches by machine that have a slot and nothing they may run now.
        self.idle: dict[str, deque[tuple[str, str]]] = {name: deque() for name in self.machines}
        #: When all look again as a limit has room, so that each such moment comes once.
        self.openings: set[float] = set()
        #: When a batch looks again that leaves trials to faster slots.
        self.looks: dict[tuple[str, str], float] = {}
        self.numbers = count()
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.spans: list[Span] = []
        self.turns = 0

    def play(self) -> Forecast:
        for work in self.works.values():
            self._at(work.submitted, partial(self._submit, work))
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        return Forecast(
            spans=tuple(self.spans), machines=tuple(self.machines.values()), left=self._left(), turns=self.turns
        )

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self.events, (time, next(self.numbers), happen))

    def _left(self) -> dict[str, tuple[str, ...]]:
        ran = {(span.evaluation, span.trial) for span in self.spans}
        left = {
            id: tuple(trial.name for trial in work.trials if (id, trial.name) not in ran)
            for id, work in self.works.items()
        }
        return {id: names for id, names in left.items() if names}

    def _submit(self, work: Work) -> None:
        offers = [
            Offer(worker=one.name, capacity=one.holds, weight=one.weight, speed=one.speed)
            for one in self.machines.values()
        ]
        self.entered[work.id] = entered = enter(
            work.trials, allot(work.trials, offers, work.limit), priority=work.priority, now=self.now
        )
        self.jobs[work.id] = entered.job
        for batch in entered.seats:
            self._queue(work.id, batch)
        self._look()

    def _queue(self, evaluation: str, batch: str, *, behind: bool = False) -> None:
        """``behind``: after those of every priority, or who gave its turn would be the next to get it."""
        entered = self.entered[evaluation]
        message = (math.inf if behind else -entered.job.priority, next(self.numbers), evaluation, batch)
        heapq.heappush(self.queues[entered.seats[batch].worker], message)

    def _look(self, worker: str | None = None) -> None:
        """Let those go on that wait: on one machine, or on all, as they do where a limit may have room again."""
        held = False
        for name in self.machines if worker is None or self.gates.limits or self.uneven else (worker,):
            for _ in range(len(self.idle[name])):
                # Who is held stays so at this moment, as nobody is asked then.
                held = held or self._is_held()
                if held:
                    break
                self._ask(name, *self.idle[name].popleft())
            self._fill(name)
        opens = self.gates.opens(self.now)
        if opens is not None and opens not in self.openings and any(self.idle.values()):
            self.openings.add(opens)
            self._at(opens, self._look)

    def _is_held(self) -> bool:
        """Whether whoever asks would be told to wait by a limit: asking all of a large pool takes its time.

        Of one evaluation alone; several may give each other their slots.
        """
        if not self.gates.limits or len(self.entered) > 1:
            return False
        left = {kind for entered in self.entered.values() for kind, number in entered.waits.items() if number}
        models = {kind.model for kind in left}
        return bool(models) and self.gates.shut(models, self.now)

    def _fill(self, worker: str) -> None:
        """Start the batches whose turn it is on the free slots."""
        while self.free[worker] and self.queues[worker]:
            _, _, evaluation, batch = heapq.heappop(self.queues[worker])
            if gives_way(self._pool(), evaluation, batch):
                self._turn(evaluation, batch)
                continue
            self._seat(evaluation, batch, "started")
            self.free[worker] -= 1
            if self._is_held():
                self.idle[worker].append((evaluation, batch))
            else:
                self._ask(worker, evaluation, batch)

    def _pool(self) -> Pool:
        return Pool(
            now=self.now,
            jobs=self.jobs,
            places=self.places,
            limits=self.gates.limits,
            paced=self.gates.paced,
            patience=self.patience,
        )

    def _ask(self, worker: str, evaluation: str, batch: str) -> None:
        if self.uneven:
            self._note_pace(evaluation)
        choice = choose(self._pool(), evaluation, batch)
        if choice.room != self.places[worker].room:
            self.places[worker] = replace(self.places[worker], room=choice.room)
        if choice.answer is Answer.CLAIM:
            self._start(worker, evaluation, batch, choice.trial)
            return
        if choice.answer is not Answer.END:
            self._rest(worker, evaluation, batch, choice.rests)
        if choice.answer in (Answer.WAIT, Answer.LEAVE):
            self.idle[worker].append((evaluation, batch))
        else:
            self.free[worker] += 1
            if choice.answer is Answer.TURN:
                self._turn(evaluation, batch)
            else:
                self._seat(evaluation, batch, "ended")

    def _note_pace(self, evaluation: str) -> None:
        job = self.jobs[evaluation]
        # Slots that other evaluations have are not for this one; those it may soon have are asked for at this moment.
        slots = [seat.worker for seat in job.seats.values() if seat.state == "started" and seat.worker in self.speeds]
        slots += [name for name, free in self.free.items() for _ in range(free) if name in self.speeds]
        now = pace(slots, self.speeds)
        if now != job.pace:
            self.entered[evaluation].job = self.jobs[evaluation] = replace(job, pace=now)

    def _rest(self, worker: str, evaluation: str, batch: str, rests: float | None) -> None:
        """A slot that leaves what waits asks again by then, and so do those that made no way for it."""
        seats = self.entered[evaluation].seats
        since = seats[batch].leaves
        if rests is not None and since is None:
            since = self.now
        seats[batch] = replace(seats[batch], leaves=since, rests=rests)
        if rests is None or since is None:
            return
        # Each minute for a year would take as long as it takes to say; a hundredth of its time is near enough.
        at = max(rests, self.now + (self.now - since) / 100)
        if self.looks.get((evaluation, batch)) != at:
            self.looks[evaluation, batch] = at
            self._at(at + 1e-6, partial(self._look_again, worker, (evaluation, batch), at))

    def _look_again(self, worker: str, seat: tuple[str, str], at: float) -> None:
        # Whoever was asked since then looks at another time; all these looks would multiply.
        if self.looks[seat] == at:
            self._look(worker)

    def _turn(self, evaluation: str, batch: str) -> None:
        self.turns += 1
        self._seat(evaluation, batch, "sent", turned=self.now)
        if self.message:
            self._at(self.now + self.message, partial(self._arrive, evaluation, batch))
        else:
            self._queue(evaluation, batch, behind=True)

    def _arrive(self, evaluation: str, batch: str) -> None:
        self._queue(evaluation, batch, behind=True)
        self._fill(self.entered[evaluation].seats[batch].worker)

    def _seat(self, evaluation: str, batch: str, state: str, *, turned: float | None = None) -> None:
        seats = self.entered[evaluation].seats
        turned = seats[batch].turned if turned is None else turned
        seats[batch] = replace(seats[batch], state=state, since=self.now, turned=turned)

    def _start(self, worker: str, evaluation: str, batch: str, name: str) -> None:
        entered = self.entered[evaluation]
        trial, _, kind = entered.trials[name]
        leave(entered, name)
        if entered.job.untouched:
            entered.job = self.jobs[evaluation] = replace(entered.job, untouched=False)
        self.loads[worker][(evaluation, batch)] = entered.job.kinds[kind]
        entered.waits[entered.job.kinds[kind]] -= 1
        self.gates.start(entered.job.kinds[kind].model, self.now)
        if self.uneven:
            entered.running[name] = Run(batch=batch, worker=worker, since=self.now, seconds=trial.estimated_seconds)
            entered.seats[batch] = replace(entered.seats[batch], leaves=None, rests=None)
        lasts = self.works[evaluation].takes(trial) / self.machines[worker].speed + self.overhead
        span = Span(evaluation=evaluation, trial=name, worker=worker, start=self.now, end=self.now + lasts)
        self._at(span.end, partial(self._end, span, batch))

    def _end(self, span: Span, batch: str) -> None:
        self.gates.end(self.loads[span.worker].pop((span.evaluation, batch)).model)
        self.entered[span.evaluation].running.pop(span.trial, None)
        self.spans.append(span)
        self._ask(span.worker, span.evaluation, batch)
        self._look(span.worker)
