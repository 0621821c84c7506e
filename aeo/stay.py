"""How long a worker's process goes on, whether it takes more trials meanwhile, and how it begins anew."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NoReturn

from aeo import workers
from aeo.celery import drop_results, messages_running
from aeo.core.model import Heartbeat, WorkerState
from aeo.layout import Local

log = logging.getLogger(__name__)

#: Seconds a process gets to end that begins anew.
END_SECONDS = 15.0
#: Seconds between two looks whether something runs still.
_LOOK_SECONDS = 0.25
#: Seconds between two lines about the same.
REMIND_SECONDS = 600.0


@dataclass(kw_only=True)
class Stay:
    """Whether a worker takes more trials, and why not."""

    local: Local
    #: The worker's id, for people.
    name: str = ""
    #: Whether no trial runs.
    idle: Callable[[], bool] = lambda: True
    #: Set when running trials must be given back now.
    now: threading.Event = field(default_factory=threading.Event)
    #: Set when the last batch has returned.
    over: threading.Event = field(default_factory=threading.Event)
    leaving: bool = False
    #: Told twice to stop: what runs is given back for good.
    in_haste: bool = False
    #: A person removed this worker; it waits to be let in again.
    removed: bool = False
    #: It ends to begin anew.
    renewing: bool = False
    wanted: WorkerState = WorkerState.ONLINE
    #: The next signal is our own.
    _own_signal: bool = False
    _reminded: float = 0.0

    def leave(self) -> None:
        """Take no more."""
        if self._own_signal:
            self._own_signal = False
            return
        # By somebody who does not want it back.
        self.renewing = False
        self.leaving = True
        if self.removed:
            # The broker takes nothing from it.
            drop_results()
            return
        running = len(messages_running())
        if running:
            what, them = ("1 trial", "it") if running == 1 else (f"{running} trials", "them")
            log.warning("worker %s: finishing %s; a second Ctrl-C gives %s back", self.name, what, them)

    def give_back(self) -> None:
        """Take no more, and give back what runs."""
        self.renewing = False
        self._hurry()

    def _hurry(self) -> None:
        self.in_haste = True
        self.now.set()
        drop_results()

    def dismiss(self, why: str = "") -> None:
        """A person removed this worker: what it runs is others' now.

        It does not end, as a service manager would start it again, and that lets it in.
        """
        if not self.removed or time.monotonic() - self._reminded > REMIND_SECONDS:
            self._reminded = time.monotonic()
            removed = f"{self.name} was removed by a person; restart it, or: aeo workers allow {self.name}"
            log.error("%s", " ".join(why.split()) or removed)
        self.removed = True
        self.now.set()

    def begin_anew(self, why: str) -> None:
        """Take no more, and begin anew in this process's place when what runs has ended.

        Only a new process can have other addresses or credentials. Not left to who started this one: that may be a
        person's terminal.
        """
        if not self.leaving:
            self.leaving = self.renewing = True
            log.warning("worker %s: %s; it takes no trial until it has begun anew, when none runs", self.name, why)
            threading.Thread(target=self._renew, name=f"renew {self.name}", daemon=True).start()

    def _renew(self) -> None:
        while not (self.removed or self.idle()):
            time.sleep(_LOOK_SECONDS)
        if not self.renewing:
            return
        self._own_signal = True
        self._hurry()
        os.kill(os.getpid(), signal.SIGTERM)
        # What Celery still wants to tell the broker it will never take.
        time.sleep(END_SECONDS)
        if self.renewing:
            again()
        os._exit(1)

    def heed(self, wanted: WorkerState) -> None:
        """The controller's wish, as each heartbeat brings it."""
        self.wanted = wanted
        if self.removed:
            log.warning("%s was let in again", self.name)
            self.removed = False
            self.now.clear()
            if self.in_haste:
                self.now.set()

    def reason(self) -> str:
        """Why no further trial may be claimed; "" when it may."""
        if self.leaving:
            return "stopping"
        if self.removed:
            return "removed by a person"
        if self.wanted is WorkerState.LOST:
            return "another worker has this id"
        if self.wanted in (WorkerState.PAUSED, WorkerState.DRAINING):
            return str(self.wanted.value)
        return workers.low_disk(self.local.root)

    def look(self, boot: str) -> Heartbeat:
        """The heartbeat of now."""
        return workers.heartbeat(self.local, boot=boot, batches=messages_running(), draining=self.reason())


def again() -> NoReturn:
    """Become the same program anew, with the same arguments and variables, whoever started it."""
    try:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.execv(sys.executable, sys.orig_argv)  # noqa: S606  # our own program, by argument list
    except OSError:
        log.exception("this program cannot be started again")
    os._exit(1)
