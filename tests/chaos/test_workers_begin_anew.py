"""A worker killed and started at once in the same root, under leases and a grace that nobody waits for."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import CROWDED, PATIENCE, Run, Stage
from needs import require
from programs import free_port
from rsync_hosts import PASSWORD, missing, rsync_daemon
from waiting import eventually

#: Seconds of a lease and of the grace, as they are by default, and in which what was killed runs again.
LEASE, SOON = 60.0, 8.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path, lease=LEASE, grace=LEASE)
    try:
        yield made
    finally:
        made.destroy()


def held_up(stage: Stage) -> dict[str, Any]:
    """Commands that write down each begin, and wait to be let go."""
    text = f'echo "$AEO_TRIAL" >> {stage.folder}/ledger; until test -e {stage.folder}/go; do sleep 0.05; done'
    return {"tasks": [{"name": f"task-{n}", "command": text, "timeout_sec": 300} for n in range(2)]}


def began(stage: Stage) -> list[str]:
    """Trials by the begins that their commands wrote down."""
    ledger = stage.folder / "ledger"
    return ledger.read_text().split() if ledger.exists() else []


def each_committed_once(run: Run) -> bool:
    committed = [event["trial"] for event in run.of("committed")]
    return sorted(committed) == sorted(run.planned())


@pytest.mark.parametrize("all_of_it", [True, False], ids=["all", "main"])
def test_what_it_ran_runs_again_at_once(stage: Stage, judge: Judge, all_of_it: bool) -> None:
    run = stage.ready("a").submit("command", **held_up(stage))
    eventually(lambda: len(began(stage)) == 2, PATIENCE)
    run.strike()
    (faults.kill_all if all_of_it else faults.kill_main)(stage, "a")
    stage.start_worker("a")
    eventually(lambda: len(began(stage)) == 4, PATIENCE)
    assert stage.api.worker("a")["busy"] == 2
    (stage.folder / "go").touch()
    assert run.closed() == "succeeded"
    seconds = run.rerun()
    judge(run, f"kill -9 of {'all' if all_of_it else 'the main process'} of a worker, begun anew", seconds=seconds)
    assert seconds is not None
    assert seconds < SOON + CROWDED < LEASE
    assert sorted(began(stage)) == sorted(2 * run.planned())
    assert each_committed_once(run)


def test_what_it_had_finished_is_sent_and_not_run_again(stage: Stage, judge: Judge) -> None:
    require(not missing("rsync"), missing("rsync"))
    port, rsyncd = free_port(), stage.folder / "rsyncd"
    eventually(stage.api.healthy, PATIENCE, pause=0.1)
    with ExitStack() as first:
        daemon = first.enter_context(rsync_daemon(stage.shared, rsyncd, port=port))
        stage.start_worker("a", "--transfer-url", daemon.url, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        stage.ready("a")
        run = stage.submit("command", **held_up(stage))
        eventually(lambda: len(began(stage)) == 2, PATIENCE)
    (stage.folder / "go").touch()
    eventually(lambda: len(stage.outbox("a")) == 2, PATIENCE)
    run.strike()
    faults.kill_all(stage, "a")
    shutil.rmtree(rsyncd)
    with rsync_daemon(stage.shared, rsyncd, port=port):
        stage.start_worker("a")
        assert run.closed() == "succeeded"
        judge(run, "kill -9 of a worker with finished runs, begun anew", seconds=run.since(["pushed"]))
    assert len(began(stage)) == len(run.of("claimed")) == 2
    assert not run.of("requeued")
    assert each_committed_once(run)
