"""How long four slots take for 40 trials: uniform, heavy-tailed, heavy-tailed with the longest last in the list."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks import others, ours, simulated, workloads
from benchmarks.figures import Line, Moments, Series, in_turn, ratios
from benchmarks.sizes import Found, Size
from benchmarks.workloads import APART, EVEN, WORKLOADS

TITLE = "Makespan: 40 trials, 4 slots"
AEO, UNKNOWING, QUEUE, SPLIT = "AEO", "AEO, durations unknown", "asyncio pool (FIFO)", "static weighted split"
AGENTSCOPE, INSPECT = "AgentScope RayEvaluator", "Inspect AI"
SIMULATED = "AEO: simulated / measured"
#: What our policy reaches with nothing lost: what is above it is not its choice but time that was lost.
PLAYED = "AEO: policy alone"
PEERS = (QUEUE, SPLIT, AGENTSCOPE, INSPECT)
#: The workload that is worst for a queue; here also without anybody knowing how long trials take.
HARD = "longest last"
#: A queue is before one machine; who splits before the start has four, or there would be nothing to split.
_HAND_MADE = {QUEUE: ("queue", EVEN), SPLIT: ("split", APART)}

Lists = Mapping[str, Sequence[float]]


def measure(size: Size) -> Found:
    """Every system takes the same lists; another seed for each repetition."""
    shares, predicted = Series(unit="× bound"), Series(unit="ratio")
    with ours.pool(EVEN) as pool:
        lost = simulated.calibrated(pool, EVEN)
        for repetition in range(size.repeats):
            lists = {name: make(repetition) for name, make in WORKLOADS.items()}
            for group in in_turn(("aeo", "by hand", "agentscope", "inspect"), repetition):
                for system, name, moments in _run(group, lists, pool):
                    shares.add(name, system, moments.makespan / workloads.bound(lists[name], EVEN))
            for name, seconds in lists.items():
                bound = workloads.bound(seconds, EVEN)
                shares.add(name, PLAYED, simulated.makespan(seconds, EVEN) / bound)
                real = shares.of(name, AEO)[-1] * bound
                predicted.add(name, AEO, simulated.makespan(seconds, EVEN, lost) / real)
    lines = tuple(line for name in WORKLOADS for line in _lines(name, shares, predicted))
    return Found(lines=lines, facts={"trials": workloads.TRIALS, "slots": 4, **simulated.facts(lost)})


def _run(group: str, lists: Lists, pool: ours.Pool) -> Iterator[tuple[str, str, Moments]]:
    if group == "aeo":
        for name, seconds in lists.items():
            yield AEO, name, pool.sleep(seconds)
        yield UNKNOWING, HARD, pool.sleep(lists[HARD], estimate=60)
    elif group == "by hand":
        for system, name, moments in by_hand(lists, _HAND_MADE):
            yield system, name, moments
    else:
        title = {"agentscope": AGENTSCOPE, "inspect": INSPECT}[group]
        for name, moments in others.evaluated(group, lists, slots=4).items():
            yield title, name, moments


def by_hand(
    lists: Lists, systems: Mapping[str, tuple[str, Sequence[workloads.Machine]]]
) -> Iterator[tuple[str, str, Moments]]:
    """Queue and splits of all lists, side by side."""
    runs = {(system, name): (lists[name], pool, how) for system, (how, pool) in systems.items() for name in lists}
    found = others.pooled({f"{system}: {name}": run for (system, name), run in runs.items()})
    for system, name in runs:
        yield system, name, found[f"{system}: {name}"]


def _lines(name: str, shares: Series, predicted: Series) -> Iterator[Line]:
    ours_ = shares.of(name, AEO)
    yield shares.line(name, AEO, at_most=1.03)
    yield shares.line(name, PLAYED, note="computed")
    if name == HARD:
        yield shares.line(name, UNKNOWING)
    for peer in PEERS:
        yield shares.line(name, peer)
    yield Line(
        what=name, system=f"AEO / {QUEUE}", unit="ratio", values=ratios(ours_, shares.of(name, QUEUE)), at_most=1.02
    )
    least = None if name == "uniform" else 1.2
    yield Line(
        what=name, system=f"{SPLIT} / AEO", unit="ratio", values=ratios(shares.of(name, SPLIT), ours_), at_least=least
    )
    yield Line(what=name, system=SIMULATED, unit="ratio", values=predicted.of(name, AEO), at_least=0.95, at_most=1.05)
