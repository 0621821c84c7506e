"""Pausing, draining and removing, from the command line through the API to the store, on a real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from engine import register, submit
from served import served
from waiting import eventually

from aeo import reconciliation
from aeo import workers as engine_workers
from aeo.cli import follow, main
from aeo.config import Config
from aeo.core.errors import Conflict, NotFound
from aeo.core.model import Claim, EvaluationState, TrialState, WorkerState
from aeo.site import Site, open_site
from aeo.store import evaluations, trials, workers
from aeo.store.evaluations import BatchState
from aeo.store.trials import Standing
from webapp import create_app

TOKEN = "token-of-this-test"


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        monkeypatch.setattr(follow, "POLL_SECONDS", 0.02)
        yield site


def aeo(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def claim(site: Site, id: str, worker: str = "w1") -> Claim | None:
    batches = [item for item in evaluations.batches(site.db, id) if item.batch.worker == worker]
    batch = next((item for item in batches if item.state is not BatchState.ENDED), batches[0]).batch
    evaluations.start_batch(site.db, batch)
    return trials.claim(site.db, batch, token=f"{batch.id}-{trials.now(site.db).timestamp()}", lease_seconds=60)


def _claim_after_repairs(site: Site, id: str) -> Claim | None:
    reconciliation.reconcile(site)
    return claim(site, id)


def test_a_paused_evaluation_starts_nothing_until_it_is_resumed(controller: Site) -> None:
    register(controller, "w1")
    id = submit(controller, {"tasks": 3, "name": "mine"}).id
    running = claim(controller, id)
    assert running
    shown = aeo("pause", "mine", "--reason", "quota used up").stdout
    assert "paused (paused by operator: quota used up)" in shown
    assert claim(controller, id) is None
    assert trials.renew(controller.db, running, lease_seconds=60) is Standing.HELD
    assert "quota used up" in aeo("status").stdout
    assert "paused (paused by operator: quota used up)" in aeo("status", id).stdout
    assert "is paused" in aeo("pause", "mine", code=2).stderr
    assert json.loads(aeo("resume", "mine", "--json").stdout)["evaluation"]["state"] == "running"
    assert claim(controller, id)
    assert "is running" in aeo("resume", "mine", code=2).stderr
    assert json.loads(aeo("pause", id, "--json").stdout)["evaluation"]["reason"] == "paused by operator"
    aeo("pause", "nobody", code=2)


def test_a_watch_of_a_paused_evaluation_goes_on_waiting(controller: Site) -> None:
    register(controller, "w1")
    id = submit(controller, {"tasks": 2, "name": "mine"}).id
    aeo("pause", id, "--reason", "lunch")
    ended: list[Any] = []
    watcher = threading.Thread(target=lambda: ended.append(CliRunner().invoke(main, ["watch", id])))
    watcher.start()
    watcher.join(0.3)
    assert watcher.is_alive()
    aeo("resume", id)
    aeo("cancel", id)
    for state in (EvaluationState.MERGING, EvaluationState.CANCELLED):
        assert evaluations.move(controller.db, id, state)
    watcher.join(120)
    assert ended[0].exit_code == 3
    assert (
        f"is paused (paused by operator: lunch). Waiting until somebody resumes it: aeo resume {id}" in ended[0].stderr
    )


def test_a_paused_or_drained_worker_claims_nothing(controller: Site) -> None:
    register(controller, "w1")
    id = submit(controller, {"tasks": 3}).id
    view = json.loads(aeo("workers", "pause", "w1", "--note", "new driver", "--json").stdout)["worker"]
    assert (view["state"], view["note"]) == ("paused", "paused by operator: new driver")
    assert claim(controller, id) is None
    assert "new driver" in aeo("workers").stdout
    assert "w1 is online" in aeo("workers", "resume", "w1").stdout
    assert workers.get(controller.db, "w1").note == ""
    assert claim(controller, id)
    assert "w1 is draining (drained by operator)" in aeo("workers", "drain", "w1").stdout
    assert claim(controller, id) is None
    for command in ("pause", "resume", "drain", "remove", "allow"):
        assert "nobody" in aeo("workers", command, "nobody", code=2).stderr


def test_a_worker_that_is_alive_and_busy_is_removed_only_by_force(controller: Site) -> None:
    register(controller, "w1")
    register(controller, "w2")
    id = submit(controller, {"tasks": 4}).id
    mine, others = claim(controller, id), claim(controller, id, "w2")
    assert mine
    assert others
    assert "alive" in aeo("workers", "remove", "w1", code=2).stderr
    assert workers.get(controller.db, "w1").state is WorkerState.ONLINE
    assert trials.renew(controller.db, mine, lease_seconds=60) is Standing.HELD

    removed = json.loads(aeo("workers", "remove", "w1", "--force", "--json").stdout)["removed"]
    assert removed == {"id": "w1", "given_back": 1, "alive": True}
    assert [item.info.id for item in workers.all(controller.db)] == ["w2"]
    assert trials.state(controller.db, id, mine.trial) is TrialState.PENDING
    assert trials.renew(controller.db, mine, lease_seconds=60) is Standing.LOST
    assert trials.renew(controller.db, others, lease_seconds=60) is Standing.HELD
    again = claim(controller, id, "w2")
    assert again
    assert (again.trial, again.attempt) == (mine.trial, 2)
    with pytest.raises(NotFound):
        engine_workers.remove(controller, "w1")


def test_a_removal_is_nobodys_fault(controller: Site) -> None:
    id = ""
    for _ in range(3):
        register(controller, "w1")
        id = id or submit(controller, {"tasks": 1}, max_requeues=0).id
        # A removal ends the worker's batches; one that comes back gets new ones.
        assert eventually(partial(_claim_after_repairs, controller, id))
        with pytest.raises(Conflict):
            engine_workers.remove(controller, "w1")
        assert engine_workers.remove(controller, "w1", force=True).given_back == 1
        engine_workers.allow(controller, "w1")
    assert evaluations.get(controller.db, id).requeues == 3


def test_an_idle_or_lost_worker_is_removed_without_force(controller: Site) -> None:
    register(controller, "w1")
    removed = aeo("workers", "remove", "w1")
    assert "given back: 0" in removed.stdout
    assert "stays out" in removed.stderr
    with pytest.raises(Conflict, match="removed by a person"):
        register(controller, "w1")
    assert "may come back" in aeo("workers", "allow", "w1").stdout
    assert "kept out" in aeo("workers", "allow", "w1", code=2).stderr
    register(controller, "w1")
    id = submit(controller, {"tasks": 1}).id
    assert claim(controller, id)
    controller.db.client.delete("aeo:w:w1:beat")
    eventually(lambda: workers.get(controller.db, "w1").state is WorkerState.LOST)
    result = aeo("workers", "remove", "w1")
    assert "given back: 1" in result.stdout
    assert "alive" not in result.stderr


def test_the_api_refuses_what_it_does_not_know(controller: Site) -> None:
    register(controller, "w1")
    client = create_app(controller).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    assert client.delete("/api/workers/w1?force=perhaps").status_code == 422
    assert client.delete("/api/workers/w1?power=1").status_code == 422
    assert client.post("/api/workers/w1/pause", json={"note": 3}).status_code == 422
    assert client.post("/api/workers/w1/pause", json={"note": "x" * 1001}).status_code == 422
    assert client.post("/api/workers/w1/pause").status_code == 422
    assert client.post("/api/workers/../drain").status_code == 422
    assert client.post("/api/evaluations/nobody/pause", json={}).status_code == 404
    assert client.delete("/api/workers/w1").json == {"removed": {"id": "w1", "given_back": 0, "alive": True}}
