"""How many workers there should be, between limits, by the trials that wait and run. Pure; `aeo.scaling` acts on it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What the pool is kept within."""

    least: int
    most: int
    #: Slots of each worker.
    slots: int
    #: Seconds a worker must have had nothing to do before it is destroyed.
    idle_seconds: float = 60.0
    #: Seconds a worker gets to show itself; one that does not, is destroyed.
    start_seconds: float = 300.0


@dataclass(frozen=True, kw_only=True)
class Member:
    """A worker of the pool, until it is gone."""

    id: str
    #: It has a heartbeat.
    ready: bool = True
    #: Trials it runs, or batches that wait for it.
    busy: int = 0
    #: Since when it has been as it is: without work if it is ready, without a heartbeat if not. Seconds.
    seconds: float = 0.0
    #: It was told to end.
    leaving: bool = False


@dataclass(frozen=True, kw_only=True)
class Change:
    """What to do."""

    create: int = 0
    destroy: tuple[str, ...] = ()


def wanted(limits: Limits, busy: int, pending: int, free_elsewhere: int = 0) -> int:
    """How many workers there should be for these trials: ``busy`` run in the pool, ``pending`` wait for any worker.

    ``free_elsewhere``: free slots of workers that are not of the pool; they take theirs first.
    """
    trials = busy + max(0, pending - free_elsewhere)
    return min(max(math.ceil(trials / limits.slots), limits.least), limits.most)


def decide(limits: Limits, members: Sequence[Member], *, pending: int, free_elsewhere: int = 0) -> Change:
    """What to do now.

    More come at once when trials wait; fewer only as workers stay idle, so that a short gap costs nobody a start. One
    that works is never destroyed.
    """
    staying = [member for member in members if not member.leaving]
    dead = [member for member in staying if not member.ready and member.seconds > limits.start_seconds]
    alive = [member for member in staying if member not in dead]
    busy = sum(member.busy for member in alive)
    want = wanted(limits, busy, pending, free_elsewhere)
    # Those that leave have a place until they are gone: never more than the most at once.
    room = max(0, limits.most - (len(members) - len(dead)))
    create = min(max(0, want - len(alive)), room)
    idle = [member for member in alive if member.ready and not member.busy and member.seconds >= limits.idle_seconds]
    surplus = max(0, len(alive) - want)
    # The one idle for longest goes first.
    idle.sort(key=lambda member: (-member.seconds, member.id))
    return Change(create=create, destroy=tuple(member.id for member in [*dead, *idle[:surplus]]))
