"""An executor whose session never returns: its slot is lost until the worker ends, the trial is not."""

from __future__ import annotations

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import Stage


@pytest.mark.parametrize("way", ["cancel", "deadline"])
def test_a_session_that_never_returns(stage: Stage, judge: Judge, way: str) -> None:
    deadline = 3.0 if way == "deadline" else 300.0
    run = stage.submit(tasks=2, fail={"task-1": ["hang"]}, seconds=0.2, deadline=deadline).until_done(1)
    run.strike()
    if way == "cancel":
        stage.post(f"evaluations/{run.id}/cancel").raise_for_status()
    assert run.closed() == ("cancelled" if way == "cancel" else "succeeded")
    judge(
        run,
        f"an executor that never returns, {way}",
        seconds=run.since(["requeued"]),
        twice="its thread cannot be ended: the first run sits in its slot until its worker is killed",
    )
    assert len(run.of("claimed")) == (2 if way == "cancel" else 3)
    for id in ("a", "b"):
        faults.kill_all(stage, id)
