"""A controller whose broker and file daemon are elsewhere after a restart: workers find them by themselves."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from chaos import verdict
from chaos.stage import PATIENCE, POLL, STOP, Stage
from needs import require
from programs import TOKEN, Program
from rsync_hosts import missing
from waiting import eventually

#: Seconds in which a worker is back, and what a busy machine may add.
BACK, CROWDED = 30.0, 30.0


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    made = Stage(tmp_path)
    try:
        made.start_worker("far")
        yield made.ready("far")
    finally:
        made.destroy()


def test_a_worker_is_back_after_the_brokers_folder_was_removed(stage: Stage) -> None:
    run = stage.submit(trials=10, seconds=1.0)
    eventually(lambda: len(run.of("committed")) > 2, PATIENCE, pause=0.1)
    pid, old = stage.workers["far"].process.pid, (stage.shared / "redis" / "port").read_text()
    restart_without_broker(stage)
    assert (stage.shared / "redis" / "port").read_text() != old
    began = time.monotonic()
    stage.await_worker("far")
    eventually(lambda: len(run.of("committed")) > 4, PATIENCE, pause=0.1)
    assert time.monotonic() - began < BACK + CROWDED
    assert run.closed() == "succeeded"
    assert not verdict.lost(run)
    assert not verdict.committed_twice(run)
    eventually(lambda: not list((stage.folder / "far").glob("outbox/*/*")), PATIENCE, pause=0.2)
    far = stage.workers["far"]
    assert far.process.pid == pid
    assert far.process.is_running()
    assert "the broker is at 127.0.0.1:" in far.output
    assert "Failed operation" not in far.output
    assert TOKEN not in " ".join(far.process.cmdline()) + far.output
    # It ends at once, as any.
    assert far.terminate(15) == 0


def test_one_whose_files_go_elsewhere_finds_them(stage: Stage) -> None:
    require(not missing("rsync", "unshare"), missing("rsync", "unshare"))
    require(os.getuid() == 0, "root, for a mount namespace")
    stage.retire("far")
    far(stage, "away")
    stage.await_worker("away")
    run = stage.submit(trials=10, seconds=1.0)
    eventually(lambda: len(run.of("committed")) > 2, PATIENCE, pause=0.1)
    stage.controller.terminate(PATIENCE)
    old = (stage.shared / "rsync" / "port").read_text()
    # Another port, and new secrets.
    shutil.rmtree(stage.shared / "rsync")
    stage.start_controller()
    assert run.closed() == "succeeded"
    assert (stage.shared / "rsync" / "port").read_text() != old
    assert not verdict.lost(run)
    assert not verdict.committed_twice(run)
    eventually(lambda: not list((stage.folder / "away").glob("outbox/*/*")), PATIENCE, pause=0.2)
    assert stage.workers["away"].output.count("results go to rsync://") == 1
    # One that had nothing to send finds them too, when it has something to fetch.
    stage.await_worker("away")
    stage.controller.terminate(PATIENCE)
    shutil.rmtree(stage.shared / "rsync")
    stage.start_controller()
    eventually(stage.api.healthy, PATIENCE, pause=0.1)
    assert stage.submit(trials=2, seconds=0.1).closed() == "succeeded"
    assert stage.workers["away"].output.count("results go to rsync://") == 2


def far(stage: Stage, id: str) -> None:
    """Start a worker that sees nothing of the controller's folder."""
    arguments = ["worker", "--controller-url", stage.api.url, "--worker-id", id, "--slots", "2"]
    more = ["--poll-interval", str(POLL), "--stop-seconds", str(STOP), "--local-root", str(stage.folder / id)]
    before = ["unshare", "-m", "sh", "-c", 'mount -t tmpfs none "$0" && exec "$@"', str(stage.shared)]
    stage.workers[id] = Program([*arguments, *more], stage.folder, before=before)
    stage.programs.append(stage.workers[id])


def restart_without_broker(stage: Stage) -> None:
    server = stage.server()
    stage.controller.terminate(PATIENCE)
    if server.is_running():
        server.kill()
        server.wait(10)
    shutil.rmtree(stage.shared / "redis")
    stage.start_controller()
    eventually(stage.api.healthy, PATIENCE, pause=0.1)
