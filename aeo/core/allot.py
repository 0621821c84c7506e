"""Who gets which trial: weights, shares, batches. Pure and deterministic.

Shares are counts by weight and speed, rounded by largest remainder (Hamilton's method, 1792). Within the counts, trials
are dealt longest first to the worker where they would end soonest (LPT, Graham 1969; on workers of different speeds:
Gonzalez, Ibarra and Sahni 1977), so that shares even out in seconds as well as in number. A share is only where trials
start: a batch that is done helps the one with most left.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aeo.core.leave import LEAST_SPEED
from aeo.core.model import Capacity, Needs, PlannedTrial

#: Heaviest weight that a person may set.
MOST_WEIGHT = 1_000_000


@dataclass(frozen=True, kw_only=True)
class Offer:
    """A worker as one evaluation sees it."""

    worker: str
    capacity: Capacity
    #: A person's weight for this worker; None means by capacity, 0 means no share.
    weight: float | None = None
    #: 0.5 takes twice as long as usual.
    speed: float = 1.0


@dataclass(frozen=True, kw_only=True)
class Allotment:
    """An evaluation's trials shared out."""

    #: Worker to its batches, each a tuple of trial names, longest first. A batch may be empty: it only helps.
    shares: Mapping[str, tuple[tuple[str, ...], ...]]
    #: Worker to the trials it cannot hold at all; only workers that have some.
    unfit: Mapping[str, frozenset[str]]
    #: Trials no offered worker can hold.
    homeless: tuple[str, ...] = ()


def mean_needs(trials: Sequence[PlannedTrial]) -> Needs:
    """What a typical trial of these takes; an undeclared need counts as none."""
    count = max(1, len(trials))
    return Needs(
        cpus=sum(trial.needs.cpus for trial in trials) / count,
        memory_mb=-(-sum(trial.needs.memory_mb for trial in trials) // count),
        disk_mb=-(-sum(trial.needs.disk_mb for trial in trials) // count),
    )


def concurrency(trials: Sequence[PlannedTrial], capacity: Capacity, limit: int | None) -> int:
    """How many of these trials a worker runs at once: what fits, at most ``limit`` (None: every slot).

    A worker that holds a typical trial less than once still runs those it can hold, one at a time.
    """
    fits = max(1, mean_needs(trials).fit(capacity)) if capacity.slots else 0
    return min(fits, len(trials), fits if limit is None else limit)


def largest_remainder(total: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Split ``total`` by ``weights``: each share within one of exact, shares adding up to ``total``.

    Equal remainders go to the earlier key. All weights 0: nobody gets anything.
    """
    whole = sum(weights.values())
    if whole <= 0:
        return dict.fromkeys(weights, 0)
    exact = {key: total * weight / whole for key, weight in weights.items()}
    shares = {key: int(value) for key, value in exact.items()}
    # A weight of 0 gets no remainder either.
    order = sorted((key for key in weights if weights[key] > 0), key=lambda key: -(exact[key] - shares[key]))
    for key in order[: total - sum(shares.values())]:
        shares[key] += 1
    return shares


def allot(trials: Sequence[PlannedTrial], offers: Sequence[Offer], limit: int | None) -> Allotment:
    """Share ``trials`` out over ``offers``; ``limit`` is the evaluation's per-worker concurrency (None: all slots).

    Every trial that fits somewhere appears in exactly one batch. With no unfit trial the number each worker gets is
    within one of its exact share by weight. Trials that only some workers can hold may move shares further.
    """
    unfit = {
        offer.worker: frozenset(trial.name for trial in trials if trial.needs.fit(offer.capacity) < 1)
        for offer in offers
    }
    unfit = {worker: names for worker, names in unfit.items() if names}
    batches = {offer.worker: concurrency(_held(trials, unfit, offer), offer.capacity, limit) for offer in offers}
    weights = {
        offer.worker: float(batches[offer.worker] if offer.weight is None else offer.weight)
        * max(offer.speed, LEAST_SPEED)
        for offer in offers
        if batches[offer.worker] and offer.weight != 0
    }
    alike = len({offer.speed for offer in offers if offer.worker in weights}) <= 1
    homes = {
        name: [worker for worker in weights if name not in unfit.get(worker, ())]
        for name in frozenset().union(*unfit.values())
    }
    homeless = {name for name, workers in homes.items() if not workers} if weights else {t.name for t in trials}
    shares = _deal([trial for trial in trials if trial.name not in homeless], homes, weights, {} if alike else batches)
    return Allotment(
        shares={worker: _split(shares[worker], batches[worker]) for worker in weights},
        unfit=unfit,
        homeless=tuple(trial.name for trial in trials if trial.name in homeless),
    )


def _held(trials: Sequence[PlannedTrial], unfit: Mapping[str, frozenset[str]], offer: Offer) -> Sequence[PlannedTrial]:
    names = unfit.get(offer.worker)
    return [trial for trial in trials if trial.name not in names] if names else trials


def _longest_first(trials: Sequence[PlannedTrial]) -> list[PlannedTrial]:
    return sorted(trials, key=lambda trial: -trial.estimated_seconds)


def _deal(
    trials: Sequence[PlannedTrial],
    homes: Mapping[str, list[str]],
    weights: Mapping[str, float],
    slots: Mapping[str, int],
) -> dict[str, list[PlannedTrial]]:
    """Deal to the weighted; ``homes`` names the only places of the trials that cannot go everywhere.

    ``slots``: of each worker, where they are of different speeds: then a trial's end counts, and not what is before it.
    """
    quota = largest_remainder(len(trials), weights)
    shares: dict[str, list[PlannedTrial]] = {worker: [] for worker in weights}
    load = dict.fromkeys(weights, 0.0)
    free = {worker: [0.0] * slots[worker] for worker in weights if slots}
    #: Seconds by which one second of a trial takes a slot.
    slowness = {worker: slots[worker] / weights[worker] for worker in free}

    def give(trial: PlannedTrial, worker: str) -> None:
        quota[worker] -= 1
        seconds = max(trial.estimated_seconds, 1e-6)
        if free:
            heapq.heapreplace(free[worker], free[worker][0] + seconds * slowness[worker])
            load[worker] = free[worker][0]
        else:
            load[worker] += seconds / weights[worker]
        shares[worker].append(trial)

    def end(worker: str, trial: PlannedTrial) -> float:
        return load[worker] + trial.estimated_seconds * slowness.get(worker, 0.0)

    # The choosy first, while their few homes still have room; over quota rather than nowhere.
    choosy = [trial for trial in trials if trial.name in homes]
    for trial in sorted(choosy, key=lambda t: (len(homes[t.name]), -t.estimated_seconds)):
        give(trial, min(homes[trial.name], key=lambda worker: (quota[worker] <= 0, end(worker, trial))))
    # Of workers of one speed any trial ends soonest where the load is least.
    heaps: dict[float, list[tuple[float, int, str]]] = {}
    for order, worker in enumerate(weights):
        heaps.setdefault(slowness.get(worker, 0.0), []).append((load[worker], order, worker))
    for heap in heaps.values():
        heapq.heapify(heap)
    for trial in _longest_first([trial for trial in trials if trial.name not in homes]):
        _drop_full(heaps, quota)
        heap = min(heaps.values(), key=lambda one: (end(one[0][2], trial), one[0][1]))
        _, order, worker = heap[0]
        give(trial, worker)
        heapq.heapreplace(heap, (load[worker], order, worker))
    return shares


def _drop_full(heaps: dict[float, list[tuple[float, int, str]]], quota: Mapping[str, int]) -> None:
    """Take out the next of each speed while its quota is full; somebody stays."""
    for speed, heap in list(heaps.items()):
        while heap and quota[heap[0][2]] <= 0 and (len(heap) > 1 or len(heaps) > 1):
            heapq.heappop(heap)
        if not heap:
            del heaps[speed]


def _split(trials: Sequence[PlannedTrial], count: int) -> tuple[tuple[str, ...], ...]:
    """Deal one worker's share over its batches, evenly in number and seconds, each longest first."""
    slots = {str(slot): 1.0 for slot in range(count)}
    dealt = _deal(trials, {}, slots, {})
    return tuple(tuple(trial.name for trial in _longest_first(dealt[slot])) for slot in slots)


def room(slots: int, id: str, taken: Mapping[str, int], priorities: Mapping[str, int]) -> int:
    """How many more seats of a worker an evaluation may have: those that nobody uses, and at least its share.

    Seats of lower priorities count as nobody's, and equals share with it what the higher ones leave: the others give
    their slots up at the end of a trial. A seat of an evaluation that is not in ``priorities`` is an equal's.
    """
    own = priorities[id]
    ahead = sum(count for other, count in taken.items() if priorities.get(other, own) > own)
    equal = {other: count for other, count in taken.items() if priorities.get(other, own) == own}
    left = slots - ahead
    share = -(-left // len({id, *equal}))
    return max(left - sum(equal.values()), share - equal.get(id, 0), 0)
