"""Trials that start at once on one worker: building many environments at a time makes each of them slow, or fail."""

from __future__ import annotations

import random
import threading

#: The phase in which a trial's environment is made.
ENVIRONMENT = "environment"
#: Seconds, at most, by which a start is put off while another one is going on.
JITTER_SECONDS = 0.5


class Starts:
    """How many trials are in their environment phase. Safe to share between threads."""

    def __init__(self) -> None:
        self._count = 0
        self._lock = threading.Lock()

    def begin(self, most: int, stop: threading.Event) -> bool:
        """Whether one more may start now; then call `end` when it has. Waits a moment if others are starting."""
        with self._lock:
            if self._count >= most:
                return False
            self._count += 1
            alone = self._count == 1
        if not alone:
            stop.wait(random.uniform(0, JITTER_SECONDS))  # noqa: S311  # not a secret
        return True

    def end(self) -> None:
        """A start is over, however it went."""
        with self._lock:
            self._count -= 1
