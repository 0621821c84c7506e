"""The same work on a pool of three machines: 4 + 2 + 1 slots at speeds 1, 0.5 and 0.25."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from benchmarks import ours, simulated, workloads
from benchmarks.figures import Line, Moments, Series, ratios
from benchmarks.rows.makespan import AEO, PLAYED, SIMULATED, SPLIT, Lists, by_hand
from benchmarks.sizes import Found, Size
from benchmarks.workloads import UNEVEN, WORKLOADS

TITLE = "Makespan: 40 trials, 4 + 2 + 1 slots at speeds 1, 0.5, 0.25"
#: Seconds within which speeds are to be known.
LEARN_SECONDS = 20.0
TOLD = "static split, speeds told"
FORESIGHT = "planner that knows all"
_HAND_MADE = {SPLIT: ("split", UNEVEN), TOLD: ("split by speed", UNEVEN)}


def measure(size: Size) -> Found:
    """AEO is told how long trials take, and no machine's speed: it learns them from two evaluations that ran before."""
    shares, predicted = Series(unit="× bound"), Series(unit="ratio")
    with ours.pool(UNEVEN) as pool:
        # The same twice: speeds are learnt of tasks that ran on several machines.
        lost = simulated.calibrated(pool, UNEVEN)
        simulated.calibrated(pool, UNEVEN)
        learnt = _learnt(pool)
        told = ", ".join(f"{name} {speed:g}" for name, speed in learnt.items())
        for repetition in range(size.repeats):
            lists = {name: make(repetition) for name, make in WORKLOADS.items()}
            # The splits only sleep: beside us they are no burden, and save minutes.
            with ThreadPoolExecutor() as threads:
                splits = threads.submit(_splits, lists)
                found = [
                    (AEO, name, pool.sleep(seconds, **_planned(seconds, learnt))) for name, seconds in lists.items()
                ]
            for system, name, moments in [*found, *splits.result()]:
                shares.add(name, system, moments.makespan / workloads.bound(lists[name], UNEVEN))
            for name, seconds in lists.items():
                bound = workloads.bound(seconds, UNEVEN)
                shares.add(name, PLAYED, simulated.makespan(seconds, UNEVEN) / bound)
                shares.add(name, FORESIGHT, workloads.foresighted(seconds, UNEVEN) / bound)
                predicted.add(name, AEO, simulated.makespan(seconds, UNEVEN, lost) / (shares.of(name, AEO)[-1] * bound))
    lines = tuple(line for name in WORKLOADS for line in _lines(name, shares, predicted))
    return Found(lines=lines, facts={"trials": workloads.TRIALS, "speeds learnt": told, **simulated.facts(lost)})


def _planned(seconds: Sequence[float], learnt: Mapping[str, float]) -> dict[str, list[float]]:
    """What the plan says of trials, as it is when tasks have run before: on a machine of usual speed."""
    return {"estimate": [one * max(learnt.values()) for one in seconds]}


def _learnt(pool: ours.Pool) -> dict[str, float]:
    """Wait until the speeds are known: of three machines, all are told apart.

    Raises:
        RuntimeError: they do not become known.
    """
    deadline = time.monotonic() + LEARN_SECONDS
    while time.monotonic() < deadline:
        speeds = {name: worker["speed"] for name, worker in pool.workers().items()}
        if len(set(speeds.values())) == len(UNEVEN):
            return {machine.name: speeds[machine.name] for machine in UNEVEN}
        time.sleep(ours.LOOK_SECONDS)
    raise RuntimeError(f"speeds are not learnt: {speeds}")


def _splits(lists: Lists) -> list[tuple[str, str, Moments]]:
    return list(by_hand(lists, _HAND_MADE))


def _lines(name: str, shares: Series, predicted: Series) -> Iterator[Line]:
    yield shares.line(name, AEO, at_most=1.10)
    yield shares.line(name, PLAYED, note="computed")
    yield shares.line(name, SPLIT)
    yield shares.line(name, TOLD)
    yield shares.line(name, FORESIGHT, note="computed")
    yield Line(
        what=name, system=f"{SPLIT} / AEO", unit="ratio", values=ratios(shares.of(name, SPLIT), shares.of(name, AEO))
    )
    yield Line(what=name, system=SIMULATED, unit="ratio", values=predicted.of(name, AEO), at_least=0.95, at_most=1.05)
