"""Disks that are full, a way home that is cut, clocks that are wrong."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import PATIENCE, Stage, moment, when
from needs import require
from programs import free_port
from rsync_hosts import PASSWORD, missing, rsync_daemon
from waiting import eventually, never

FAKETIME = next(iter(sorted(Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"))), None)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system of its own."""
    require(os.getuid() == 0 and faults.can_mount(tmp_path / "probe"), "root, to mount a small disk")
    with faults.small_disk(tmp_path / "disk", 24) as made:
        yield made


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    """What is put in here is ended after the test."""
    made: list[Stage] = []
    yield made
    for stage in made:
        stage.destroy()


def test_disk_of_the_jobs_full(disk: Path, tmp_path: Path, stages: list[Stage], judge: Judge) -> None:
    stage = Stage(tmp_path, jobs=disk / "jobs")
    stages.append(stage)
    stage.ready("a", "b")
    run = stage.submit(trials=16, seconds=0.5).until_done(2)
    run.strike()
    filler = faults.fill(disk)
    # Results arrive and cannot be committed: they wait, and nothing ends.
    inbox = stage.shared / "inbox" / run.id
    eventually(lambda: len(list(inbox.glob("*.json"))) >= 4, PATIENCE, pause=0.1)
    assert not run.of("closed")
    filler.unlink()
    assert run.closed() == "succeeded"
    judge(run, "disk of the jobs full, then freed", seconds=run.since(["committed"]), note="seconds include the fault")
    assert len(run.of("claimed")) == 16


def test_disk_of_the_controller_full(disk: Path, tmp_path: Path, stages: list[Stage], judge: Judge) -> None:
    stage = Stage(tmp_path, shared=disk / "shared")
    stages.append(stage)
    stage.ready("a", "b")
    run = stage.submit(trials=16, seconds=0.5).until_done(2)
    run.strike()
    filler = faults.fill(disk)
    # Results cannot be pushed, events not be written, the embedded server refuses writes.
    eventually(lambda: stage.outbox("a") and stage.outbox("b"), PATIENCE, pause=0.1)
    done = len(run.results())
    never(lambda: len(run.results()) > done + 4, 6, pause=0.2)
    filler.unlink()
    assert run.closed() == "succeeded"
    judge(
        run,
        "disk of the controller full, then freed",
        seconds=run.since(["committed"]),
        note="seconds include the fault",
    )


def test_disk_of_a_worker_full(disk: Path, tmp_path: Path, stages: list[Stage], judge: Judge) -> None:
    stage = Stage(tmp_path)
    stages.append(stage)
    (tmp_path / "a").symlink_to(disk)
    stage.ready("a", "b")
    run = stage.submit(trials=24, seconds=0.7).until_running("a", "b", count=2)
    run.strike()
    filler = faults.fill(disk)
    # The worker says so, and takes no more; the other one does its share.
    eventually(lambda: "disk nearly full" in stage.api.worker("a")["note"], PATIENCE, pause=0.1)
    claimed = len(run.of("claimed", worker="a"))
    assert run.closed() == "succeeded"
    assert len(run.of("claimed", worker="a")) == claimed
    judge(run, "disk of a worker full", seconds=run.since(["claimed"], worker="b"))
    filler.unlink()
    eventually(lambda: not stage.api.worker("a")["note"], PATIENCE, pause=0.1)
    again = stage.submit(trials=8, seconds=0.5)
    assert again.closed() == "succeeded"
    assert again.of("claimed", worker="a")
    judge(again, "disk of a worker full, then freed", seconds=None)


def test_rsync_daemon_down_for_a_while(tmp_path: Path, stages: list[Stage], judge: Judge) -> None:
    require(not missing("rsync"), missing("rsync"))
    stage = Stage(tmp_path)
    stages.append(stage)
    port = free_port()
    with ExitStack() as first:
        daemon = first.enter_context(rsync_daemon(stage.shared, tmp_path / "rsyncd", port=port))
        for id in ("a", "b"):
            stage.start_worker(id, "--transfer-url", daemon.url, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        stage.ready("a", "b")
        run = stage.submit(trials=16, seconds=0.7).until_done(3)
        run.strike()
    eventually(lambda: len(stage.outbox("a")) + len(stage.outbox("b")) >= 4, PATIENCE)
    # Longer than the lease: who waits to push keeps it.
    never(lambda: run.of("requeued"), 5, pause=0.2)
    shutil.rmtree(tmp_path / "rsyncd")
    with rsync_daemon(stage.shared, tmp_path / "rsyncd", port=port):
        assert run.closed() == "succeeded"
        judge(run, "rsync daemon down, then back", seconds=run.since(["pushed"]), note="seconds include the fault")
        assert len(run.of("claimed")) == 16


@pytest.mark.parametrize("minutes", [10, -10])
def test_clock_of_a_worker_is_wrong(stages: list[Stage], tmp_path: Path, judge: Judge, minutes: int) -> None:
    require(FAKETIME, "faketime")
    stage = Stage(tmp_path)
    stages.append(stage)
    wrong = {"LD_PRELOAD": str(FAKETIME), "FAKETIME": f"{minutes:+}m", "FAKETIME_DONT_FAKE_MONOTONIC": "1"}
    stage.start_worker("a", environment={**wrong, "DONT_FAKE_MONOTONIC": "1"})
    stage.ready("a", "b")
    run = stage.submit(trials=16, seconds=0.7)
    assert run.closed() == "succeeded"
    judge(run, f"clock of a worker {minutes:+} min", seconds=None)
    assert len(run.of("claimed")) == 16
    assert not run.of("requeued")
    # Its clock was wrong indeed: it wrote the times of its own runs.
    for event in run.of("claimed", worker="a"):
        began = json.loads((run.job / event["trial"] / "result.json").read_text())["started_at"]
        assert abs(when(began) - moment(event) - 60 * minutes) < 30
