"""Harbor's own processes die in the middle of a trial: nothing of it remains, and the trial is run again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import psutil
import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import CROWDED, GRACE, PATIENCE, Run, Stage, marked
from harbor_tasks import HOST
from needs import require
from programs import all_gone
from waiting import eventually

#: What the agents of this file do; no other process on this machine sleeps so long.
SLEEP = "sleep 4.13"


@pytest.fixture(autouse=True)
def _harbor() -> Iterator[None]:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    yield
    eventually(lambda: not marked(SLEEP), PATIENCE)


def submit(stage: Stage, folder: Path) -> Run:
    """Four trials, and wait until an agent is at work on each worker."""
    tasks.task(folder / "set" / "slow", solve=f"{SLEEP}; touch done.txt", test=VERDICT)
    run = stage.submit("harbor", **config(folder))
    eventually(lambda: agents(stage, "a") and agents(stage, "b"), PATIENCE, pause=0.1)
    return run


def config(folder: Path) -> dict[str, Any]:
    return {"n_attempts": 4, "environment": dict(HOST), "datasets": [{"path": str(folder / "set")}]}


VERDICT = "test -f done.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"


def agents(stage: Stage, worker: str) -> list[psutil.Process]:
    """The agents' commands that run below a worker."""
    ours = {process.pid for process in stage.workers[worker].family()}
    return [process for process in marked(SLEEP) if process.pid in ours and process.name() == "sleep"]


def check_scored(run: Run) -> None:
    rows = [event["row"]["summary"] for event in run.of("committed")]
    assert [row["rewards"] for row in rows] == [{"reward": 1.0}] * 4


def servers_of(stage: Stage, worker: str) -> list[psutil.Process]:
    """The process that has Harbor loaded for a worker; it is a list of one."""
    found = stage.workers[worker].process.children()
    assert len(found) == 1
    return found


def drivers_of(stage: Stage, worker: str) -> list[psutil.Process]:
    """A worker's drivers, which were forked from that one."""
    found = [driver for server in servers_of(stage, worker) for driver in server.children()]
    assert found
    return found


def test_what_drivers_are_forked_from_is_stuck(stage: Stage, tmp_path: Path, judge: Judge) -> None:
    run = submit(stage, tmp_path)
    run.strike()
    (stuck,), drivers = servers_of(stage, "a"), drivers_of(stage, "a")
    stuck.suspend()
    faults.kill(drivers)
    assert run.closed() == "succeeded"
    judge(run, "SIGSTOP of Harbor's fork server, kill -9 of the driver", seconds=run.rerun())
    check_scored(run)
    # The other worker may have run all there was; now this one needs drivers.
    assert stage.submit("harbor", **config(tmp_path)).closed() == "succeeded"
    eventually(lambda: all_gone([stuck]), PATIENCE)
    assert f"(pid {stuck.pid}) has not answered in " in stage.workers["a"].output


@pytest.mark.parametrize("victims", [drivers_of, servers_of], ids=["drivers", "what they were forked from"])
def test_driver_killed(
    stage: Stage, tmp_path: Path, judge: Judge, victims: Callable[[Stage, str], list[psutil.Process]]
) -> None:
    run = submit(stage, tmp_path)
    run.strike()
    drivers = victims(stage, "a")
    below = [process for driver in drivers for process in driver.children(recursive=True)]
    faults.kill(drivers)
    assert run.closed() == "succeeded"
    what = "driver" if victims is drivers_of else "fork server"
    judge(run, f"kill -9 of Harbor's {what}", seconds=run.rerun())
    assert all_gone(below)
    assert run.of("requeued")
    check_scored(run)


def test_everything_below_the_driver_killed(stage: Stage, tmp_path: Path, judge: Judge) -> None:
    run = submit(stage, tmp_path)
    run.strike()
    drivers = drivers_of(stage, "a")
    below = [process for driver in drivers for process in driver.children(recursive=True)]
    assert below
    faults.kill(below)
    assert run.closed() == "succeeded"
    judge(run, "kill -9 of Harbor's children in mid-trial", seconds=run.rerun())
    check_scored(run)


@pytest.mark.parametrize("everything", [False, True], ids=["main", "everything"])
def test_worker_killed(stage: Stage, tmp_path: Path, judge: Judge, everything: bool) -> None:
    run = submit(stage, tmp_path)
    run.strike()
    if everything:
        faults.kill_all(stage, "a")
    else:
        family = faults.kill_main(stage, "a")
        # What the main process started sees that it is gone, or is swept when it is started again.
        stage.start_worker("a")
        eventually(lambda: all_gone(family), PATIENCE)
    assert run.closed() == "succeeded"
    what = "all of a worker" if everything else "a worker's main process, restarted,"
    row = judge(run, f"kill -9 of {what} with Harbor running", seconds=run.since(["requeued"]))
    assert row.seconds is not None
    assert row.seconds < 2 * GRACE + CROWDED
    check_scored(run)
