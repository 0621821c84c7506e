"""Waiting for a state, with a deadline: the only way a test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

#: So many times as slow as the machine that time-outs are written for may another be, or as crowded.
SLACK = 5.0
#: Seconds that this makes of a time-out at most, so that a test fails by itself before its own time is up.
MOST = 120.0


def patient(timeout: float) -> float:
    """How long to wait for what takes less than ``timeout`` seconds on a machine that does little else."""
    return max(timeout, min(timeout * SLACK, MOST))


def eventually(condition: Callable[[], T], timeout: float = 10.0, *, pause: float = 0.02) -> T:
    """Call ``condition`` until it returns something true, and return that.

    Fails with the last value after ``timeout`` seconds of a machine that does little else. An `AssertionError` in
    ``condition`` counts as not yet, and is what the test shows when time is up.
    """
    timeout = patient(timeout)
    deadline = time.monotonic() + timeout
    while True:
        try:
            value = condition()
        except AssertionError:
            if time.monotonic() > deadline:
                raise
        else:
            if value:
                return value
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout} s; the last value was {value!r}")
        time.sleep(pause)


def never(condition: Callable[[], object], seconds: float, *, pause: float = 0.02) -> None:
    """Look for so many seconds whether ``condition`` becomes true, and fail if it does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        assert not found, found
        time.sleep(pause)
