"""Failed sign-ins, counted per client address, in memory and bounded."""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from threading import Lock


class Attempts:
    """Refuses further tries of an address after ``limit`` failures within ``seconds``.

    At most ``addresses`` are remembered; the one that failed longest ago is forgotten first.
    """

    def __init__(
        self,
        *,
        limit: int = 10,
        seconds: float = 60.0,
        addresses: int = 1000,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._limit = limit
        self._seconds = seconds
        self._addresses = addresses
        self._clock = clock
        self._failures: OrderedDict[str, deque[float]] = OrderedDict()
        self._lock = Lock()

    def wait(self, address: str) -> float:
        """Return the seconds until ``address`` may try again; 0 when it may now."""
        with self._lock:
            failures = self._failures.get(address)
            if failures is None or len(failures) < self._limit:
                return 0.0
            return max(0.0, failures[0] + self._seconds - self._clock())

    def failed(self, address: str) -> None:
        """Remember one failure."""
        with self._lock:
            failures = self._failures.setdefault(address, deque(maxlen=self._limit))
            failures.append(self._clock())
            self._failures.move_to_end(address)
            while len(self._failures) > self._addresses:
                self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the failures of ``address``."""
        with self._lock:
            self._failures.pop(address, None)
