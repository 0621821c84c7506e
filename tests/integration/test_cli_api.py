"""The command line through the real API and engine, on a real server; no worker process, its part is played here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from served import served

from aeo.cli import follow, main
from aeo.config import Config
from aeo.core.model import (
    Capacity,
    EvaluationState,
    Heartbeat,
    Outcome,
    TrialRow,
    TrialSummary,
    WorkerInfo,
)
from aeo.site import Site, open_site
from aeo.store import evaluations, trials, workers

TOKEN = "token-of-this-test"


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        monkeypatch.setattr(follow, "POLL_SECONDS", 0.02)
        yield site


def aeo(*args: str, code: int = 0, **kwargs: Any) -> Any:
    result = CliRunner().invoke(main, args, **kwargs)
    assert result.exit_code == code, result.output
    return result


def add_worker(site: Site) -> None:
    info = WorkerInfo(
        id="w1",
        display_name="W 1",
        host="here",
        capacity=Capacity(slots=2, cpus=4, memory_mb=4096),
        boot="b",
        instance="i",
        executors={"sleep": ""},
    )
    workers.register(site.db, info)
    beat = Heartbeat(boot="b", at=datetime.now(timezone.utc), busy=0, cpu_percent=5.0, memory_percent=50.0)
    workers.beat(site.db, "w1", beat, ttl_seconds=60)


def test_an_evaluation_from_submission_to_cancellation(controller: Site) -> None:
    add_worker(controller)
    assert "w1" in aeo("workers").stdout
    aeo("workers", "weight", "w1", "3")
    assert "3 (set)" in aeo("workers").stdout
    aeo("workers", "weight", "w1", "auto")
    assert "2 (auto)" in aeo("workers").stdout

    config = "executor: sleep\ntasks: 3\nagent: sleeper\nname: mine\n"
    made = json.loads(aeo("submit", "-", "--per-worker-concurrency", "all", "--json", input=config).stdout)
    id = made["evaluation"]["id"]
    assert "mine" in aeo("submit", "-", input=config, code=2).stderr
    assert "0 of 3 scored" in aeo("status").stdout

    batch = evaluations.batches(controller.db, id)[0].batch
    evaluations.start_batch(controller.db, batch)
    claim = trials.claim(controller.db, batch, token="t", lease_seconds=60)
    assert claim is not None
    shown = aeo("status", "mine").stdout
    assert "1 running" in shown
    assert claim.trial in shown

    start = datetime.now(timezone.utc)
    summary = TrialSummary(
        trial=claim.trial,
        task="task-1",
        outcome=Outcome.SCORED,
        rewards={"reward": 0.5},
        started_at=start,
        finished_at=start + timedelta(seconds=3),
        labels={"agent": "sleeper"},
    )
    trials.commit(
        controller.db,
        id,
        TrialRow(summary=summary, worker="w1", attempt=1, committed_at=datetime.now(timezone.utc)),
        "t",
    )
    shown = aeo("status", id).stdout
    assert any(line.split()[:6] == ["sleeper", "sleep", "0.5", "1", "of", "3"] for line in shown.splitlines()), shown

    assert "3/3 done (scored 1, cancelled 2)" in aeo("cancel", "mine").stdout
    assert evaluations.move(controller.db, id, EvaluationState.MERGING)
    assert evaluations.move(controller.db, id, EvaluationState.CANCELLED, "cancelled by a person")
    result = aeo("watch", "mine", code=3)
    assert "mine cancelled" in result.stdout
    assert "coverage 1 of 3 scored (33 %)" in result.stdout
    assert any(claim.trial in line and "3.0" in line for line in result.stdout.splitlines())
    assert json.loads(aeo("watch", id, "--json", code=3).stdout)["status"]["state"] == "cancelled"
    assert "cancelled" in aeo("cancel", "mine", code=2).stderr


def test_refusals_of_the_real_controller(controller: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    config = "executor: sleep\ntasks: 1\n"
    assert "worker" in aeo("submit", "-", input=config, code=2).stderr
    add_worker(controller)
    for text in ("executor: [", "", "executor: nothing\n", config + "nonsense: 1\n", config + "priority: high\n"):
        result = aeo("submit", "-", "--json", input=text, code=2)
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
    assert aeo("status", "nobody", code=2).stderr.startswith("Error: ")
    assert aeo("workers", "weight", "nobody", "1", code=2).stderr.startswith("Error: ")
    assert json.loads(aeo("status", "--json").stdout) == {"evaluations": [], "total": 0}
    monkeypatch.setenv("AEO_TOKEN", "wrong")
    assert "AEO_TOKEN" in aeo("status", code=2).stderr
