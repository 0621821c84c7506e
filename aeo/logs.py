"""What the long-running processes log: one format, and an outage of the store in two lines rather than hundreds."""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

log = logging.getLogger(__name__)

#: Seconds between two lines about one outage: doubling from the first to the second.
FIRST_SILENCE, LONGEST_SILENCE = 10.0, 600.0
#: Seconds between two looks whether the store is back, and how long it must have been before that is said: what failed
#: a moment ago is logged a moment later.
LOOK_SECONDS, SETTLE_SECONDS = 1.0, 2.0

_DECIDED = "aeo_outage"
_OURS = "The store at "
_LIBRARIES = ("celery", "kombu")
_CUT_OFF = re.compile(r"connect|timed? ?out|reset by|closed|loading", re.IGNORECASE)


def to_stderr() -> None:
    """Set up logging for a long-running process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx", *_LIBRARIES):
        logging.getLogger(chatty).setLevel(logging.WARNING)


@contextmanager
def outages(place: str, answers: Callable[[], bool]) -> Iterator[None]:
    """While the store at ``place`` is away, tell it once, again at growing intervals, and once when it ``answers``.

    Every loop of a process meets an outage by itself, and each would tell it at each of its tries.
    """
    outage = Outage(place, answers)
    handlers = list(logging.getLogger().handlers)
    for handler in handlers:
        handler.addFilter(outage)
    try:
        yield
    finally:
        outage.close()
        for handler in handlers:
            handler.removeFilter(outage)


class Outage(logging.Filter):
    """Lets the first record of an outage through, and few of those that follow."""

    def __init__(self, place: str, answers: Callable[[], bool]):
        super().__init__()
        self._place, self._answers = place, answers
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._away = False
        self._due = self._silence = 0.0

    def close(self) -> None:
        """Look for the store no more."""
        self._over.set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is written; one about an outage is put in our words."""
        # One decision, however many handlers ask.
        if not hasattr(record, _DECIDED):
            setattr(record, _DECIDED, self._decide(record))
        return bool(getattr(record, _DECIDED))

    def _decide(self, record: logging.LogRecord) -> bool:
        text = record.getMessage() if record.levelno >= logging.WARNING else ""
        if not (_CUT_OFF.search(text) and (_OURS in text or record.name.startswith(_LIBRARIES))):
            return True
        if not self._is_due():
            return False
        found = text[text.find(_OURS) :] if _OURS in text else f"{_OURS}{self._place} does not answer"
        record.name = log.name
        record.msg, record.args = "%s; trying again", (found.rstrip("."),)
        record.exc_info = record.exc_text = None
        return True

    def _is_due(self) -> bool:
        with self._lock:
            now = time.monotonic()
            if not self._away:
                self._away, self._due, self._silence = True, now, FIRST_SILENCE
                threading.Thread(target=self._look, name="outage", daemon=True).start()
            if now < self._due:
                return False
            self._due = now + self._silence
            self._silence = min(self._silence * 2, LONGEST_SILENCE)
            return True

    def _look(self) -> None:
        while not (self._answers() and not self._over.wait(SETTLE_SECONDS) and self._answers()):
            if self._over.wait(LOOK_SECONDS):
                return
        with self._lock:
            self._away = False
        log.warning("the store at %s answers again", self._place)
