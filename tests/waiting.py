"""Waiting for a state, with a deadline: the only way a test waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(condition: Callable[[], T], timeout: float = 10.0, *, pause: float = 0.02) -> T:
    """Call ``condition`` until it returns something true, and return that; fail with its last value after ``timeout``.

    An `AssertionError` in ``condition`` counts as not yet, and is what the test shows when time is up.
    """
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
