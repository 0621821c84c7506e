"""Workers with credentials of their own: whole evaluations over several, through wipes, restarts and a revocation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from chaos import verdict
from chaos.stage import PATIENCE, Run, Stage
from programs import TOKEN, Program, command_line
from waiting import eventually, never

from aeo.store import access, limits

#: Seconds for which a revoked worker is listened to.
QUIET_SECONDS = 8.0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    made = Stage(tmp_path_factory.mktemp("credentials"))
    try:
        for id in ("a", "b", "c"):
            made.start_worker(id)
        yield made.ready("a", "b", "c")
    finally:
        made.destroy()


def test_two_evaluations_take_turns_with_needs_limits_requeues_and_help(stage: Stage) -> None:
    with stage.db() as db:
        limits.set(db, "p", trials=3)
    whole = stage.submit(trials=30, seconds=[0.1, 0.4], memory_mb=16, cpus=0.1, model="p/one")
    second = stage.submit(trials=20, seconds=0.2, memory_mb=64, fail={"task-3": ["die", "ok"], "task-5": ["die", "ok"]})
    for run in (whole, second):
        finished(run)
    assert {event["worker"] for event in whole.of("claimed")} == {"a", "b", "c"}
    with stage.db() as db:
        assert access.present(db) == {"a", "b", "c"}
        users = {client["user"] for client in db.client.client_list()}
        assert users == {"default", "worker-a", "worker-b", "worker-c"}
        # Nothing that a worker needs was refused.
        assert [entry for entry in db.client.acl_log() if entry["reason"] != "auth"] == []


def test_a_server_that_was_emptied_costs_nobody_their_rights(stage: Stage) -> None:
    run = stage.submit(trials=30, seconds=0.5)
    eventually(lambda: len(run.of("committed")) > 2, PATIENCE, pause=0.1)
    with stage.db() as db:
        db.client.flushall()
    finished(run)


def test_a_server_that_starts_again_empty_is_told_of_the_workers(stage: Stage) -> None:
    stage.ready("a", "b", "c")
    run = stage.submit(trials=30, seconds=0.5)
    eventually(lambda: len(run.of("committed")) > 2, PATIENCE, pause=0.1)
    stage.server().kill()
    shutil.rmtree(stage.shared / "redis" / "appendonlydir", ignore_errors=True)
    finished(run)
    with stage.db() as db:
        assert access.present(db) == {"a", "b", "c"}


def test_one_that_is_stopped_gives_back_what_others_run(stage: Stage) -> None:
    run = stage.submit(trials=24, seconds=0.5)
    eventually(lambda: [e for e in run.of("claimed") if e["worker"] == "c"], PATIENCE, pause=0.1)
    stage.workers["c"].process.terminate()
    stage.workers["c"].process.terminate()
    assert stage.workers["c"].ends(PATIENCE) == 0
    finished(run)
    stage.ready("a", "b", "c")


def test_revoking_one_in_the_middle_leaves_its_trials_to_the_others(stage: Stage) -> None:
    run = stage.submit(trials=40, seconds=0.5)
    eventually(lambda: [e for e in run.of("claimed") if e["worker"] == "c"], PATIENCE, pause=0.1)
    asked = Program(["workers", "revoke", "c"], stage.folder, {"AEO_URL": stage.api.url})
    assert asked.ends(PATIENCE) == 0, asked.output
    assert "c is revoked" in asked.output
    with stage.db() as db:
        assert access.present(db) == {"a", "b"}
        assert "worker-c" not in {client["user"] for client in db.client.client_list()}
    finished(run)
    assert {event["worker"] for event in run.of("committed")} >= {"a", "b"}
    # Neither it nor a new process is let in, until somebody says so. Then only a new one can be.
    eventually(lambda: "were revoked" in stage.workers["c"].output, PATIENCE, pause=0.2)
    said = len(stage.workers["c"].output)
    # It does not fill the log meanwhile, and ends when it is told to.
    never(lambda: len(stage.workers["c"].output) - said >= 1000, QUIET_SECONDS, pause=0.2)
    assert "Traceback" not in stage.workers["c"].output
    assert "Retrying" not in stage.workers["c"].output
    assert stage.workers["c"].terminate(15) == 0
    again = stage.start_worker("c")
    assert again.ends(PATIENCE) == 2
    assert "aeo workers allow c" in again.output
    assert stage.post("workers/c/allow").is_success
    stage.start_worker("c")
    stage.await_worker("c")


def test_no_password_is_told_where_others_read(stage: Stage) -> None:
    shared = (stage.shared / "redis" / "password").read_text()
    for program in stage.workers.values():
        assert shared not in program.output
        assert TOKEN not in program.output
        for process in (program.process, *program.family()):
            line = " ".join(command_line(process))
            assert shared not in line
            assert "redis://" not in line
    assert shared not in (stage.shared / "credentials.json").read_text()


def finished(run: Run) -> None:
    """It ended well, each trial committed once."""
    assert run.closed() == "succeeded"
    status = run.stage.api.status(run.id)
    assert status["outcomes"]["scored"] == status["total"]
    assert not verdict.lost(run)
    assert not verdict.committed_twice(run)
