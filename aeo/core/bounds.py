"""What no schedule can beat: by the work, by the longest trial, and by the limits of model providers. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence

from aeo.core.choose import covers
from aeo.core.entered import model_of
from aeo.core.pool import Limit
from aeo.core.simulate import Machine, Work


def bound(seconds: Sequence[float], machines: Sequence[Machine], limit: int | None = None) -> float:
    """No schedule ends earlier, in seconds: the work over all slots, and the longest trial on the fastest."""
    rate = math.fsum(one.speed * (one.slots if limit is None else min(limit, one.slots)) for one in machines)
    fastest = max((one.speed for one in machines if one.slots), default=0.0)
    if not seconds or not rate:
        return 0.0
    return max(math.fsum(seconds) / rate, max(seconds) / fastest)


def bound_of(
    work: Work, machines: Sequence[Machine], limits: Mapping[str, Limit], *, without: Collection[str] = ()
) -> float:
    """The same of an evaluation under limits, less the trials that are named."""
    trials = [trial for trial in work.trials if trial.name not in without]
    fastest = max((one.speed for one in machines if one.slots), default=0.0)
    held = [
        limited([work.takes(trial) / fastest for trial in trials if covers(key, model_of(trial))], limit)
        for key, limit in limits.items()
        if fastest
    ]
    return max([bound([work.takes(trial) for trial in trials], machines, work.limit), *held])


def limited(seconds: Sequence[float], limit: Limit) -> float:
    """What trials under one limit take at least, however many slots there are: starts are evenly spread."""
    if not seconds:
        return 0.0
    last = (len(seconds) - 1) * 60 / limit.per_minute + min(seconds) if limit.per_minute else 0.0
    return max(last, math.fsum(seconds) / limit.trials if limit.trials else 0.0)
