"""Workers that come and go with the work beside a controller, by processes of this machine or by a plug-in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count

from aeo import scaling
from aeo.core.scaling import Limits
from aeo.embedded.local import Controller
from aeo.scaling import Offer, Scaler, WorkerProvisioner


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How many, and who makes them."""

    limits: Limits
    make: Callable[[Controller], WorkerProvisioner]


def elastic(limits: Limits, name: str = scaling.LOCAL) -> Elastic:
    """Choose the provisioner by its name.

    Raises:
        InputError: there is none of this name.
    """
    if name == scaling.LOCAL:
        return Elastic(limits=limits, make=lambda running: LocalProcesses(running, limits.slots))
    of_plug_in = scaling.find(name)

    def make(running: Controller) -> WorkerProvisioner:
        token = running.config.auth_token
        return of_plug_in(Offer(controller_url=running.url, auth_token=token, slots=limits.slots))

    return Elastic(limits=limits, make=make)


@contextmanager
def scaled(running: Controller, wanted: Elastic) -> Iterator[None]:
    """Keep as many workers as there is work for, while the context lasts."""
    scaler = Scaler(scaling.opener(running.config.broker_url), wanted.limits, wanted.make(running))
    stop = threading.Event()
    thread = threading.Thread(target=scaler.run, args=(stop,), name="scaling", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        # Or it would start one more while the others end.
        thread.join()


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
