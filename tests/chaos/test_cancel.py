"""Cancelled in every state, and trials that do not want to end: each ends within bounds, and the next starts clean."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from typing import Any

from chaos import faults
from chaos.conftest import Judge
from chaos.stage import CROWDED, PATIENCE, STOP, Run, Stage, marked, order
from waiting import eventually

#: What the product promises: a cancel reaches a running trial within this, and then it gets its time to stop.
REACH = 5.0
#: Ignores what it is asked, and takes a whole processor.
WEDGED = "trap '' TERM INT HUP; while :; do :; done"


def cancel(run: Run, status: int = 200) -> None:
    """Ask for it, and look at the answer."""
    answer = run.stage.post(f"evaluations/{run.id}/cancel")
    assert answer.status_code == status, answer.text


def check_cancelled(run: Run, judge: Judge, fault: str, *, seconds: float | None = None) -> None:
    """It ended as cancelled; nothing of it began after the cancel."""
    assert run.closed() == "cancelled"
    judge(run, fault, seconds=run.since(["closed"]) if seconds is None else seconds)
    cancelled = order(run.of("moved", state="cancelling")[0])
    assert not [event for event in run.of("claimed") if order(event) > cancelled]
    result = json.loads((run.job / "result.json").read_text())
    assert result["finished_at"]
    # A run that was stopped has a folder; a trial that never ran has none.
    assert {event["trial"] for event in run.of("claimed")} == run.results()


def test_before_anything_ran(stage: Stage, judge: Judge) -> None:
    first = stage.submit(trials=4, seconds=3.0).until_running("a", "b", count=2)
    run = stage.submit(trials=6, seconds=1.0)
    run.strike()
    cancel(run)
    check_cancelled(run, judge, "cancelled before anything ran")
    assert not run.results()
    assert first.closed() == "succeeded"


def test_while_running(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=12, seconds=60.0).until_running("a", "b", count=2)
    run.strike()
    cancel(run)
    check_cancelled(run, judge, "cancelled while running")
    assert (run.since(["pushed"], worker="a") or 99) < REACH + STOP + CROWDED
    assert len(run.results()) == 4


def test_while_paused(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=12, seconds=2.0).until_running("a", "b", count=2)
    assert stage.post(f"evaluations/{run.id}/pause", reason="").status_code == 200
    run.until_done(4)
    run.strike()
    cancel(run)
    check_cancelled(run, judge, "cancelled while paused")
    assert len(run.results()) == 4


def test_twice(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", tasks=wedged(8)).until_running("a", "b", count=2)
    run.strike()
    cancel(run)
    cancel(run)
    check_cancelled(run, judge, "cancelled twice")


def test_while_merging_and_after_the_end(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=6, seconds=0.5).until_done(2)
    # What lies in its way makes the merge fail, and be tried again and again.
    path = run.job / "result.json"

    def blocked() -> bool:
        with suppress(OSError):
            path.unlink(missing_ok=True)
            (path / "in the way").mkdir(parents=True)
        return path.is_dir()

    eventually(blocked, PATIENCE, pause=0)
    run.until(lambda: run.of("moved", state="merging"))
    run.strike()
    cancel(run, 409)
    (path / "in the way").rmdir()
    path.rmdir()
    assert run.closed() == "succeeded"
    cancel(run, 409)
    judge(run, "cancelled while merging, and after the end", seconds=run.since(["closed"]), note="it is refused")


def test_as_its_worker_dies(stage: Stage, judge: Judge) -> None:
    run = stage.submit(trials=8, seconds=60.0).until_running("a", "b", count=2)
    run.strike()
    faults.kill_all(stage, "a")
    cancel(run)
    assert run.closed() == "cancelled"
    judge(run, "cancelled as its worker is killed", seconds=run.since(["closed"]))
    assert len(run.results()) == 2


def wedged(count: int, **fields: object) -> list[dict[str, Any]]:
    return [{"name": f"wedged-{n}", "command": WEDGED, "timeout_sec": 600, **fields} for n in range(count)]


def check_next_is_clean(stage: Stage) -> None:
    """What comes next runs as if nothing had been."""
    assert not marked(WEDGED)
    tasks = [{"name": f"next-{n}", "command": "ls -A | wc -l", "expect": {"output": "0"}} for n in range(4)]
    run = stage.submit("command", tasks=tasks)
    assert run.closed() == "succeeded"
    rows = [event["row"]["summary"] for event in run.of("committed")]
    assert [row["rewards"] for row in rows] == [{"reward": 1.0}] * 4
    stage.check_clean()


def test_wedged_trials_ended_by_cancel(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", tasks=wedged(4)).until_running("a", "b", count=2)
    eventually(lambda: len(marked(WEDGED)) == 4, PATIENCE)
    run.strike()
    cancel(run)
    eventually(lambda: not marked(WEDGED), PATIENCE)
    gone = time.time() - run.struck
    check_cancelled(run, judge, "trials that ignore SIGTERM at 100 % cpu, cancelled", seconds=gone)
    assert gone < REACH + STOP + CROWDED
    check_next_is_clean(stage)


def test_wedged_trials_ended_by_their_own_time_out(stage: Stage, judge: Judge) -> None:
    run = stage.submit("command", tasks=wedged(2, timeout_sec=1))
    run.until(lambda: run.of("claimed"))
    run.strike()
    assert run.closed() == "succeeded"
    note = "an agent's time-out is its result"
    judge(run, "trials that ignore SIGTERM, past their time-out", seconds=run.since(["pushed"]), note=note)
    assert len(run.of("claimed")) == 2
    check_next_is_clean(stage)


def test_hard_deadline(stage: Stage, judge: Judge) -> None:
    # Few, so that no worker is paused for failing too often.
    run = stage.submit(trials=2, seconds=600.0, deadline=1.0, max_requeues=1)
    run.until(lambda: run.of("claimed"))
    run.strike()
    assert run.closed() == "failed"
    note = "run again as often as allowed, then an infrastructure error"
    judge(run, "trials past the platform's hard deadline", seconds=run.since(["requeued"]), note=note)
    assert len(run.of("requeued", reason="hard deadline")) == 2
    assert len(run.of("claimed")) == 4
    errors = {event["row"]["summary"]["error_type"] for event in run.of("committed")}
    assert errors == {"HardDeadlineExceeded"}
    check_next_is_clean(stage)
