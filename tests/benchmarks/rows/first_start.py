"""From the call to the first trial's start, with all workers up and all modules loaded."""

from __future__ import annotations

from benchmarks import others, ours
from benchmarks.figures import Line, Series, in_turn, ratios
from benchmarks.rows.makespan import AEO, AGENTSCOPE, INSPECT
from benchmarks.sizes import Found, Size
from benchmarks.workloads import EVEN

TITLE = "From submit to the first trial's start"
WHAT = "4 trials, workers up"
_TRIALS = [0.1] * 4


def measure(size: Size) -> Found:
    """Peers get a new process each time: theirs is the first evaluation in it, as it is with them."""
    waits = Series(unit="s")
    with ours.pool(EVEN) as pool:
        for repetition in range(size.repeats):
            for system in in_turn((AEO, AGENTSCOPE, INSPECT), repetition):
                waits.add(WHAT, system, _wait(system, pool))
    own = waits.of(WHAT, AEO)
    return Found(
        lines=(
            waits.line(WHAT, AEO, at_most=0.5),
            *(waits.line(WHAT, peer) for peer in (AGENTSCOPE, INSPECT)),
            *(
                Line(what=WHAT, system=f"{peer} / AEO", unit="ratio", values=ratios(waits.of(WHAT, peer), own))
                for peer in (AGENTSCOPE, INSPECT)
            ),
        ),
        facts={"trials": len(_TRIALS)},
    )


def _wait(system: str, pool: ours.Pool) -> float:
    if system == AEO:
        return pool.sleep(_TRIALS).wait
    name = {AGENTSCOPE: "agentscope", INSPECT: "inspect"}[system]
    return others.evaluated(name, {"first": _TRIALS}, slots=4)["first"].wait
