"""An outage of the store in the log."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from waiting import eventually

from aeo import logs

AWAY = "The store at h:1 does not answer as it should: Error 111 connecting to h:1. Connection refused."


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """What is written while the store is away; it never answers before `back` says so."""
    monkeypatch.setattr(logs, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(logs, "SETTLE_SECONDS", 0.01)
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield written
    logging.getLogger().removeHandler(handler)


def test_an_outage_is_told_once_and_its_end(lines: list[str]) -> None:
    back = threading.Event()
    with logs.outages("h:1", back.is_set):
        for _ in range(20):
            logging.getLogger("aeo.control").warning("%s", AWAY)
            logging.getLogger("celery.worker.consumer").error("consumer: Cannot connect to redis://h:1//")
        logging.getLogger("aeo.control").warning("something else")
        logging.getLogger("celery.worker").error("a task is not known")
        assert lines == [f"{AWAY.rstrip('.')}; trying again", "something else", "a task is not known"]
        back.set()
        eventually(lambda: lines[-1] == "the store at h:1 answers again")
        # The next one is another.
        back.clear()
        logging.getLogger("kombu.connection").error("Connection to broker lost", exc_info=OSError("long"))
        assert lines[-1] == "The store at h:1 does not answer; trying again"


def test_credentials_that_are_no_more_are_told_as_an_outage_is(lines: list[str]) -> None:
    refused = "invalid username-password pair or user is disabled."
    with logs.outages("h:1", lambda: False):
        for _ in range(20):
            # As Celery does, which cannot store a result.
            logging.getLogger("celery.backends.base").warning(
                "Failed operation %s. Retrying %s more times.", "_store_result", 9, exc_info=OSError(refused)
            )
            logging.getLogger("aeo.pulse").warning("heartbeat refused: The store at h:1 does not answer: %s", refused)
        logging.getLogger("celery.backends.base").warning("Failed operation %s.", "x", exc_info=ValueError("another"))
        logging.getLogger("aeo.leases").warning("The store at h:1 does not answer as it should: NOPERM a key")
    assert lines == [
        "The store at h:1 does not take our credentials; trying again",
        "Failed operation x.",
        "The store at h:1 does not answer as it should: NOPERM a key",
    ]


def test_a_long_outage_is_told_at_growing_intervals(lines: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("aeo.logs.time.monotonic", lambda: now[0])
    told = []
    outage = logs.Outage("h:1", lambda: False)
    record = logging.LogRecord("aeo.control", logging.WARNING, "", 0, AWAY, (), None)
    for second in range(3600):
        now[0] = float(second)
        if outage.filter(logging.makeLogRecord(record.__dict__)):
            told.append(second)
    outage.close()
    assert told == [0, 10, 30, 70, 150, 310, 630, 1230, 1830, 2430, 3030]


@pytest.mark.parametrize(
    "text", ["The store at h:1 does not answer as it should: OOM command not allowed", "disk full"]
)
def test_what_is_no_outage_is_always_told(lines: list[str], text: str) -> None:
    with logs.outages("h:1", lambda: False):
        for _ in range(3):
            logging.getLogger("aeo.control").warning("%s", text)
    assert lines == [text] * 3
