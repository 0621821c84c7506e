"""An evaluation on a pool that is played through: the tables that the policy looks at, and that change under it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aeo.core.allot import Allotment
from aeo.core.model import PlannedTrial
from aeo.core.pool import Job, Kind, Run, Seat, Share, Waiting


@dataclass(kw_only=True)
class Entered:
    """An evaluation that was submitted. The job shows the other tables, which change under it."""

    job: Job
    seats: dict[str, Seat]
    shares: dict[str, Share]
    running: dict[str, Run]
    #: What waits, by batch and kind.
    queues: dict[str, dict[str, deque[Waiting]]]
    #: Trial to its plan, its batch and its kind.
    trials: Mapping[str, tuple[PlannedTrial, str, str]]
    #: How many wait of each kind.
    waits: Counter[Kind]


def enter(trials: Sequence[PlannedTrial], allotment: Allotment, *, priority: int, now: float) -> Entered:
    """Submit an evaluation that is shared out so: its batches are sent, and all of it waits."""
    planned = {trial.name: trial for trial in trials}
    numbers: dict[Kind, str] = {}
    places: dict[str, tuple[PlannedTrial, str, str]] = {}
    seats: dict[str, Seat] = {}
    shares: dict[str, Share] = {}
    queues: dict[str, dict[str, deque[Waiting]]] = {}
    running: dict[str, Run] = {}
    for worker, batches in allotment.shares.items():
        for number, names in enumerate(batches):
            batch = f"{worker}/{number}"
            seats[batch] = Seat(worker=worker, state="sent", since=now)
            own: dict[str, deque[Waiting]] = {}
            for place, name in enumerate(names):
                kind = Kind(needs=planned[name].needs, model=model_of(planned[name]))
                places[name] = planned[name], batch, numbers.setdefault(kind, str(len(numbers)))
                waiting = Waiting(trial=name, place=place, seconds=planned[name].estimated_seconds)
                own.setdefault(numbers[kind], deque()).append(waiting)
            queues[batch] = own
            if own:
                shares[batch] = Share(seconds=sum(planned[name].estimated_seconds for name in names), queues=own)
    named = {number: kind for kind, number in numbers.items()}
    job = Job(
        priority=priority,
        untouched=True,
        kinds=named,
        shares=shares,
        seats=seats,
        unfit=allotment.unfit,
        running=running,
    )
    waits = Counter(named[number] for _, _, number in places.values())
    return Entered(job=job, seats=seats, shares=shares, running=running, queues=queues, trials=places, waits=waits)


def leave(entered: Entered, name: str) -> None:
    """Take a trial that starts out of its share."""
    trial, batch, kind = entered.trials[name]
    own = entered.queues[batch]
    own[kind].remove(next(waiting for waiting in own[kind] if waiting.trial == name))
    if any(own.values()):
        left = entered.shares[batch].seconds - trial.estimated_seconds
        entered.shares[batch] = Share(seconds=left, queues=own)
    else:
        del entered.shares[batch]


def model_of(trial: PlannedTrial) -> str:
    """``provider/model`` as far as the trial says, which the keys of limits are compared with."""
    return "/".join(part for part in (trial.labels.get("provider"), trial.labels.get("model")) if part)
