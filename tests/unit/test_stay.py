"""How long a worker's process goes on."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path

import pytest
from waiting import eventually

from aeo import stay as stays
from aeo.layout import Local
from aeo.stay import Stay


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that a process sends to itself, none of which arrives; then it ends no more."""
    sent: list[int] = []
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    # As if the main thread were to end the process first.
    monkeypatch.setattr(stays, "END_SECONDS", 1e6)
    monkeypatch.setattr(stays, "_LOOK_SECONDS", 0.01)
    return sent


def test_it_begins_anew_when_nothing_runs(tmp_path: Path, signals: list[int]) -> None:
    idle = threading.Event()
    stay = Stay(local=Local(tmp_path), name="w", idle=idle.is_set)
    stay.begin_anew("the broker is at h:1 now")
    assert stay.reason() == "stopping"
    assert not stay.now.wait(0.1)
    idle.set()
    eventually(lambda: signals)
    # Its own signal is nobody's wish.
    stay.leave()
    assert stay.renewing
    assert stay.now.is_set()
    # The next is.
    stay.give_back()
    assert not stay.renewing


def test_who_is_told_to_stop_does_not_begin_anew(tmp_path: Path, signals: list[int]) -> None:
    idle = threading.Event()
    stay = Stay(local=Local(tmp_path), name="told", idle=idle.is_set)
    stay.begin_anew("it has new credentials")
    stay.leave()
    idle.set()
    eventually(lambda: "renew told" not in {thread.name for thread in threading.enumerate()})
    assert not signals
    assert not stay.renewing


def test_one_that_is_kept_out_says_why_and_seldom_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr("aeo.stay.time.monotonic", lambda: now[0])
    stay = Stay(local=Local(tmp_path), name="w")
    with caplog.at_level(logging.ERROR):
        for second in range(1300):
            now[0] = 1000.0 + second
            stay.dismiss(
                "The credentials of worker 'w' were revoked by a person.\nLet it in again: aeo workers allow w"
            )
    assert len(caplog.messages) == 3
    assert "revoked by a person. Let it in again" in caplog.messages[0]
