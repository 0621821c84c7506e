"""Whether a merged job is what Harbor would have made of the same results on one machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import harbor_tasks as tasks
import viewer


def check_equal(ours: Path, single: Path, scratch: Path) -> None:
    """Stats, metrics, pass@k, and all that Harbor's viewer shows of the job and of each trial."""
    first, second = (json.loads((job / "result.json").read_text()) for job in (ours, single))
    compared = tasks.comparable(first, tasks.tasks_of(ours))
    assert compared == tasks.comparable(second, tasks.tasks_of(single))
    assert any(group["pass_at_k"] for group in compared["stats"]["evals"].values())
    assert any(group["metrics"] for group in compared["stats"]["evals"].values())
    here, there = viewer.shown(ours, scratch / "ours.log"), viewer.shown(single, scratch / "single.log")
    assert here.keys() == there.keys()
    for page in here:
        assert here[page] == there[page], page


def check_resume(job: Path, task: str, scratch: Path) -> None:
    """Resuming runs nothing; without one trial it runs exactly that, and the numbers stay."""
    before = json.loads((job / "result.json").read_text())
    names = tasks.tasks_of(job)
    written = {path: path.stat().st_mtime_ns for path in job.glob("*/result.json")}
    tasks.harbor("job", "resume", "-p", str(job), cwd=scratch)
    assert {path: path.stat().st_mtime_ns for path in job.glob("*/result.json")} == written
    assert tasks.comparable(json.loads((job / "result.json").read_text()), {}) == tasks.comparable(before, {})

    gone = next(name for name, of in sorted(names.items()) if of == task)
    shutil.rmtree(job / gone)
    tasks.harbor("job", "resume", "-p", str(job), cwd=scratch)
    now = tasks.tasks_of(job)
    assert [now[name] for name in set(now) - set(names)] == [task]
    for path, moment in written.items():
        assert path.parent.name == gone or path.stat().st_mtime_ns == moment
    after = json.loads((job / "result.json").read_text())
    assert tasks.comparable(after, now) == tasks.comparable(before, names)
