"""Trivial Harbor trials in the host environment: AEO with four slots beside ``harbor run -n 4`` of the same."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import harbor_tasks
from benchmarks import others, ours
from benchmarks.figures import Line, Series, in_turn, ratios
from benchmarks.rows.makespan import AEO
from benchmarks.sizes import Found, Size
from benchmarks.workloads import EVEN

from aeo.executors.harbor.python import harbor_python, plugin_path

TITLE = "Harbor: trivial trials in the host environment, 4 slots"
HARBOR = "harbor run -n 4"
#: Seconds one run may take.
LIMIT = 600


def measure(size: Size) -> Found:
    """Wall time: of ``harbor run`` from its start to its end, of AEO from submit to the merged job, workers up."""
    walls = Series(unit="s")
    what = f"{size.harbor_tasks} trials"
    # Made by uv where the machine has none; our workers are told of it too.
    python = harbor_python(progress=lambda text: print(text, flush=True))
    environment = {"AEO_HARBOR_PYTHON": str(python.path)}
    os.environ.update(environment)
    with others.scratch() as folder:
        dataset = folder / "trivial"
        for number in range(size.harbor_tasks):
            harbor_tasks.passing(dataset / f"task-{number:02}")
        config = {
            "agents": [{"name": "oracle"}],
            "environment": dict(harbor_tasks.HOST),
            "datasets": [{"path": str(dataset)}],
            "quiet": True,
        }
        with ours.pool(EVEN, environment=environment) as pool:
            for repetition in range(size.repeats):
                for system in in_turn((AEO, HARBOR), repetition):
                    run = _ours(pool, config) if system == AEO else _theirs(python.path, config, folder, repetition)
                    walls.add(what, system, run)
    compared = ratios(walls.of(what, AEO), walls.of(what, HARBOR))
    return Found(
        lines=(
            Line(what=what, system=f"AEO / {HARBOR}", unit="ratio", values=compared, at_most=1.05),
            walls.line(what, AEO),
            walls.line(what, HARBOR),
        ),
        facts={"trials": size.harbor_tasks, "slots": 4, "harbor": python.version},
    )


def _ours(pool: ours.Pool, config: dict[str, Any]) -> float:
    called, id = pool.submit({"executor": "harbor", **config})
    pool.wait(id, limit=LIMIT)
    return pool.moments(id, called).whole


def _theirs(python: Path, config: dict[str, Any], folder: Path, repetition: int) -> float:
    path = folder / "job.json"
    path.write_text(json.dumps({**config, "n_concurrent_trials": 4}))
    name = f"job-{repetition}"
    command = [str(python), "-m", "harbor.cli.main", "run", "-c", str(path), "-o", str(folder / "jobs")]
    environment = {**os.environ, "PYTHONPATH": str(plugin_path()), "HARBOR_TELEMETRY": "0"}
    begun = time.time()
    answer = subprocess.run(
        [*command, "--job-name", name, "-n", "4", "-y"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT,
    )
    ended = time.time()
    stats = json.loads((folder / "jobs" / name / "result.json").read_text())["stats"] if not answer.returncode else {}
    if stats.get("n_completed_trials") != len(list(Path(config["datasets"][0]["path"]).iterdir())):
        raise RuntimeError(f"harbor run ended with {answer.returncode}: {answer.stdout[-1000:]} {stats}")
    return ended - begun
