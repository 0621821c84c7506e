"""What a trial costs beside itself: many trials of no time at all, each with its result on the controller's disk."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import disks, others, ours
from benchmarks.figures import Line, Moments, Series, in_turn, ratios
from benchmarks.rows.makespan import AEO, AGENTSCOPE, INSPECT, QUEUE
from benchmarks.sizes import Found, Size
from benchmarks.workloads import EVEN

TITLE = "Cost per trial: trials of 0 s on 4 slots"
WHOLE = "the same, to the merged job"


def measure(size: Size) -> Found:
    """Milliseconds from the first trial's start to the last result stored, by the number of trials."""
    what = f"{size.zero_trials} trials of 0 s"
    here = disks.file_system(Path(tempfile.gettempdir()))
    lines, facts = list(_measure(size, what, WHOLE)), {"trials": size.zero_trials, "slots": 4, "on": here}
    if here == disks.NO_JOURNAL:
        with disks.journaled() as problem:
            facts[f"on {disks.JOURNALED}"] = problem or "measured, too"
            if not problem:
                lines += _measure(size, f"{what}, on {disks.JOURNALED}", f"{WHOLE}, on {disks.JOURNALED}")
    return Found(lines=tuple(lines), facts=facts)


def _measure(size: Size, what: str, whole: str) -> Iterator[Line]:
    costs = Series(unit="ms")
    with ours.pool(EVEN) as pool:
        for repetition in range(size.repeats):
            for system in in_turn((AEO, QUEUE, AGENTSCOPE, INSPECT), repetition):
                moments = _run(system, size.zero_trials, pool)
                costs.add(what, system, moments.makespan / size.zero_trials * 1000)
                costs.add(whole, system, (moments.returned - moments.first_start) / size.zero_trials * 1000)
    peers = (AGENTSCOPE, INSPECT)
    yield costs.line(what, AEO, at_most=4.0)
    for peer in (*peers, QUEUE):
        yield costs.line(what, peer, note="does not commit across machines")
    for peer in peers:
        compared = ratios(costs.of(what, AEO), costs.of(what, peer))
        yield Line(what=what, system=f"AEO / {peer}", unit="ratio", values=compared)
    for system in (AEO, *peers):
        yield costs.line(whole, system)


def _run(system: str, trials: int, pool: ours.Pool) -> Moments:
    if system == AEO:
        return pool.sleep(0.0, trials=trials)
    if system == QUEUE:
        return others.pooled({"zero": ([0.0] * trials, EVEN, "queue")})["zero"]
    name = {AGENTSCOPE: "agentscope", INSPECT: "inspect"}[system]
    return others.evaluated(name, {"zero": [0.0] * trials}, slots=4)["zero"]
