"""The pool as a choice sees it: evaluations with what waits, workers with what runs, limits. See `aeo.core.choose`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

from aeo.core.model import Capacity, Needs


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What trials have in common that decides where and when they may run."""

    needs: Needs = field(default_factory=Needs)
    #: ``provider/model``; empty if there is none.
    model: str = ""


@dataclass(frozen=True, kw_only=True)
class Waiting:
    """A pending trial and its place in its share; lower is earlier."""

    trial: str
    place: float
    #: Estimated.
    seconds: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Share:
    """What is left of a batch's trials."""

    #: Estimated, of all of them.
    seconds: float
    #: By kind, each in its order.
    queues: Mapping[str, Sequence[Waiting]]


@dataclass(frozen=True, kw_only=True)
class Seat:
    """A batch at its worker."""

    worker: str
    #: ``sent``, ``started`` or ``ended``.
    state: str
    #: When it came into that state; seconds, as all times here.
    since: float = 0.0
    #: When it gave its turn last.
    turned: float | None = None
    #: Since when it leaves what waits to faster slots.
    leaves: float | None = None
    #: Until when nobody makes way for it, as it would leave what waits again.
    rests: float | None = None


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trial that runs."""

    batch: str
    worker: str
    since: float
    #: Estimated, on a worker of speed 1.
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Horizon:
    """What was left of an evaluation when somebody looked."""

    at: float
    #: Seconds of what waits and of what runs, on a worker of speed 1.
    work: float
    #: Seconds until the last of what runs is done.
    longest: float
    #: Seconds for which it holds.
    fresh: float


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast the workers of an evaluation are, where they differ."""

    #: Of each that works on it.
    speeds: Mapping[str, float]
    #: Of all its slots together.
    power: float


@dataclass(frozen=True, kw_only=True)
class Job:
    """An evaluation."""

    priority: int = 0
    runs: bool = True
    #: None of its trials has begun.
    untouched: bool = False
    kinds: Mapping[str, Kind]
    #: By batch; "" has what is in no batch's share.
    shares: Mapping[str, Share]
    seats: Mapping[str, Seat]
    #: Worker to the trials it cannot hold.
    unfit: Mapping[str, Set[str]] = field(default_factory=dict)
    #: Trial to the worker it failed on last, and when.
    avoid: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    #: None: its workers are alike, or nobody knows.
    pace: Pace | None = None
    #: What runs, by trial; looked at where there is a pace only.
    running: Mapping[str, Run] = field(default_factory=dict)
    #: The last look at all that; None: nobody looked.
    horizon: Horizon | None = None

    @property
    def waits(self) -> bool:
        """Whether any trial is pending."""
        return any(queue for share in self.shares.values() for queue in share.queues.values())


@dataclass(frozen=True, kw_only=True)
class Room:
    """A trial that a worker passed over."""

    evaluation: str
    trial: str
    kind: str
    #: When it was passed over first.
    since: float


@dataclass(frozen=True, kw_only=True)
class Place:
    """A worker."""

    #: None: it is not registered, so that nothing that declares a need starts here.
    capacity: Capacity | None = None
    #: It may claim: not paused, draining, removed or of weight 0.
    takes: bool = True
    #: It has a heartbeat.
    alive: bool = True
    #: What the trials running here take, by evaluation and batch.
    loads: Mapping[tuple[str, str], Kind] = field(default_factory=dict)
    room: Room | None = None


@dataclass(frozen=True, kw_only=True)
class Limit:
    """What may run under one key: a provider, or a provider's model."""

    #: Trials at once; 0 is any number.
    trials: int = 0
    #: Trials that may start in a minute, evenly spread; 0 is any number.
    per_minute: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Everything a choice looks at."""

    now: float
    jobs: Mapping[str, Job]
    places: Mapping[str, Place]
    limits: Mapping[str, Limit] = field(default_factory=dict)
    #: Key to when the next trial may start under it.
    paced: Mapping[str, float] = field(default_factory=dict)
    #: Seconds for which a trial may be passed over.
    patience: float
