"""Finished runs of one worker on their way to the controller, sent while the next trials run.

A run is handed over with its live lease, which is kept until its result has arrived or is left to the outbox. What
waits goes together: one push for all. So that a slow line holds up the slots and not the disk, only so many may wait.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from aeo import logs, outbox
from aeo.core.errors import TransferFailed
from aeo.core.model import Claim
from aeo.leases import Hold

if TYPE_CHECKING:
    from aeo.site import WorkerSite

log = logging.getLogger(__name__)

#: Runs that may wait or be on their way, for each slot of the worker; then the slot that has one more waits.
BACKLOG = 4
#: Runs of one push.
AT_ONCE = 32
#: Threads that send; another one starts when those there are have been at their push for so many seconds.
THREADS, LONG_SECONDS = 3, 1.0
#: Seconds after which a thread with nothing to do ends.
IDLE_SECONDS = 2.0
#: Seconds between two tries, doubling from the first to the last.
FIRST_WAIT, LAST_WAIT = 0.5, 30.0
#: Seconds between two looks whether the worker is told to stop.
_LOOK_SECONDS = 0.25


@dataclass(kw_only=True, eq=False)
class Parcel:
    """A finished run."""

    claim: Claim
    hold: Hold
    run_dir: Path
    started_at: datetime
    finished_at: datetime
    #: Told why a push failed; whether the run is left to the outbox.
    gives_up: Callable[[str], bool]
    #: Gives the claim back: there will be no result of it.
    give_back: Callable[[BaseException], None]
    #: Its folder in the outbox, once it is there.
    folder: Path | None = None
    #: Why it could not be put there.
    error: BaseException | None = None
    due: float = 0.0
    wait: float = FIRST_WAIT


@dataclass(kw_only=True)
class Handed:
    """What one batch has handed over and is not safe yet."""

    site: WorkerSite
    parcels: list[Parcel] = field(default_factory=list)

    def over(self, parcel: Parcel) -> None:
        """Hand one over; waits while too many are on their way.

        Raises:
            RuntimeError: no thread can be started; it was not taken.
        """
        self.site.sender.take(self.site, parcel)
        self.parcels.append(parcel)

    def check(self) -> None:
        """See how those fared that are safe, or lost.

        Raises:
            BaseException: what went wrong with one.
        """
        safe = [parcel for parcel in self.parcels if _is_safe(parcel)]
        self.parcels = [parcel for parcel in self.parcels if parcel not in safe]
        for parcel in safe:
            if parcel.error is not None:
                raise parcel.error

    def wait(self) -> None:
        """Wait until each is in the outbox, or lost: nothing is left in the batch's own folder."""
        self.site.sender.wait_for(self.site, lambda: all(_is_safe(parcel) for parcel in self.parcels))


def _is_safe(parcel: Parcel) -> bool:
    return parcel.folder is not None or parcel.error is not None


class Sender:
    """Sends what is handed over. Its threads live while there is something to send."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[Parcel] = []
        self._sent: list[Parcel] = []
        #: When each thread began what it is at; 0 when it waits.
        self._threads: dict[int, float] = {}
        #: Since when no transfer has got through, on this process's clock; 0 when the last one has.
        self._failing = 0.0

    def note(self, *, got_through: bool) -> None:
        """Take note of how a transfer fared, also one that brought something here."""
        self._failing = 0.0 if got_through else self._failing or time.monotonic()

    def failing_seconds(self) -> float:
        """For how long no transfer has got through; 0 when the last one has."""
        return time.monotonic() - self._failing if self._failing else 0.0

    def take(self, site: WorkerSite, parcel: Parcel) -> None:
        """Take a run over; waits while too many are on their way.

        Raises:
            RuntimeError: no thread can be started.
        """
        site.sending.add(parcel.claim.token)
        self.wait_for(site, lambda: self._count() < BACKLOG * site.config.slots)
        with self._changed:
            self._waiting.append(parcel)
            try:
                self._staff(site)
            except BaseException:
                self._waiting.remove(parcel)
                site.sending.discard(parcel.claim.token)
                raise
            self._changed.notify_all()

    def wait_for(self, site: WorkerSite, what: Callable[[], bool]) -> None:
        """Wait until ``what`` holds, seeing to it that somebody sends meanwhile."""
        with self._changed:
            while not what():
                self._staff(site)
                self._changed.wait(_LOOK_SECONDS)

    def finish(self, site: WorkerSite) -> None:
        """Wait until all has arrived or is left to the outbox; at the end of a worker."""
        self.wait_for(site, lambda: not self._count())

    def _count(self) -> int:
        return len(self._waiting) + len(self._sent)

    def _staff(self, site: WorkerSite) -> None:
        """Have a thread for what waits."""
        now = time.monotonic()
        ready = any(parcel.due <= now for parcel in self._waiting) or not self._threads
        if not self._waiting or not ready or len(self._threads) >= THREADS:
            return
        if all(began and now - began > LONG_SECONDS for began in self._threads.values()):
            thread = threading.Thread(target=self._run, args=(site,), name="sender", daemon=True)
            thread.start()
            self._threads[id(thread)] = 0.0

    def _run(self, site: WorkerSite) -> None:
        me = id(threading.current_thread())
        while parcels := self._next(site, me):
            try:
                self._send(site, parcels)
            except BaseException:
                # Whatever it is, they are tried again: nobody else would.
                log.exception("results could not be sent")
                self._again([parcel for parcel in parcels if parcel in self._sent])

    def _next(self, site: WorkerSite, me: int) -> list[Parcel]:
        """What is to be sent now, waiting for it; nothing when the thread is to end."""
        with self._changed:
            self._threads[me] = 0.0
            until = time.monotonic() + IDLE_SECONDS
            while True:
                now = time.monotonic()
                hurry = site.stopping.is_set()
                parcels = [parcel for parcel in self._waiting if hurry or parcel.due <= now][:AT_ONCE]
                if parcels:
                    self._waiting = [parcel for parcel in self._waiting if parcel not in parcels]
                    self._sent += parcels
                    self._threads[me] = now
                    return parcels
                if not self._waiting and now > until:
                    del self._threads[me]
                    return []
                self._changed.wait(_LOOK_SECONDS if self._waiting else IDLE_SECONDS)

    def _send(self, site: WorkerSite, parcels: Sequence[Parcel]) -> None:
        there = {}
        for parcel in parcels:
            try:
                there[self._put(site, parcel)] = parcel
            except BaseException as error:
                self._break(site, parcel, error)
        problems = outbox.send_all(site, list(there)) if there else {}
        if there:
            self.note(got_through=not any(isinstance(problem, TransferFailed) for problem in problems.values()))
        again = []
        for folder, parcel in there.items():
            problem = problems.get(folder)
            if problem is None:
                self._end(site, parcel)
                continue
            with logs.of_run(parcel.claim):
                log.warning("push of %s failed, next try in %.1f s: %s", folder.name, parcel.wait, problem)
            if parcel.gives_up(str(problem)) or site.stopping.is_set():
                self._end(site, parcel)
            else:
                again.append(parcel)
        self._again(again)

    def _put(self, site: WorkerSite, parcel: Parcel) -> Path:
        if parcel.folder is not None:
            return parcel.folder
        folder = outbox.put(site, parcel.claim, parcel.run_dir, parcel.started_at, parcel.finished_at)
        with self._changed:
            parcel.folder = folder
            self._changed.notify_all()
        return folder

    def _break(self, site: WorkerSite, parcel: Parcel, error: BaseException) -> None:
        with logs.of_run(parcel.claim):
            log.warning("the result of %s could not be kept: %s", parcel.claim.trial, error)
            try:
                parcel.give_back(error)
            except Exception:
                log.exception("%s could not be given back", parcel.claim.trial)
        parcel.error = error
        self._end(site, parcel)

    def _end(self, site: WorkerSite, parcel: Parcel) -> None:
        parcel.hold.end()
        site.sending.discard(parcel.claim.token)
        with self._changed:
            self._sent.remove(parcel)
            self._changed.notify_all()

    def _again(self, parcels: Sequence[Parcel]) -> None:
        with self._changed:
            for parcel in parcels:
                self._sent.remove(parcel)
                parcel.due = time.monotonic() + parcel.wait
                parcel.wait = min(LAST_WAIT, parcel.wait * 2)
                self._waiting.append(parcel)
            self._changed.notify_all()
