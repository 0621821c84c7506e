"""What the long-running processes log: text for people or JSON for programs; secrets never; outages in two lines.

A line of JSON also says what it is about: whoever works at an evaluation, a batch or a trial says so with `about` or
`of_run`, and all that is logged inside, by whichever module or plug-in, has it.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from typing import Any
from urllib.parse import unquote, urlsplit

import structlog
from structlog.contextvars import bound_contextvars, merge_contextvars

from aeo import redaction
from aeo.config import Config
from aeo.core.model import Claim
from aeo.redaction import Redactor

log = logging.getLogger(__name__)

#: Seconds between two lines about one outage: doubling from the first to the second.
FIRST_SILENCE, LONGEST_SILENCE = 10.0, 600.0
#: Seconds between two looks whether the store is back, and how long it must have been before that is said: what failed
#: a moment ago is logged a moment later.
LOOK_SECONDS, SETTLE_SECONDS = 1.0, 2.0

_DECIDED = "aeo_outage"
_OURS = "The store at "
_LIBRARIES = ("celery", "kombu")
_NOTHING = (None, None, None)
_CUT_OFF = re.compile(r"connect|timed? ?out|reset by|closed|loading", re.IGNORECASE)
#: How a server says that it does not know who asks: of a worker that was revoked, nothing else comes.
_SHUT_OUT = re.compile(r"WRONGPASS|NOAUTH|invalid username-password|Authentication required", re.IGNORECASE)


def to_stderr(config: Config | None = None, **always: str) -> None:
    """Set up logging for a long-running process, as ``config`` says; ``always`` is in each line of JSON."""
    config = config or Config()
    handler = logging.StreamHandler()
    handler.setFormatter(formatter(config, **always))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for chatty in ("httpx", *_LIBRARIES):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def formatter(config: Config, **always: str) -> logging.Formatter:
    """What makes a line of a record."""
    hide = Redactor(_secrets(config))
    return _Json(hide, always) if config.log_format == "json" else _Text(hide)


@contextmanager
def about(**what: str) -> Iterator[None]:
    """Say what is worked at, as ``evaluation``, ``batch``, ``trial`` and ``worker``; what is empty does not count.

    It holds for this thread.
    """
    with bound_contextvars(**{name: value for name, value in what.items() if value}):
        yield


@contextmanager
def of_run(claim: Claim) -> Iterator[None]:
    """The same for one run of a trial; ``of_run(claim)(work)`` is ``work`` for another thread."""
    with about(evaluation=claim.evaluation, batch=claim.batch, trial=claim.trial, worker=claim.worker):
        yield


def _secrets(config: Config) -> Mapping[str, str]:
    """What this process knows of secrets, each by a name of its own."""
    known = {name: getattr(config, name) for name in ("auth_token", "transfer_password", "notify_url")}
    for name in ("broker_url", "worker_broker_url", "smtp_url"):
        # One that is no address is told by whoever uses it.
        with suppress(ValueError):
            known[name] = urlsplit(getattr(config, name)).password or ""
            known[f"{name}_unquoted"] = unquote(known[name])
    return {**redaction.secrets(config.secret_names), **{name: value for name, value in known.items() if value}}


_hidden: list[Redactor] = []


@contextmanager
def without(redactor: Redactor) -> Iterator[None]:
    """Take more out of all that this process logs meanwhile."""
    _hidden.append(redactor)
    try:
        yield
    finally:
        _hidden.remove(redactor)


def _clean(text: str) -> str:
    for redactor in tuple(_hidden):
        text = redactor.text(text)
    return text


class _Text(logging.Formatter):
    def __init__(self, hide: Redactor) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s: %(message)s")
        self._hide = hide

    def format(self, record: logging.LogRecord) -> str:
        return _clean(self._hide.text(super().format(record)))


class _Json(structlog.stdlib.ProcessorFormatter):
    def __init__(self, hide: Redactor, always: Mapping[str, str]) -> None:
        super().__init__(
            foreign_pre_chain=[_fields, merge_contextvars],
            processors=[self.remove_processors_meta, structlog.processors.JSONRenderer()],
        )
        self._hide, self._always = hide, always

    def format(self, record: logging.LogRecord) -> str:
        with bound_contextvars(**{**self._always, **structlog.contextvars.get_contextvars()}):
            return _clean(self._hide.text(super().format(record)))


def _fields(_: object, __: str, event: MutableMapping[str, Any]) -> Mapping[str, Any]:
    """What each line begins with, and the traceback, as filters have left it."""
    record: logging.LogRecord = event["_record"]
    made = {
        "at": datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "event": event["event"],
        "logger": record.name,
    }
    if record.exc_text or record.exc_info:
        made["exception"] = record.exc_text or logging.Formatter().formatException(record.exc_info or _NOTHING)
    return {**made, "_record": record, "_from_structlog": event["_from_structlog"]}


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


def _told(record: logging.LogRecord) -> str:
    """A record's message; of a library's, which tries again by itself, with the error."""
    text = record.getMessage()
    error = record.exc_info[1] if record.exc_info and record.name.startswith(_LIBRARIES) else None
    return f"{text}\n{type(error).__name__}: {error}" if error is not None else text


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
        text = _told(record) if record.levelno >= logging.WARNING else ""
        shut_out = bool(_SHUT_OUT.search(text))
        if not ((shut_out or _CUT_OFF.search(text)) and (_OURS in text or record.name.startswith(_LIBRARIES))):
            return True
        if not self._is_due(shut_out):
            return False
        found = f"{_OURS}{self._place} does not {'take our credentials' if shut_out else 'answer'}"
        if not shut_out and _OURS in text:
            found = text[text.find(_OURS) :].partition("\n")[0]
        record.name = log.name
        record.msg, record.args = "%s; trying again", (found.rstrip("."),)
        record.exc_info = record.exc_text = None
        return True

    def _is_due(self, shut_out: bool) -> bool:
        with self._lock:
            now = time.monotonic()
            if not self._away:
                self._away, self._due, self._silence = True, now, FIRST_SILENCE
                threading.Thread(target=self._look, name="outage", daemon=True).start()
            if now < self._due:
                return False
            if shut_out:
                # Nothing but a person ends that.
                self._silence = LONGEST_SILENCE
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
