"""A trial of the real Harbor, watched while it runs: its logs come from where Harbor writes them."""

from __future__ import annotations

from pathlib import Path

import harbor_tasks as tasks
import pytest
from engine import closed, register, running
from needs import require
from waiting import eventually

from aeo import artifacts, evaluations, executors
from aeo.artifacts import windows
from aeo.core.errors import NotFound
from aeo.core.model import Outcome
from aeo.executors import views
from aeo.site import Site
from aeo.store import watched
from aeo.submission import Submission


@pytest.fixture(autouse=True)
def _harbor() -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")


def test_what_the_agent_writes_is_seen_while_it_runs(site: Site, tmp_path: Path) -> None:
    executor = executors.load("harbor")
    register(site, "a", executors={"harbor": executor.version()})
    task = tasks.talking(tmp_path / "set" / "talks")
    config = {"tasks": [{"path": str(task)}], "environment": dict(tasks.HOST)}
    request = Submission(config={"executor": "harbor", "job_name": "live", **config})
    with running(site, tmp_path, "a"):
        evaluation = evaluations.submit(site, request).evaluation
        (trial,) = (trial.name for trial in evaluation.plan.trials)
        watched.watch(site.db, evaluation.id, trial, seconds=120)
        logs: list[str] = []

        def seen() -> bool:
            place = artifacts.find(site, evaluation.id, trial)
            if place is None or not place.live:
                return False
            logs[:] = views.of(executor, place.listing().names).logs
            try:
                return "line 2\n" in windows.before(place, "agent/oracle.txt").text
            except NotFound:
                return False

        eventually(seen, 60, pause=0.2)
        assert logs[0] == "agent/oracle.txt"
        assert "trial.log" in logs
        tasks.wake()
        status = closed(site, evaluation.id, 60)
    assert status.outcomes[Outcome.SCORED] == 1
    place = artifacts.find(site, evaluation.id, trial)
    assert place is not None
    assert not place.live
    assert windows.before(place, "agent/oracle.txt").text.endswith("last\n")
    found = views.of(executor, place.listing().names)
    assert found.parts[0].verifier
