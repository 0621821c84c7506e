"""Workers that see nothing of the controller's folder: files travel through its own rsync daemon, whatever dies."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from chaos import verdict
from chaos.stage import LEASE, PATIENCE, POLL, STOP, Run, Stage
from needs import require
from programs import TOKEN, Program, command_line
from rsync_hosts import missing
from waiting import eventually

from aeo.layout import Shared
from aeo.rsyncd import daemon, modules
from aeo.store import access

#: Becomes the worker, where that folder is empty.
_ELSEWHERE = 'mount -t tmpfs none "$0" && exec "$@"'


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require(not missing("rsync", "unshare"), missing("rsync", "unshare"))
    require(os.getuid() == 0, "root, for a mount namespace")
    made = Stage(tmp_path_factory.mktemp("rsyncd"))
    try:
        made.ready()
        for id in ("a", "b"):
            far(made, id)
        yield made.ready("a", "b")
    finally:
        made.destroy()


def far(stage: Stage, id: str) -> Program:
    """A worker on a machine of its own, as far as files go."""
    arguments = ["worker", "--controller-url", stage.api.url, "--worker-id", id, "--slots", "2"]
    more = ["--poll-interval", str(POLL), "--stop-seconds", str(STOP), "--local-root", str(stage.folder / id)]
    before = ["unshare", "-m", "sh", "-c", _ELSEWHERE, str(stage.shared)]
    stage.workers[id] = Program([*arguments, *more], stage.folder, before=before)
    stage.programs.append(stage.workers[id])
    return stage.workers[id]


def shared(stage: Stage) -> Shared:
    return Shared(stage.shared, stage.jobs)


def listening(stage: Stage) -> list[int]:
    """The daemons; a connection's process has another parent than the control process."""
    ours = {process.pid for process in daemon.running(shared(stage))}
    with suppress(psutil.NoSuchProcess):
        return [child.pid for child in stage.role("control").children() if child.pid in ours]
    return []


def finished(run: Run) -> None:
    """It ended well over both, each trial committed once."""
    assert run.closed() == "succeeded"
    status = run.stage.api.status(run.id)
    assert status["outcomes"]["scored"] == status["total"]
    assert not verdict.lost(run)
    assert not verdict.committed_twice(run)
    assert {event["worker"] for event in run.of("committed")} == {"a", "b"}


def test_nothing_but_the_daemon_brings_an_evaluation_home(stage: Stage) -> None:
    run = stage.submit(trials=16, seconds=0.3)
    finished(run)
    log = (stage.shared / "rsync" / "daemon.log").read_text()
    for id in ("a", "b"):
        assert f"rsync on aeo.out.{id}/evaluations/{run.id}" in log
        assert f"rsync to aeo.in.{id}/" in log
    # A minute after the end it may do that no more; of what it may now, the files say the same as the book.
    assert f"/{run.id}/**" in (stage.shared / "rsync" / "write.a").read_text()


def test_a_daemon_that_is_killed_in_the_middle_costs_nothing(stage: Stage) -> None:
    run = stage.submit(trials=30, seconds=0.5).until_done(4)
    (old,) = listening(stage)
    os.kill(old, 9)
    eventually(lambda: len(listening(stage)) == 1 and listening(stage) != [old], 20)
    finished(run)


def test_a_control_process_that_is_killed_leaves_no_daemon_and_gets_one(stage: Stage) -> None:
    run = stage.submit(trials=30, seconds=0.5).until_done(4)
    control, (old,) = stage.role("control"), listening(stage)
    control.kill()

    def is_new() -> bool:
        return stage.role("control").pid != control.pid and len(listening(stage)) == 1

    eventually(is_new, LEASE + 30)
    assert listening(stage) != [old]
    eventually(lambda: old not in [process.pid for process in daemon.running(shared(stage))], 10)
    finished(run)


def test_who_is_revoked_gets_nothing_any_more(stage: Stage) -> None:
    known = shared(stage)
    secret = modules.issued(known)["b"]
    run = stage.submit(trials=24, seconds=0.5).until_running("a", "b")
    assert listed(known, "b", secret).returncode == 0
    assert "token" not in listed(known, "b", secret).stdout
    assert stage.post("workers/b/revoke").is_success
    for way in ("aeo.out.b", "aeo.in.b", "aeo.out.a", "aeo.in.a"):
        done = listed(known, "b", secret, way)
        assert done.returncode == 5, done
    assert run.closed() == "succeeded"
    assert not verdict.lost(run)
    assert not verdict.committed_twice(run)
    with stage.db() as db:
        assert access.present(db) == {"a"}


def listed(shared: Shared, id: str, secret: str, module: str = "") -> subprocess.CompletedProcess[str]:
    url = f"rsync://worker-{id}@127.0.0.1:{modules.port(shared)}/{module or 'aeo.out.' + id}/"
    environment = {**os.environ, "RSYNC_PASSWORD": secret}
    command = ["rsync", "-r", "--list-only", "--timeout=20", url]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_no_secret_is_told_where_others_read_and_the_end_leaves_nothing(stage: Stage) -> None:
    known = shared(stage)
    for secret in modules.issued(known).values():
        for program in stage.programs:
            assert secret not in program.output
            for process in (program.process, *program.family()):
                assert secret not in " ".join(command_line(process))
        for path in (stage.shared / "credentials.json", stage.shared / "rsync" / "daemon.log"):
            assert secret not in path.read_text()
    assert TOKEN not in Path(stage.shared / "rsync" / "rsyncd.conf").read_text()
    stage.workers["a"].process.terminate()
    stage.workers["a"].ends(PATIENCE)
    stage.controller.process.terminate()
    assert stage.controller.ends(PATIENCE) == 0
    assert daemon.running(known) == []
    assert modules.is_free(modules.port(known))
