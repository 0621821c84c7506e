"""Holding a lease while a trial runs, and stopping the trial when it must not run on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from types import TracebackType

from aeo.core.errors import Unavailable
from aeo.core.model import Batch, Claim
from aeo.store import evaluations, trials
from aeo.store.connection import Db
from aeo.store.trials import Standing

#: Seconds between two looks; a cancel is seen within this.
LOOK_SECONDS = 1.0
#: Seconds that a session gets to return beyond the time a trial gets to stop.
DEAF_SECONDS = 15.0

log = logging.getLogger(__name__)


class Stopped(str, Enum):
    """Why a running trial was told to stop."""

    NOT = ""
    #: The trial is another run's, or done.
    LOST = "lease lost"
    CANCELLED = "cancelled"
    #: Past the hard deadline of our own.
    DEADLINE = "hard deadline"
    #: The worker was told to stop now.
    WORKER = "worker stopping"


def clock() -> float:
    """Seconds that go on while the machine sleeps (CLOCK_BOOTTIME), where there is such a clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


class Hold:
    """Keeps one claim's lease until left; calls ``stop`` until the trial has ended when it must.

    More than once, since a session stops only what runs already: the reason may come while the trial's task is fetched.

    A store that cannot be reached ends no trial: it may be restarting, and a run of hours is worth more than the chance
    that somebody else began it again. Once it answers, a lease that was lost is taken back if nobody has the trial; if
    somebody has, this run stops. Whichever result is committed first counts.
    """

    def __init__(
        self,
        db: Db,
        claim: Claim,
        *,
        lease_seconds: float,
        deadline_seconds: float,
        stop_seconds: float,
        stop: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._db, self._claim, self._lease = db, claim, lease_seconds
        self._deadline = clock() + deadline_seconds
        self._stop, self._stop_seconds, self._stopping = stop, stop_seconds, stopping
        self._stopped_at: float | None = None
        self._lock = threading.Lock()
        # Held while the lease is renewed, so that a run which is given back is not taken back by its own renewal.
        self._renewing = threading.Lock()
        self._given_back = False
        self._trial_over = False
        self._left = threading.Event()
        self._standing = Standing.HELD
        #: Why the trial was stopped; read it after `trial_over`.
        self.stopped = Stopped.NOT
        self._watcher = threading.Thread(target=self._watch, name=f"watch {claim.trial}", daemon=True)
        # Apart from the watcher, since a call to a server behind a dead link may hang for longer than the lease.
        self._renewer = threading.Thread(target=self._renew, name=f"lease {claim.trial}", daemon=True)

    def __enter__(self) -> Hold:
        try:
            self._watcher.start()
            self._renewer.start()
        except BaseException:
            self._left.set()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._watcher.join()

    @contextmanager
    def giving_back(self) -> Iterator[None]:
        """Around a requeue: from here on the lease is neither renewed nor taken back, unless `keep` is called."""
        with self._renewing:
            self._given_back = True
            yield

    def keep(self) -> None:
        """The requeue was refused: the lease is needed on, for the push of the failed result."""
        self._given_back = False

    @property
    def cancelled(self) -> bool:
        """Whether the evaluation is being cancelled."""
        return self._standing is Standing.CANCEL

    def trial_over(self) -> Stopped:
        """The trial has ended by itself or by `stop`: only the lease is kept from here on, for the push."""
        with self._lock:
            self._trial_over = True
            return self.stopped

    def _renew(self) -> None:
        pause = min(LOOK_SECONDS, self._lease / 4)
        while not self._left.wait(pause):
            if self._is_deaf():
                # The trial does not end although it was stopped: let the lease go, so that others can have it.
                log.error("%s does not stop; its lease is given up", self._claim.trial)
                self._leave_batch()
                return
            try:
                self._renew_once()
            except Unavailable:
                continue
            except Exception:
                # Whatever it is: a lease that is no longer renewed would give the trial to somebody else.
                log.exception("the lease of %s could not be renewed", self._claim.trial)

    def _renew_once(self) -> None:
        with self._renewing:
            if self._given_back or self._left.is_set():
                return
            standing = trials.renew(self._db, self._claim, lease_seconds=self._lease)
            if standing is Standing.LOST and trials.reclaim(self._db, self._claim, lease_seconds=self._lease):
                standing = Standing.HELD
            self._standing = standing

    def _leave_batch(self) -> None:
        """Say that the batch claims nothing more, else its trials would wait for it when it is the last one."""
        claim = self._claim
        batch = Batch(id=claim.batch, evaluation=claim.evaluation, worker=claim.worker)
        while not self._left.is_set():
            with suppress(Unavailable):
                evaluations.end_batch(self._db, batch)
                return
            self._left.wait(LOOK_SECONDS)

    def _watch(self) -> None:
        while not self._left.wait(min(LOOK_SECONDS, self._lease / 4)):
            reason = self._look()
            if reason is Stopped.NOT:
                continue
            with self._lock:
                if self._trial_over:
                    continue
                if self.stopped is Stopped.NOT:
                    self.stopped, self._stopped_at = reason, clock()
            try:
                self._stop(self.stopped.value)
            except Exception:
                # It is told again at the next look.
                log.exception("%s could not be told to stop", self._claim.trial)

    def _is_deaf(self) -> bool:
        since = self._stopped_at
        return since is not None and not self._trial_over and clock() - since > self._stop_seconds + DEAF_SECONDS

    def _look(self) -> Stopped:
        if self._standing is Standing.LOST:
            return Stopped.LOST
        if self._standing is Standing.CANCEL:
            return Stopped.CANCELLED
        if clock() > self._deadline:
            return Stopped.DEADLINE
        return Stopped.WORKER if self._stopping() else Stopped.NOT
