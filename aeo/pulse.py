"""A worker's pulse: its heartbeats, and what it learns by them."""

from __future__ import annotations

import logging
import threading
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


class Pulse:
    """The thread that sends heartbeats: on a connection of its own, so that it beats whatever Celery waits for."""

    def __init__(
        self,
        config: Config,
        *,
        look: Callable[[], Heartbeat],
        heed: Callable[[WorkerState], None],
        register: Callable[[], Addresses],
        dismiss: Callable[[], None],
        replaced: Callable[[], None],
    ):
        """``heed`` is told the state the controller wants; ``register`` is called when it does not know the worker.

        ``dismiss`` is called at each beat while a person keeps this worker out; ``replaced`` when its credentials are
        no more and others were issued, which only a new process can use.
        """
        self._config, self._look, self._heed, self._register = config, look, heed, register
        self._dismiss, self._replaced = dismiss, replaced
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
            except Denied as error:
                # The server was started again and does not know this user yet, or a person took its rights away.
                log.warning("heartbeat refused: %s", error)
                pause = min(RETRY_SECONDS, pause)
                self._ask_again()
            except Exception as error:  # whatever it is, a worker without a pulse is a lost worker
                log.warning("heartbeat failed: %s", error)
                pause = min(RETRY_SECONDS, pause)
        if db is not None:
            db.close()

    def _beat(self, db: Db) -> None:
        config = self._config
        told = replace(self._look(), clock_skew=store.clock_skew(db))
        try:
            self._heed(store.beat(db, config.worker_id, told, ttl_seconds=config.grace_seconds))
        except Conflict:
            self._dismiss()
        except NotFound:
            log.warning("the controller does not know this worker any more; registering again")
            self._register_again()

    def _ask_again(self) -> None:
        try:
            if not self._register().kept:
                self._replaced()
        except Conflict as error:
            log.error("%s", error)
            self._dismiss()
        except AeoError as error:
            log.warning("%s", error)

    def _register_again(self) -> None:
        try:
            if not self._register().kept:
                self._replaced()
        except Conflict as error:
            # Another has the id now: this one must not take trials in its name.
            log.warning("%s", error)
            self._heed(WorkerState.LOST)
