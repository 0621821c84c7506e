"""Workers that come and go with the work: the seam to whatever makes them, and the loop that asks it to."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable
from contextlib import closing
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Protocol

from aeo.core.errors import AeoError, InputError
from aeo.core.model import EvaluationState, WorkerState
from aeo.core.scaling import Limits, Member, decide
from aeo.leases import clock
from aeo.store import evaluations, workers
from aeo.store.connection import Db, connect
from aeo.store.workers import WorkerStatus

log = logging.getLogger(__name__)

#: Entry points of plug-ins: each is called with an `Offer` and returns a `WorkerProvisioner`.
GROUP = "aeo.provisioners"
#: The one that comes along: processes beside the controller.
LOCAL = "local"
#: Seconds between two looks.
ROUND_SECONDS = 2.0


class WorkerProvisioner(Protocol):
    """Makes workers and ends them: processes of this machine, or machines of a cloud.

    Each call begins what it names and returns soon; `Scaler` calls again in its next round if that raised. When the
    controller ends, its workers stay, as it may come back; it then finds them by `existing`.
    """

    def create(self) -> str:
        """Begin to make a worker that will register under the id returned. It may never: then it is destroyed.

        Raises:
            Exception: none can be made now.
        """

    def destroy(self, id: str) -> None:
        """Begin to end a worker, as SIGTERM would: it finishes what it runs. Again for one that is ending: no harm.

        Raises:
            Exception: that cannot be done now.
        """

    def existing(self) -> Collection[str]:
        """Ids of the workers it has made and that are not gone, those included that begin and end.

        Raises:
            Exception: nobody can say now.
        """


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What the workers of a plug-in are to be started with."""

    #: As this machine reaches it.
    controller_url: str
    auth_token: str = field(repr=False)
    #: Of each worker.
    slots: int


def find(name: str) -> Callable[[Offer], WorkerProvisioner]:
    """Return what makes the provisioner of a plug-in.

    Raises:
        InputError: none is installed under this name; the message lists those that are.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise InputError(
            f"no provisioner {name!r} is installed.",
            field="--provisioner",
            fix=f"Installed: {', '.join(sorted({LOCAL, *found}))}. Plug-ins register as entry points of {GROUP!r}.",
        )
    make: Callable[[Offer], WorkerProvisioner] = found[name].load()
    return make


class Scaler:
    """Keeps a pool as large as its work, round after round. Of one thread."""

    def __init__(self, open_store: Callable[[], Db], limits: Limits, provisioner: WorkerProvisioner) -> None:
        self._open, self._limits, self._provisioner = open_store, limits, provisioner
        #: Since when each worker has been as it is, and how that is.
        self._since: dict[str, tuple[str, float]] = {}
        self._leaving: set[str] = set()

    def run(self, stop: threading.Event) -> None:
        """Keep it so until ``stop``. Whatever fails is tried again."""
        while not stop.wait(ROUND_SECONDS):
            try:
                self.round()
            except AeoError as error:
                log.warning("the pool stays as it is: %s", error)
            except Exception:
                log.exception("the pool stays as it is")

    def round(self) -> None:
        """Look, decide, and have it done.

        Raises:
            Unavailable: the store is away.
        """
        with closing(self._open()) as db:
            known = {status.info.id: status for status in workers.all(db)}
            running = evaluations.several(db, evaluations.open_ids(db))
        pending = sum(status.pending for status in running if status.state is EvaluationState.RUNNING)
        members = self._members(known)
        elsewhere = _free(status for id, status in known.items() if id not in self._since)
        change = decide(self._limits, members, pending=pending, free_elsewhere=elsewhere)
        for id in change.destroy:
            log.info("worker %s is not needed any more", id)
            self._provisioner.destroy(id)
            self._leaving.add(id)
        for _ in range(change.create):
            log.info("worker %s is started: %d trials wait", self._provisioner.create(), pending)

    def _members(self, known: dict[str, WorkerStatus]) -> list[Member]:
        existing, now = set(self._provisioner.existing()), clock()
        self._leaving &= existing
        self._since = {id: kept for id, kept in self._since.items() if id in existing}
        return [self._member(id, known.get(id), now) for id in sorted(existing)]

    def _member(self, id: str, status: WorkerStatus | None, now: float) -> Member:
        beat = status.heartbeat if status else None
        busy = max(status.busy, beat.busy) if status and beat else 0
        state = "silent" if beat is None else "busy" if busy else "idle"
        if self._since.get(id, ("", 0.0))[0] != state:
            self._since[id] = (state, now)
        return Member(
            id=id, ready=beat is not None, busy=busy, seconds=now - self._since[id][1], leaving=id in self._leaving
        )


def _free(others: Iterable[WorkerStatus]) -> int:
    """Free slots of workers that would take trials now."""
    return sum(
        max(0, status.info.capacity.slots - status.busy)
        for status in others
        if status.state is WorkerState.ONLINE and status.heartbeat and not status.heartbeat.draining
    )


def opener(broker_url: str) -> Callable[[], Db]:
    """What opens the store anew for each round: a broken connection is no matter for the next."""
    return lambda: connect(broker_url)
