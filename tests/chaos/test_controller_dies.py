"""The controller, or a part of it, dies and comes back: running trials go on, commits wait."""

from __future__ import annotations

from typing import Any

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import PATIENCE, Stage
from programs import TOKEN, Program
from waiting import eventually

CONFIG: dict[str, Any] = {"trials": 24, "seconds": 1.0}


@pytest.mark.parametrize("role", ["control", "web"])
def test_a_child_killed(stage: Stage, judge: Judge, role: str) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    child = stage.role(role)
    run.strike()
    faults.kill([child, *child.children(recursive=True)])
    if role == "web":
        eventually(lambda: stage.role("web").pid != child.pid and stage.api.healthy(), PATIENCE, pause=0.1)
    assert run.closed() == "succeeded"
    judge(run, f"kill -9 of the {role} process", seconds=run.since(["committed"]))
    assert stage.role(role).pid != child.pid
    assert not run.of("requeued")


@pytest.mark.parametrize("server", [False, True], ids=["alone", "with its server"])
def test_controller_killed_and_started_again(stage: Stage, judge: Judge, server: bool) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    run.strike()
    faults.kill_controller(stage, server=server)
    stage.start_controller()
    assert run.closed() == "succeeded"
    what = "the controller and the embedded server" if server else "the whole controller"
    judge(run, f"kill -9 of {what}, restarted", seconds=run.since(["committed"]))
    for id in ("a", "b"):
        stage.await_worker(id)


def test_main_process_of_the_controller_killed(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    family = [process for process in stage.controller.family() if process.pid != stage.server().pid]
    run.strike()
    stage.controller.process.kill()
    stage.controller.process.wait()
    # Its children see that it is gone and end by themselves; nobody is left to hold its port.
    eventually(lambda: not [process for process in family if process.is_running()], PATIENCE)
    stage.start_controller()
    assert run.closed() == "succeeded"
    judge(run, "kill -9 of the controller's main process", seconds=run.since(["committed"]))


def test_controller_stopped_for_a_while(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=12, seconds=1.0).until_done(2)
    assert stage.controller.terminate(PATIENCE) == 0
    run.strike()
    # The trials that run end meanwhile, and wait on their workers.
    eventually(lambda: stage.outbox("a") and stage.outbox("b"), PATIENCE)
    stage.start_controller()
    assert run.closed() == "succeeded"
    judge(run, "controller and its server stopped, started later", seconds=run.since(["committed"]))
    assert not run.of("requeued")


def test_two_controllers_on_one_root(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(2)
    first, server = stage.controller, stage.server().pid
    run.strike()
    arguments = ["controller", "--port", "0", "--shared-root", str(stage.shared)]
    second = Program(arguments, stage.folder)
    assert second.ends(PATIENCE) == 2
    assert "another controller runs on" in second.output
    assert first.process.poll() is None
    assert run.closed() == "succeeded"
    judge(run, "a second controller on one root", seconds=None, note="it is refused")
    assert stage.server().pid == server


def test_token_revoked(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_done(4)
    run.strike()
    faults.kill_controller(stage)
    stage.start_controller("another-token-0123456789")
    try:
        note = "its runs go on until it registers anew, which is refused"
        assert run.closed() == "succeeded"
        judge(run, "a worker's token revoked while it runs", seconds=run.since(["committed"]), note=note)
        assert stage.workers["a"].terminate(PATIENCE) == 0
        again = stage.start_worker("a")
        assert again.ends(PATIENCE) == 2
        assert "refuses the token" in again.output
    finally:
        faults.kill_controller(stage)
        stage.start_controller(TOKEN)
