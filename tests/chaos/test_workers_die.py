"""Workers that are killed, frozen, told to stop: what they ran is run again by others, and counted once."""

from __future__ import annotations

import signal
from typing import Any

from chaos import faults
from chaos.conftest import Judge
from chaos.stage import CROWDED, GRACE, PATIENCE, Stage, marked
from programs import all_gone
from waiting import eventually

#: Long enough that each worker runs some when the fault strikes, and has some left.
CONFIG: dict[str, Any] = {"trials": 24, "seconds": 1.0}


def commands(stage: Stage, count: int, seconds: float) -> dict[str, Any]:
    """Commands that write down when they begin and when they end, each with a process of its own below it."""
    ledger = stage.folder / "ledger"
    ledger.unlink(missing_ok=True)
    text = f'echo "begin $AEO_TRIAL" >> {ledger}; sleep {seconds}; echo "end $AEO_TRIAL" >> {ledger}'
    return {"tasks": [{"name": f"task-{n}", "command": text, "timeout_sec": 60} for n in range(count)]}


def ended(stage: Stage) -> list[str]:
    """Trials by the ends their commands wrote down themselves."""
    lines = (stage.folder / "ledger").read_text().splitlines()
    return sorted(line.split()[1] for line in lines if line.startswith("end"))


def test_main_process_killed(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_running("a", "b", count=2)
    run.strike()
    faults.kill_main(stage, "a")
    assert run.closed() == "succeeded"
    row = judge(run, "kill -9 of a worker's main process", seconds=run.rerun())
    assert row.seconds is not None
    assert row.seconds < 2 * GRACE + CROWDED
    assert len(run.of("requeued")) == 2


def test_main_process_killed_and_started_at_once(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_running("a", "b", count=2)
    run.strike()
    faults.kill_main(stage, "a")
    stage.start_worker("a")
    assert run.closed() == "succeeded"
    row = judge(run, "kill -9 of a worker, restarted at once", seconds=run.rerun())
    assert row.seconds is not None
    assert row.seconds < 2 * GRACE + CROWDED


def test_commands_of_a_killed_worker_end_with_it(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", **commands(stage, 10, 1.05)).until_running("a", "b", count=2)
    # Between two commands there is none; the log, too, is a moment behind.
    eventually(stage.workers["a"].family, PATIENCE)
    run.strike()
    family = faults.kill_main(stage, "a")
    assert family
    eventually(lambda: all_gone(family), PATIENCE)
    assert run.closed() == "succeeded"
    judge(run, "kill -9 of a worker's main process, commands running", seconds=run.rerun())
    assert ended(stage) == sorted(run.planned())
    assert not marked("sleep 1.05")


def test_children_killed(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", **commands(stage, 10, 1.15)).until_running("a", count=2)
    run.strike()
    # Each command's shell with what it started.
    killed = stage.workers["a"].family()
    faults.kill(killed)
    assert run.closed() == "succeeded"
    twice = "what was killed has no result"
    judge(run, "kill -9 of a worker's children (commands)", seconds=run.rerun(), twice=twice)
    assert len(killed) >= 2
    assert ended(stage) == sorted(run.planned())


def test_everything_of_a_worker_killed(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", **commands(stage, 10, 1.25)).until_running("a", "b", count=2)
    run.strike()
    faults.kill_all(stage, "a")
    assert run.closed() == "succeeded"
    row = judge(run, "kill -9 of all of a worker", seconds=run.rerun())
    assert row.seconds is not None
    assert row.seconds < 2 * GRACE + CROWDED
    assert ended(stage) == sorted(run.planned())


def test_every_worker_killed_and_started_again(stage: Stage, judge: Judge) -> None:
    run = stage.submit(**CONFIG).until_running("a", "b", count=2)
    run.strike()
    for id in ("a", "b"):
        faults.kill_all(stage, id)
    for id in ("a", "b"):
        stage.start_worker(id)
    assert run.closed() == "succeeded"
    judge(run, "kill -9 of all workers, restarted", seconds=run.rerun())


def test_frozen_for_longer_than_the_grace(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=16, seconds=1.0).until_running("a", "b", count=2)
    held = run.running("a")
    run.strike()
    faults.freeze(stage, "a")
    run.until(lambda: {event["trial"] for event in run.of("requeued")} >= held - run.results())
    # Each is claimed by the other one before this one wakes.
    run.until(lambda: run.running("b") >= held - run.results() or held <= run.results())
    faults.freeze(stage, "a", signal.SIGCONT)
    assert run.closed() == "succeeded"
    row = judge(
        run,
        "SIGSTOP of a worker beyond the grace, SIGCONT",
        seconds=run.rerun(),
        twice="what is frozen looks dead; it finds its lease lost when it wakes, and the first result counts",
    )
    assert row.run_twice <= len(held)
    assert row.seconds is not None
    assert row.seconds < 2 * GRACE + CROWDED
    stage.await_worker("a")


def test_frozen_for_less_than_the_grace(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=12, seconds=1.0).until_running("a", "b", count=2)
    run.strike()
    faults.freeze(stage, "a")
    run.until(lambda: (run.since(["committed"]) or 0) > 0)
    faults.freeze(stage, "a", signal.SIGCONT)
    assert run.closed() == "succeeded"
    judge(run, "SIGSTOP of a worker for less than the grace", seconds=None)
    assert not run.of("requeued")


def test_told_to_stop(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", **commands(stage, 12, 1.35)).until_running("a", "b", count=2)
    family = stage.workers["a"].family()
    run.strike()
    assert stage.workers["a"].terminate(PATIENCE) == 0
    assert all_gone(family)
    assert run.closed() == "succeeded"
    judge(run, "SIGTERM of a worker", seconds=None, note="what runs is finished first")
    assert not run.of("requeued")
    assert ended(stage) == sorted(run.planned())


def test_told_to_stop_twice(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", **commands(stage, 10, 3.05)).until_running("a", "b", count=2)
    program = stage.workers["a"]
    family = program.family()
    run.strike()
    program.process.send_signal(signal.SIGTERM)
    eventually(lambda: "finishing" in program.output, PATIENCE)
    program.process.send_signal(signal.SIGTERM)
    assert program.ends(PATIENCE) == 0
    assert all_gone(family)
    assert run.closed() == "succeeded"
    judge(run, "SIGTERM of a worker, twice", seconds=run.rerun())
    assert len(run.of("requeued", reason="worker stopping")) == 2
    assert ended(stage) == sorted(run.planned())
