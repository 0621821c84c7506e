"""Holding a lease while a trial runs, and stopping the trial when it must not run on."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from types import TracebackType

from aeo import logs
from aeo.core.errors import Unavailable
from aeo.core.model import Batch, Claim
from aeo.store import access, evaluations, trials
from aeo.store.connection import Db, Denied
from aeo.store.trials import Renewal, Standing

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


class Leases:
    """The leases of one worker, kept by two threads for all of them, which live while there are any.

    One renews, in one call to the store; the other looks whether a run must stop. They are two since a call to a server
    behind a dead link may hang for longer than a lease.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holds: dict[int, Hold] = {}
        self._alive: set[str] = set()

    def add(self, hold: Hold) -> None:
        """Keep a lease from now on.

        Raises:
            RuntimeError: no thread can be started.
        """
        with self._lock:
            self._holds[id(hold)] = hold
            try:
                for name, work in (("renew", self._renew), ("watch", self._watch)):
                    if name not in self._alive:
                        threading.Thread(
                            target=self._keep, args=(name, work), name=f"leases {name}", daemon=True
                        ).start()
                        self._alive.add(name)
            except BaseException:
                del self._holds[id(hold)]
                raise

    def drop(self, hold: Hold) -> None:
        """Keep it no more."""
        with self._lock:
            self._holds.pop(id(hold), None)

    def running(self) -> int:
        """How many of their trials have not ended."""
        with self._lock:
            return sum(not hold.is_over for hold in self._holds.values())

    def _keep(self, name: str, work: Callable[[Sequence[Hold]], None]) -> None:
        while True:
            with self._lock:
                pause = min((min(LOOK_SECONDS, hold.lease_seconds / 4) for hold in self._holds.values()), default=0.0)
                if not self._holds:
                    self._alive.discard(name)
                    return
            time.sleep(pause)
            with self._lock:
                holds = list(self._holds.values())
            try:
                work(holds)
            except Unavailable:
                continue
            except Exception:
                # Whatever it is: leases that are no longer renewed would give the trials to somebody else.
                log.exception("leases could not be seen to (%s)", name)

    def _watch(self, holds: Sequence[Hold]) -> None:
        for hold in holds:
            hold.look()

    def _renew(self, holds: Sequence[Hold]) -> None:
        kept = [hold for hold in holds if hold.is_kept()]
        if kept:
            found = trials.renew_all(kept[0].db, [hold.renewal() for hold in kept])
            for hold, standing in zip(kept, found, strict=True):
                with hold.asking():
                    if isinstance(standing, Denied):
                        raise standing
                    hold.found(standing)
        for hold in holds:
            with hold.asking():
                hold.leave_if_deaf()


class Hold:
    """Keeps one claim's lease until left; calls ``stop`` until the trial has ended when it must.

    More than once, since a session stops only what runs already: the reason may come while the trial's task is fetched.

    A store that cannot be reached ends no trial: it may be restarting, and a run of hours is worth more than the chance
    that somebody else began it again. Once it answers, a lease that was lost is taken back if nobody has the trial; if
    somebody has, this run stops. Whichever result is committed first counts.
    """

    def __init__(
        self,
        leases: Leases,
        db: Db,
        claim: Claim,
        *,
        lease_seconds: float,
        deadline_seconds: float,
        stop_seconds: float,
        stop: Callable[[str], None],
        stopping: Callable[[], bool],
    ) -> None:
        self._leases, self.db, self._claim, self.lease_seconds = leases, db, claim, lease_seconds
        self._deadline = clock() + deadline_seconds
        self._stop, self._stop_seconds, self._stopping = stop, stop_seconds, stopping
        self._stopped_at: float | None = None
        # Held while the session is told to stop, so that this never reaches the run that comes after.
        self._telling = threading.Lock()
        # Held while a lost lease is taken back, so that a run which is given back is not taken back by its own renewal.
        self._renewing = threading.Lock()
        self._given_back = self._trial_over = self._batch_left = False
        self._left = threading.Event()
        self._standing = Standing.HELD
        self._phase = ""
        #: Why the trial was stopped; read it after `trial_over`.
        self.stopped = Stopped.NOT

    def begin(self) -> None:
        """Keep the lease until `end`.

        Raises:
            RuntimeError: no thread can be started.
        """
        self._leases.add(self)

    def __enter__(self) -> Hold:
        self.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """Keep the lease no more; it may be called again."""
        self._left.set()
        self._leases.drop(self)
        self.trial_over()

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
        with self._telling:
            self._trial_over = True
            return self.stopped

    @property
    def is_over(self) -> bool:
        """Whether the trial has ended."""
        return self._trial_over

    def note_phase(self, phase: str) -> None:
        """Tell the store what the trial does now, with the next renewal: for people only."""
        self._phase = phase

    def is_kept(self) -> bool:
        """Whether the lease is to be renewed; not when its trial does not end although it was stopped."""
        return not (self._given_back or self._left.is_set() or self._is_deaf())

    def renewal(self) -> Renewal:
        """What the store is asked; a phase is told once."""
        phase, self._phase = self._phase, ""
        return Renewal(claim=self._claim, lease_seconds=self.lease_seconds, phase=phase)

    def found(self, standing: Standing) -> None:
        """Take note of what a renewal found; a lease that was lost is taken back if nobody has the trial.

        Raises:
            Unavailable: the store is away.
        """
        with self._renewing:
            if self._given_back or self._left.is_set():
                return
            if standing is Standing.LOST and trials.reclaim(self.db, self._claim, lease_seconds=self.lease_seconds):
                standing = Standing.HELD
            self._standing = standing

    @contextmanager
    def asking(self) -> Iterator[None]:
        """Around what may be refused of this run alone: its right is asked for, and the others go on."""
        try:
            yield
        except Denied as error:
            with logs.of_run(self._claim):
                log.warning("lease of %s: %s", self._claim.trial, error)
            access.ask_for(self.db, self._claim.worker, self._claim.evaluation)

    def leave_if_deaf(self) -> None:
        """Say of a trial that does not stop that its batch claims nothing more, else others would wait for it.

        Raises:
            Unavailable: the store is away.
        """
        if self._batch_left or self._left.is_set() or not self._is_deaf():
            return
        claim = self._claim
        with logs.of_run(claim):
            log.error("%s does not stop; its lease is given up", claim.trial)
        evaluations.end_batch(self.db, Batch(id=claim.batch, evaluation=claim.evaluation, worker=claim.worker))
        self._batch_left = True

    def look(self) -> None:
        """See whether the trial must stop; then have it told until it is over, in a thread, as that may take long."""
        if self._trial_over or self.stopped is not Stopped.NOT:
            return
        reason = self._reason()
        if reason is Stopped.NOT:
            return
        with self._telling:
            if self._trial_over:
                return
            self.stopped, self._stopped_at = reason, clock()
        tell = logs.of_run(self._claim)(self._tell)
        threading.Thread(target=tell, name=f"stop {self._claim.trial}", daemon=True).start()

    def _tell(self) -> None:
        while not self._left.is_set():
            with self._telling:
                if self._trial_over:
                    return
                try:
                    self._stop(self.stopped.value)
                except Exception:
                    # It is told again.
                    log.exception("%s could not be told to stop", self._claim.trial)
            self._left.wait(min(LOOK_SECONDS, self.lease_seconds / 4))

    def _is_deaf(self) -> bool:
        since = self._stopped_at
        return since is not None and not self._trial_over and clock() - since > self._stop_seconds + DEAF_SECONDS

    def _reason(self) -> Stopped:
        if self._standing is Standing.LOST:
            return Stopped.LOST
        if self._standing is Standing.CANCEL:
            return Stopped.CANCELLED
        if clock() > self._deadline:
            return Stopped.DEADLINE
        return Stopped.WORKER if self._stopping() else Stopped.NOT
