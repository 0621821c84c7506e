"""Whether time and memory of a trial stay the same while evaluations grow; how long large ones take to merge."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import disks, ours
from benchmarks.figures import Line
from benchmarks.ours import Meter, moment
from benchmarks.sizes import Found, Size
from benchmarks.workloads import Machine

TITLE = "Growth: trials of 0 s"
#: Seconds an evaluation may take.
LIMIT = 1800.0
#: Seconds a submit may take, the largest of all; a merge; MiB of the control process; growth for each trial.
SUBMIT_SECONDS, MERGE_SECONDS, CONTROL_MIB, FLAT = 20.0, 20.0, 500.0, 1.2


#: Smaller ones are over in seconds: their cost is the median of so many evaluations.
SMALL, TIMES = 2000, 3


@dataclass(frozen=True, kw_only=True)
class Grown:
    """One evaluation of `trials`, of which `ran` were run."""

    trials: int
    ran: int
    #: Seconds until submit was answered, and from the last result to the closed job.
    submit: float
    close: float
    #: Milliseconds for each trial that ran; of a small one for each evaluation of this size.
    costs: tuple[float, ...]
    #: MiB: of each kind of process before, and at its peak.
    before: Mapping[str, float]
    peak: Mapping[str, float]

    @property
    def whole(self) -> bool:
        """Whether all of it was run."""
        return self.ran == self.trials

    def kilobytes(self, kind: str) -> float:
        """What the processes of this kind grew by for each trial."""
        return (self.peak[kind] - self.before[kind]) * 1024 / self.trials


def measure(size: Size) -> Found:
    """One evaluation of each size on a platform of its own, so that none inherits another's memory."""
    largest = max(size.growth)
    sizes = sorted({*size.growth, size.merged})
    # What is removed after one of them must not make the next one dear.
    with disks.even() as place:
        runs = [_grow(trials, size.growth_part if trials == largest else None, size.growth_slots) for trials in sizes]
    of = ", ".join(map(str, sizes))
    return Found(
        lines=tuple(_lines(runs, size)),
        facts={"sizes": of, "run of the largest": runs[-1].ran, "slots": size.growth_slots, "on": place},
    )


def _grow(trials: int, part: int | None, slots: int) -> Grown:
    body = {"executor": "sleep", "trials": trials, "seconds": 0}
    look = min(2.0, max(0.2, trials / 5000))
    with ours.pool([Machine(name="grown", slots=slots)]) as pool:
        with Meter(pool) as meter:
            called, id = pool.submit(body)
            answered = time.time()
            status = pool.wait(id, limit=LIMIT, look=look, done=part)
            if status["state"] == "running":
                pool.http.post(f"/api/evaluations/{id}/cancel").raise_for_status()
                status = pool.wait(id, limit=LIMIT, look=look)
        ran = [trial for trial in pool.trials(id) if trial["outcome"] == "scored"]
        if part is None and len(ran) != trials:
            raise RuntimeError(f"{trials} trials: {status['state']}, {status['reason']}, {len(ran)} scored")
        # What still arrives while the rest is cancelled arrives beside that.
        arrived = sorted(moment(trial["committed_at"]) for trial in ran)[:part]
        first, last = min(moment(trial["started_at"]) for trial in ran), arrived[-1]
        again = [pool.sleep(0.0, trials=trials).makespan for _ in range(TIMES - 1 if trials <= SMALL else 0)]
    return Grown(
        trials=trials,
        ran=len(arrived),
        submit=answered - called,
        close=moment(status["finished_at"]) - last,
        costs=tuple(seconds / len(arrived) * 1000 for seconds in (last - first, *again)),
        before=meter.before,
        peak=meter.peak,
    )


def _lines(runs: Sequence[Grown], size: Size) -> Iterator[Line]:
    small, large = runs[0], runs[-1]
    for run in runs:
        yield _line("time per trial", run, run.costs, "ms")
    cost = median(large.costs) / median(small.costs)
    yield _line("time per trial", large, (cost,), "ratio", at_most=FLAT, against=small)
    for run in runs:
        yield _line("control, memory", run, (run.peak["control"],), "MiB", at_most=CONTROL_MIB)
    # Only where all was run is memory known; a few trials disappear in what every process needs anyway.
    whole = [run for run in runs if run.whole][-2:]
    for kind in large.peak:
        for run in whole:
            yield _line(f"{kind}, memory per trial", run, (run.kilobytes(kind),), "KiB")
    less, more = (sum(run.kilobytes(kind) for kind in run.peak) for run in whole)
    yield _line("memory per trial, all", whole[1], (more / less,), "ratio", at_most=FLAT, against=whole[0])
    yield _line("submit", large, (large.submit,), "s", at_most=SUBMIT_SECONDS)
    for run in runs:
        if run.trials == size.merged:
            yield _line("last result to merged job", run, (run.close,), "s", at_most=MERGE_SECONDS)


def _line(
    what: str,
    run: Grown,
    values: tuple[float, ...],
    unit: str,
    *,
    at_most: float | None = None,
    against: Grown | None = None,
) -> Line:
    system = f"{run.trials:,} trials" if against is None else f"{run.trials:,} / {against.trials:,}"
    note = "" if run.whole else f"the first {run.ran:,}"
    return Line(what=what, system=system, unit=unit, values=values, at_most=at_most, note=note)
