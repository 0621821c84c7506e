"""Fifty workers of eight slots on this machine: whether a slot is idle while trials wait, and what control costs."""

from __future__ import annotations

from collections.abc import Sequence

import psutil
from benchmarks import ours
from benchmarks.figures import Line
from benchmarks.ours import MIB, Meter, moment
from benchmarks.sizes import Found, Size
from benchmarks.workloads import Machine

TITLE = "Many workers on this machine"
#: MiB that a worker process may need, and what is left to others.
WORKER_MIB, SPARE_MIB = 110, 2000
#: Share of the slots' time that may be idle while trials wait: what a claim and a push take.
IDLE = 0.02


def measure(size: Size) -> Found:
    """Trials long enough that a machine of few cores keeps up with its own workers beside."""
    room = int((psutil.virtual_memory().available / MIB - SPARE_MIB) / WORKER_MIB)
    count = max(1, min(size.workers, room))
    machines = [Machine(name=f"worker-{number:02}", slots=size.slots) for number in range(count)]
    slots = count * size.slots
    with ours.pool(machines) as pool:
        with Meter(pool) as meter:
            body = {"executor": "sleep", "trials": slots * size.waves, "seconds": _spread(size.wave_seconds)}
            called, id = pool.submit(body)
            pool.wait(id, look=1.0)
        moments = pool.moments(id, called)
        trials = pool.trials(id)
    all_up = sorted(moment(trial["started_at"]) for trial in trials)[slots - 1]
    idle, ramp = waiting_idle(moments.spans, slots)
    what = f"{count} workers × {size.slots} slots"
    return Found(
        lines=(
            Line(what=what, system="slots idle while trials wait", unit="share", values=(idle,), at_most=IDLE),
            Line(
                what=what,
                system="control, cores",
                unit="cores",
                values=(meter.cpu["control"] / meter.seconds,),
                at_most=1.0,
            ),
            Line(what=what, system="all slots busy after submit", unit="s", values=(all_up - called,)),
            Line(what=what, system="idle, the first wave included", unit="share", values=(ramp,)),
            Line(what=what, system="web, cores", unit="cores", values=(meter.cpu["web"] / meter.seconds,)),
            Line(what=what, system="server, cores", unit="cores", values=(meter.cpu["server"] / meter.seconds,)),
            Line(what=what, system="all workers, cores", unit="cores", values=(meter.cpu["worker"] / meter.seconds,)),
            Line(what=what, system="a worker, memory", unit="MiB", values=(meter.peak["worker"] / count,)),
        ),
        facts={
            "workers": count,
            "asked for": size.workers,
            "why fewer": "" if count == size.workers else f"memory holds {room}",
            "trials": slots * size.waves,
            "seconds of each, on average": size.wave_seconds,
        },
    )


def _spread(seconds: float) -> dict[str, float]:
    """Around this: if they were all alike, every slot would come for its next trial at the same moment."""
    return {"min": seconds * 0.5, "max": seconds * 1.5, "seed": 1}


def waiting_idle(spans: Sequence[tuple[float, float]], slots: int) -> tuple[float, float]:
    """Share of the slots' time without a trial while there were trials nobody had started.

    First from when every slot had one for the first time, then from the first trial's start.
    """
    starts = sorted(start for start, _ in spans)
    last = starts[-1]
    return _idle(spans, slots, starts[min(slots, len(starts)) - 1], last), _idle(spans, slots, starts[0], last)


def _idle(spans: Sequence[tuple[float, float]], slots: int, begin: float, end: float) -> float:
    if end <= begin:
        return 0.0
    busy = sum(max(0.0, min(end, ended) - max(begin, started)) for started, ended in spans)
    return max(0.0, 1 - busy / (slots * (end - begin)))
