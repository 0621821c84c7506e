"""The store restarts, dies, forgets: what runs goes on, what was committed stays."""

from __future__ import annotations

import signal
from typing import Any

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import PATIENCE, Stage, moment
from waiting import eventually, never

CONFIG: dict[str, Any] = {"trials": 24, "seconds": 1.0}


@pytest.mark.parametrize(
    ("number", "wipe", "fault"),
    [
        (signal.SIGTERM, False, "embedded server stopped, restarted with its file"),
        (signal.SIGKILL, False, "kill -9 of the embedded server, restarted with its file"),
        (signal.SIGKILL, True, "embedded server killed, its data deleted"),
    ],
    ids=["restart", "kill", "without its file"],
)
def test_server_ends(stage: Stage, judge: Judge, number: signal.Signals, wipe: bool, fault: str) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    pid = stage.server().pid
    run.strike()
    faults.stop_server(stage, number, wipe=wipe)
    assert run.closed() == "succeeded"
    assert stage.server().pid != pid
    judge(run, fault, seconds=run.since(["claimed", "committed", "reclaimed"]))
    if wipe:
        assert run.of("recovered")
    for id in ("a", "b"):
        stage.await_worker(id)


def test_server_hangs(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    server = stage.server()
    run.strike()
    server.send_signal(signal.SIGSTOP)
    # Nothing can be seen from outside meanwhile: longer than socket time-outs and the grace.
    never(lambda: run.since(["committed"]), 12, pause=0.2)
    server.send_signal(signal.SIGCONT)
    assert run.closed() == "succeeded"
    judge(run, "SIGSTOP of the embedded server for 12 s, SIGCONT", seconds=run.since(["claimed", "committed"]))


def test_flushall_in_mid_run(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(6)
    committed = run.results()
    run.strike()
    faults.flush(stage)
    assert run.closed() == "succeeded"
    judge(run, "FLUSHALL in mid-run", seconds=run.since(["claimed", "committed", "reclaimed"]))
    assert run.of("recovered")
    # A trial committed is never run again.
    after = {event["trial"] for event in run.of("claimed") if run.struck < moment(event)}
    assert not committed & after


def test_flushall_twice_in_a_row(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    run.strike()
    faults.flush(stage)
    run.until(lambda: run.of("recovered"))
    faults.flush(stage)
    assert run.closed() == "succeeded"
    judge(run, "FLUSHALL twice in a row", seconds=run.since(["claimed", "committed", "reclaimed"]))


def test_flushall_after_the_end(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=4)
    assert run.closed() == "succeeded"
    before = (run.job / "result.json").read_bytes()
    run.strike()
    faults.flush(stage)
    eventually(lambda: stage.post(f"evaluations/{run.id}/cancel").status_code == 409, PATIENCE, pause=0.2)
    run.until(lambda: run.of("recovered"))
    judge(run, "FLUSHALL after the end", seconds=run.since(["recovered"]))
    assert stage.api.status(run.id)["state"] == "succeeded"
    assert (run.job / "result.json").read_bytes() == before
    assert len(run.of("claimed")) == 4


def test_the_same_message_twice(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_running("a", "b", count=2)
    run.strike()
    assert faults.send_again(run) == 4
    assert faults.send_again(run) == 4
    assert run.closed() == "succeeded"
    judge(run, "each batch's message delivered three times", seconds=None)
    assert len(run.of("claimed")) == len(run.planned())
    assert len(run.of("batch_started")) == 4


def test_every_message_lost(stage: Stage, judge: Judge) -> None:
    for id in ("a", "b"):
        faults.freeze(stage, id)
    # A message would else be handed to what they asked for before.
    eventually(lambda: not faults.waits_for_messages(stage, "a", "b"), PATIENCE)
    run = stage.submit(trials=8, seconds=0.3)
    run.strike()
    with stage.db() as db:
        assert db.client.delete(*db.client.keys("worker.*")) == 2
    for id in ("a", "b"):
        faults.freeze(stage, id, signal.SIGCONT)
    assert run.closed() == "succeeded"
    judge(run, "messages lost in the queue", seconds=run.since(["batch_started"]))
