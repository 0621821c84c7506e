"""Trials that start at once on one worker: building many environments at a time makes each of them slow, or fail."""

from __future__ import annotations

import random
import threading
import time

#: The phase in which a trial's environment is made.
ENVIRONMENT = "environment"
#: Seconds within which two starts meet, and by which the second is put off at most. Starts that meet while both go on
#: are put off; trials that end one after the other start their successors apart as it is, and their slots do not wait.
JITTER_SECONDS = 0.5


class Starts:
    """How many trials are in their environment phase. Safe to share between threads."""

    def __init__(self) -> None:
        self._count = 0
        #: When the last one began, on this process's clock.
        self._last = -JITTER_SECONDS
        self._lock = threading.Lock()

    def begin(self, most: int, stop: threading.Event) -> bool:
        """Whether one more may start now; then call `end` when it has. Waits a moment if another has just begun."""
        with self._lock:
            if self._count >= most:
                return False
            self._count += 1
            now = time.monotonic()
            meets = self._count > 1 and now - self._last < JITTER_SECONDS
            self._last = now
        if meets:
            stop.wait(random.uniform(0, JITTER_SECONDS))  # noqa: S311  # not a secret
        return True

    def end(self) -> None:
        """A start is over, however it went."""
        with self._lock:
            self._count -= 1
