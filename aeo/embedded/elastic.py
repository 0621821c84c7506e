"""Workers on this machine that come and go with the work: the provisioner of `aeo up`."""

from __future__ import annotations

from collections.abc import Collection
from itertools import count

from aeo.embedded.local import Controller


class LocalProcesses:
    """Makes workers as child processes beside a controller."""

    def __init__(self, running: Controller, slots: int) -> None:
        self._running, self._slots = running, slots
        self._made: set[str] = set()

    def create(self) -> str:
        """Start a process; the first name that is free."""
        taken = set(self._running.added())
        id = next(name for number in count(1) if (name := f"elastic-{number}") not in taken)
        self._running.add_worker(id, self._slots)
        self._made.add(id)
        return id

    def destroy(self, id: str) -> None:
        """Tell it to stop: it finishes what it runs."""
        if id in self._made:
            self._running.end_worker(id)

    def existing(self) -> Collection[str]:
        """Those whose process is not gone for good."""
        self._made &= set(self._running.added())
        return frozenset(self._made)
