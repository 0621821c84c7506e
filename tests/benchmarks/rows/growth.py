"""Whether time and memory of a trial stay the same while evaluations grow; how long large ones take to merge."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.figures import Line
from benchmarks.ours import Meter, moment
from benchmarks.sizes import Found, Size
from benchmarks.workloads import Machine

TITLE = "Growth: trials of 0 s"
#: Seconds an evaluation may take.
LIMIT = 1800.0
#: Seconds a submit may take, the largest of all; a merge; MiB of the control process; growth for each trial.
SUBMIT_SECONDS, MERGE_SECONDS, CONTROL_MIB, FLAT = 20.0, 20.0, 500.0, 1.2


@dataclass(frozen=True, kw_only=True)
class Grown:
    """One evaluation of `trials`, of which `ran` were run."""

    trials: int
    ran: int
    #: Seconds until submit was answered, and from the last result to the closed job.
    submit: float
    close: float
    #: Milliseconds for each trial that ran.
    cost: float
    #: MiB: of each kind of process before, and at its peak.
    before: dict[str, float]
    peak: dict[str, float]

    def kilobytes(self, kind: str) -> float:
        """What a process of this kind grew by for each planned trial."""
        return (self.peak[kind] - self.before[kind]) * 1024 / self.trials


def measure(size: Size) -> Found:
    """One evaluation of each size on a platform of its own, so that none inherits another's memory."""
    largest = max(size.growth)
    sizes = sorted({*size.growth, size.merged})
    runs = [_grow(trials, size.growth_part if trials == largest else None, size) for trials in sizes]
    return Found(
        lines=tuple(_lines(runs, size)),
        facts={"run of the largest": runs[-1].ran, "slots": size.growth_slots, "sizes": sizes},
    )


def _grow(trials: int, part: int | None, size: Size) -> Grown:
    with ours.pool([Machine(name="grown", slots=size.growth_slots)]) as pool:
        with Meter(pool) as meter:
            called, id = pool.submit({"executor": "sleep", "trials": trials, "seconds": 0})
            answered = time.time()
            look = min(2.0, max(0.2, trials / 5000))
            status = pool.wait(id, limit=LIMIT, look=look, done=None if part is None else min(part, trials))
            if part is not None:
                pool.http.post(f"/api/evaluations/{id}/cancel").raise_for_status()
                status = pool.wait(id, limit=LIMIT, look=look)
        ran = [trial for trial in pool.trials(id) if trial["outcome"] == "scored"]
        if part is None and (status["state"] != "succeeded" or len(ran) != trials):
            raise RuntimeError(f"{trials} trials: {status['state']}, {status['reason']}, {len(ran)} scored")
        last = max(moment(trial["committed_at"]) for trial in ran)
        first = min(moment(trial["started_at"]) for trial in ran)
        return Grown(
            trials=trials,
            ran=len(ran),
            submit=answered - called,
            close=moment(status["finished_at"]) - last,
            cost=(last - first) / len(ran) * 1000,
            before=meter.before,
            peak=meter.peak,
        )


def _lines(runs: list[Grown], size: Size) -> Iterator[Line]:
    small, large = runs[0], runs[-1]
    for run in runs:
        part = "" if run.ran == run.trials else f"the first {run.ran}"
        yield _line(run, "time per trial", run.cost, "ms", note=part)
    yield _line(large, "time per trial", large.cost / small.cost, "ratio", at_most=FLAT, against=small)
    for run in runs:
        yield _line(run, "control, memory", run.peak["control"], "MiB", at_most=CONTROL_MIB)
    # A few hundred trials disappear in what every process needs anyway.
    middle = next(run for run in runs if run.trials >= 10 * small.trials or run is large)
    for kind in ("control", "server", "worker", "web"):
        for run in (middle, large):
            yield _line(run, f"{kind}, memory per trial", run.kilobytes(kind), "KiB")
    whole = sum(large.kilobytes(kind) for kind in large.peak) / sum(middle.kilobytes(kind) for kind in middle.peak)
    yield _line(large, "memory per trial, all", whole, "ratio", at_most=FLAT, against=middle)
    yield _line(large, "submit", large.submit, "s", at_most=SUBMIT_SECONDS)
    for run in runs:
        if run.trials == size.merged:
            yield _line(run, "last result to merged job", run.close, "s", at_most=MERGE_SECONDS)


def _line(
    run: Grown,
    what: str,
    value: float,
    unit: str,
    *,
    at_most: float | None = None,
    against: Grown | None = None,
    note: str = "",
) -> Line:
    system = f"{run.trials:,} trials" if against is None else f"{run.trials:,} / {against.trials:,}"
    return Line(what=what, system=system, unit=unit, values=(value,), at_most=at_most, note=note)
