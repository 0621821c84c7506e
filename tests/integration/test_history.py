"""What ran before is remembered for the next evaluation, also after the store was wiped."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine import closed, register, running, submit
from waiting import eventually

from aeo.core.estimate import Run
from aeo.site import Site
from aeo.store import history


def test_what_ran_before_outlives_the_store(site: Site, tmp_path: Path) -> None:
    register(site, "a")
    with running(site, tmp_path, "a"):
        config = {"tasks": 3, "attempts": 2, "seconds": [0.01, 0.05, 0.1], "estimate": 60}
        closed(site, submit(site, {"name": "before", **config}).id)
        tasks = [f"sleep/task-{number}" for number in (1, 2, 3)]
        before = history.runs(site.db, "sleep", tasks)
        assert {task: len(runs) for task, runs in before.items()} == dict.fromkeys(tasks, 2)
        assert {(run.agent, run.model, run.planned) for runs in before.values() for run in runs} == {
            ("sleeper", "", 60.0)
        }
        assert eventually(lambda: history.is_whole(site.db), 10)
        site.db.client.flushall()
        register(site, "a")
        assert eventually(lambda: history.is_whole(site.db), 30)
        again = history.runs(site.db, "sleep", tasks)
        assert {task: _rounded(runs) for task, runs in again.items()} == {
            task: _rounded(runs) for task, runs in before.items()
        }
        assert len(history.meant(site.db, "sleep", ["sleep"])["sleep"]) == 6


def _rounded(runs: list[Run]) -> list[Run]:
    # A folder does not say who ran it.
    return sorted((replace(run, worker="") for run in runs), key=lambda run: run.seconds)
