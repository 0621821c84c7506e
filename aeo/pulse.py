"""A worker's pulse: its heartbeats, and what it learns by them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from aeo.config import Config
from aeo.core.errors import AeoError, Conflict, NotFound
from aeo.core.model import Heartbeat, WorkerState
from aeo.store import workers as store
from aeo.store.connection import Db, Denied, connect

if TYPE_CHECKING:
    from aeo.registration import Addresses

log = logging.getLogger(__name__)

#: Seconds between two tries to send a heartbeat that failed.
RETRY_SECONDS = 1.0
#: Seconds without an answer of the store, or of transfers that fail, after which the controller is asked for
#: the addresses; then between two times, doubling from the first to the second.
ASK_SECONDS, LONGEST_ASK_SECONDS = 10.0, 60.0
#: Most seconds between two looks of a worker whose credentials were revoked, whether it was let in again.
SHUT_OUT_SECONDS = 15.0


class Pulse:
    """The thread that sends heartbeats: on a connection of its own, so that it beats whatever Celery waits for."""

    def __init__(
        self,
        config: Config,
        *,
        look: Callable[[], Heartbeat],
        heed: Callable[[WorkerState], None],
        register: Callable[[], Addresses],
        dismiss: Callable[[str], None],
        begin_anew: Callable[[str], None],
        elsewhere: Callable[[Addresses], str] = lambda _: "",
        unsent: Callable[[], float] = lambda: 0.0,
    ):
        """``heed`` is told the state the controller wants; ``register`` is called when it does not know the worker.

        ``dismiss`` is told why at each beat while a person keeps this worker out ("": it was removed); ``begin_anew``
        why only a new process can go on: its credentials are others now, or ``elsewhere`` says what other addresses
        the controller tells. It is asked for them too when the store does not answer, or transfers fail, ``unsent``
        in seconds, for long.
        """
        self._config, self._look, self._heed, self._register = config, look, heed, register
        self._dismiss, self._begin_anew, self._elsewhere, self._unsent = dismiss, begin_anew, elsewhere, unsent
        #: When the store answered last, and when the controller is asked for the addresses and how long after that.
        self._answered = time.monotonic()
        self._due, self._between = 0.0, ASK_SECONDS
        #: Seconds to the next look of a worker that is kept out; 0 when it is not.
        self._shut_out = 0.0
        self._said = ""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="heartbeat", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Send no more; the last heartbeat expires by itself."""
        self._stop.set()
        self._thread.join(timeout=15)

    def _run(self) -> None:
        db: Db | None = None
        pause = 0.0
        while not self._stop.wait(pause):
            pause = self._config.poll_interval
            try:
                db = db or connect(self._config.broker_url)
                self._beat(db)
                self._answered = time.monotonic()
                self._shut_out = 0.0
            except Denied as error:
                # The server was started again and does not know this user yet, or a person took its rights away.
                self._answered = time.monotonic()
                if not self._shut_out:
                    log.warning("heartbeat refused: %s", error)
                self._ask_again()
                pause = self._shut_out or min(RETRY_SECONDS, pause)
            except Exception as error:  # whatever it is, a worker without a pulse is a lost worker
                log.warning("heartbeat failed: %s", error)
                pause = min(RETRY_SECONDS, pause)
            self._ask_where()
        if db is not None:
            db.close()

    def _beat(self, db: Db) -> None:
        config = self._config
        told = replace(self._look(), clock_skew=store.clock_skew(db))
        try:
            self._heed(store.beat(db, config.worker_id, told, ttl_seconds=config.grace_seconds))
        except Conflict:
            self._dismiss("")
        except NotFound:
            log.warning("the controller does not know this worker any more; registering again")
            self._register_again()

    def _ask_again(self) -> None:
        try:
            self._heed_addresses(self._register())
            self._shut_out = 0.0
        except Conflict as error:
            self._shut_out = min(max(2 * self._shut_out, RETRY_SECONDS), SHUT_OUT_SECONDS)
            self._dismiss(str(error))
        except AeoError as error:
            log.warning("%s", error)

    def _ask_where(self) -> None:
        """Ask for the addresses, when nothing got through to those we have for long."""
        now = time.monotonic()
        if self._shut_out:
            return
        if max(now - self._answered, self._unsent()) < ASK_SECONDS:
            self._due, self._between = 0.0, ASK_SECONDS
        elif now >= self._due:
            try:
                self._heed_addresses(self._register())
            except Conflict as error:
                self._dismiss(str(error))
            except AeoError as error:
                if str(error) != self._said:
                    log.warning("%s", error)
                self._said = str(error)
            else:
                self._said, self._between = "", min(self._between * 2, LONGEST_ASK_SECONDS)
            self._due = time.monotonic() + self._between

    def _heed_addresses(self, found: Addresses) -> None:
        if not found.kept:
            self._begin_anew("it has new credentials")
        elif why := self._elsewhere(found):
            self._begin_anew(why)

    def _register_again(self) -> None:
        try:
            self._heed_addresses(self._register())
        except Conflict as error:
            # Another has the id now: this one must not take trials in its name.
            log.warning("%s", error)
            self._heed(WorkerState.LOST)
