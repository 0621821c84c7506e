"""A batch's turn at a slot: what it claims one after the other, when it waits, and when others go first."""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

from aeo import dispatch
from aeo.core.choose import Answer
from aeo.core.errors import AeoError, Unavailable
from aeo.core.model import Batch, Claim
from aeo.leases import clock
from aeo.site import WorkerSite
from aeo.starts import ENVIRONMENT
from aeo.store import access, evaluations, trials
from aeo.store.connection import Denied

log = logging.getLogger(__name__)

#: Seconds between two looks of a batch that waits, on average: each look costs the store a claim.
LOOK_SECONDS = 0.5
#: Seconds between two tries to tell the store that a batch has ended.
STORE_SECONDS = 2.0
#: Seconds for which a right is asked for that does not come.
DENIED_SECONDS = 60.0
#: The same of one that leaves what waits to faster slots: a tenth of the time for which it has, within these. Then that
#: it may run something at last is known soon enough, and hundreds of slots do not keep the store from claims.
LEAVE_SECONDS = (LOOK_SECONDS, 5.0)


class Turn:
    """What a batch does with its slot until it ends or gives it to another evaluation."""

    def __init__(self, site: WorkerSite, batch: Batch, *, max_starting: int = 0) -> None:
        """``max_starting``: trials of this worker that may be in their environment phase at once; 0 is any number."""
        self._site, self._batch, self._most = site, batch, max_starting
        self._starting = False
        self._said = ""
        #: When it began to leave what waits, on this process's clock.
        self._left: float | None = None
        #: The slot was given to another evaluation: the batch counts as sent, and its message is to be sent again.
        self.given = False

    def claims(self) -> Iterator[Claim]:
        """The trials to run, each when the one before has ended. Waits while there is none that may run yet.

        Raises:
            Unavailable: the store is away.
        """
        try:
            while not self._site.draining():
                if not self._may_begin():
                    self._wait()
                    continue
                answer = trials.ask(
                    self._site.db,
                    self._batch,
                    token=secrets.token_hex(8),
                    lease_seconds=self._site.config.lease_seconds,
                )
                if answer is not Answer.LEAVE:
                    self._left = None
                if isinstance(answer, Claim):
                    yield answer
                    self._started()
                elif answer in (Answer.WAIT, Answer.LEAVE):
                    self._started()
                    self._wait(leaves=answer is Answer.LEAVE)
                else:
                    self.given = answer is Answer.TURN
                    return
        finally:
            self._started()

    def told(self, phase: str) -> None:
        """Of the phase that begins of the trial that runs: others may start once it has its environment."""
        if phase != ENVIRONMENT:
            self._started()

    def _may_begin(self) -> bool:
        why = self._site.crowded()
        if why and not self._said:
            log.warning("no trial of %s starts here for the moment: %s", self._batch.evaluation, why)
        self._said = why
        if why:
            return False
        if self._most and not self._starting:
            self._starting = self._site.starts.begin(self._most, self._site.stopping)
        return not self._most or self._starting

    def _started(self) -> None:
        if self._starting:
            self._starting = False
            self._site.starts.end()

    def _wait(self, *, leaves: bool = False) -> None:
        seconds = LOOK_SECONDS
        if leaves:
            self._left = time.monotonic() if self._left is None else self._left
            seconds = pause(time.monotonic() - self._left)
        # Many wait for the same: not all at the same moment.
        self._site.stopping.wait(seconds * random.uniform(0.6, 1.4))  # noqa: S311  # not a secret


def pause(left: float) -> float:
    """Seconds until a batch asks again that has left what waits to faster slots for so long."""
    least, most = LEAVE_SECONDS
    return min(max(left / 10, least), most)


def gives_way(site: WorkerSite, batch: Batch) -> bool:
    """Whether a batch whose message has just arrived let another go first, and was sent again."""
    if not evaluations.gives_way(site.db, batch):
        return False
    send_again(site, batch)
    return True


def send_again(site: WorkerSite, batch: Batch) -> None:
    """Send the message of a batch that gave its turn, behind the others: the same member of the same chord.

    If it is lost on the way the reconciler sends it.
    """
    with suppress(Unavailable):
        message = evaluations.message_of(site.db, batch)
        if message:
            dispatch.resend(site, replace(batch, message=message), behind=True)


def await_store(site: WorkerSite, batch: Batch, *, end: bool) -> bool:
    """Wait until the store takes it that a batch has ended, or (without ``end``) that it is looked at.

    Until the worker must stop now at the latest. False where this worker may reach the evaluation no more, and its
    asking did not help: it is over, or gone, and nobody waits for what is said of it.

    Where it answers and refuses to write (its disk or memory is full), Celery would lose the slot of a message that
    returned: it could not keep the result, and would count the message as running for ever.
    """
    refused_at: float | None = None
    while True:
        try:
            if end:
                evaluations.end_batch(site.db, batch)
            else:
                access.look(site.db, batch.evaluation)
            return True
        except Denied as error:
            if refused_at is None:
                refused_at = clock()
                log.warning("batch %s cannot be ended, its right is asked for: %s", batch.id, error)
            if clock() - refused_at >= DENIED_SECONDS:
                log.warning("batch %s is of an evaluation that this worker may reach no more", batch.id)
                return False
            with suppress(AeoError):
                access.ask_for(site.db, site.config.worker_id, batch.evaluation)
        except AeoError as error:
            refused_at = None
            log.warning("batch %s cannot be ended, trying again: %s", batch.id, error)
        except Exception:
            # A fault of our own would come again; the heartbeat tells that this batch is no more.
            log.exception("batch %s cannot be ended", batch.id)
            return True
        if site.stopping.wait(STORE_SECONDS):
            return refused_at is None
