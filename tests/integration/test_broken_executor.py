"""One executor that is broken on a worker takes itself out there, and not the others."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from engine import closed, register, running, submit, worker_site
from waiting import eventually

from aeo import alerts, batches, evaluations, executors, notices, redispatch, workers
from aeo.core.alerts import Kind
from aeo.core.errors import InputError, TransferFailed
from aeo.core.model import EvaluationState, WorkerState
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health
from aeo.store import workers as worker_store
from aeo.submission import Submission

COMMAND = {"executor": "command", "tasks": [{"name": "t", "command": "echo 1 > $AEO_TRIAL_DIR/reward.txt || true"}]}


def command(site: Site, name: str) -> str:
    return evaluations.submit(site, Submission(config={**COMMAND, "name": name})).evaluation.id


def broken(*_: Any, **__: Any) -> None:
    raise RuntimeError("its library is gone")


def test_three_failed_batches_pause_their_executor_alone(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    health.mark_recovered(site.db)
    monkeypatch.setattr(redispatch, "HELP_SECONDS", 0.1)
    monkeypatch.setattr(redispatch, "RESEND_SECONDS", 0.2)
    register(site, "a", slots=3)
    with running(site, tmp_path, "a"):
        with monkeypatch.context() as patch:
            patch.setattr(type(executors.load("sleep")), "open", broken)
            stuck = submit(site, {"name": "stuck", "tasks": 6}).id
            eventually(lambda: worker_store.get(site.db, "a").paused_executors, 30)
        status = worker_store.get(site.db, "a")
        assert status.state is WorkerState.ONLINE
        assert set(status.paused_executors) == {"sleep"}
        assert status.note.startswith("sleep is paused here: ")
        assert "3 batches failed in a row, the last: its library is gone" in status.note
        assert workers.view(site, "a").note == status.note
        assert [alert.kind for alert in alerts.now(site)] == [Kind.WORKER_PAUSED]
        (told,) = notices.Notifier(site, threading.Event(), {})._workers()
        assert told.state is WorkerState.PAUSED
        # What waits says why, and says what to do.
        eventually(lambda: "has paused sleep" in store.get(site.db, stuck).reason, 20)
        assert "aeo workers resume a" in store.get(site.db, stuck).reason
        assert closed(site, command(site, "other")).state is EvaluationState.SUCCEEDED
        assert set(worker_store.get(site.db, "a").paused_executors) == {"sleep"}
        workers.resume(site, "a")
        assert worker_store.get(site.db, "a").note == ""
        assert closed(site, stuck).state is EvaluationState.SUCCEEDED


def test_a_batch_of_it_is_not_started(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(site, "a")
    id = submit(site, {"name": "one", "tasks": 1}).id
    worker_store.pause_executor(site.db, "a", "sleep", "3 batches failed in a row")
    (status,) = store.batches(site.db, id)[:1]
    done = batches.run(worker_site(site, tmp_path, "a"), status.batch)
    assert done["note"] == "sleep is paused here"
    assert store.batches(site.db, id)[0].state.value == "sent"
    assert submit_fails(site) == "has paused sleep: 3 batches failed in a row"


def submit_fails(site: Site) -> str:
    with pytest.raises(InputError) as caught:
        submit(site, {"name": "two", "tasks": 1})
    (problem,) = caught.value.problems
    return problem.message.rstrip(".")


def test_a_success_between_begins_anew_and_the_machines_own_faults_pause_it_whole(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(site, "a", slots=3)
    for outcome in (True, True, False, True, True):
        count = worker_store.count_batch(site.db, "a", failed=outcome, executor="sleep")
    assert count == 2
    assert worker_store.count_batch(site.db, "a", failed=True, executor="command") == 1
    monkeypatch.setattr(batches, "_open", lambda *_: (_ for _ in ()).throw(TransferFailed("refused", permanent=True)))
    health.mark_recovered(site.db)
    monkeypatch.setattr(redispatch, "HELP_SECONDS", 0.1)
    with running(site, tmp_path, "a"):
        submit(site, {"name": "one", "tasks": 3})
        eventually(lambda: worker_store.get(site.db, "a").state is WorkerState.PAUSED, 20)
    assert "refused" in worker_store.get(site.db, "a").note
    assert worker_store.get(site.db, "a").paused_executors == {}
