"""A worker killed while its trials run in containers, beside another worker on the same engine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import harbor_tasks as tasks
import pytest
from chaos import faults
from chaos.conftest import Judge
from chaos.stage import PATIENCE, Run, Stage
from needs import require
from waiting import eventually

from aeo.executors.harbor.leftovers import is_project_of

IMAGE = "debian:bookworm"
PROJECT = "com.docker.compose.project"
KINDS = {"container": ("ps", "--all"), "network": ("network", "ls"), "volume": ("volume", "ls")}
COMPOSE = """services:
  main:
    init: true
    volumes: [scratch:/scratch]
    networks: [default, side]
networks: {side: {}}
volumes: {scratch: {}}
"""

pytestmark = [pytest.mark.docker, pytest.mark.timeout(240)]


def docker(*arguments: str) -> str:
    answer = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout if answer.returncode == 0 else ""


def of_trials(kind: str, trials: Iterable[str]) -> set[str]:
    """What compose made for these trials, by id or name."""
    shown = "Name" if kind == "volume" else "ID"
    lines = docker(*KINDS[kind], "--format", f'{{{{.{shown}}}}} {{{{.Label "{PROJECT}"}}}}').splitlines()
    found = [line.partition(" ") for line in lines]
    return {name for name, _, project in found if any(is_project_of(project, trial) for trial in trials)}


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Stage]:
    require(shutil.which("docker"), "the docker command")
    require(docker("info"), "a Docker engine")
    require(docker("image", "inspect", IMAGE), f"the image {IMAGE}")
    tasks.needed_harbor()
    stage = Stage(tmp_path)
    try:
        yield stage.ready("a", "b")
    finally:
        stage.destroy()
        planned = [json.loads(line)["name"] for path in stage.shared.rglob("trials.jsonl") for line in path.open()]
        for kind, removal in (("container", ("rm", "--force", "--volumes")), ("network", ()), ("volume", ())):
            for name in of_trials(kind, planned):
                docker(*(removal or (kind, "rm")), name)


def up(run: Run, trials: set[str]) -> bool:
    """Whether each of these trials has a container that runs."""
    return all(of_trials("container", {trial}) for trial in trials)


def test_worker_killed_in_mid_trial(platform: Stage, judge: Judge) -> None:
    folder = tasks.task(
        platform.folder / "set" / "contained",
        solve="sleep 6; touch /app/done /scratch/done",
        test="(test -f /app/done && echo 1 || echo 0) > /logs/verifier/reward.txt",
    )
    (folder / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    (folder / "environment" / "docker-compose.yaml").write_text(COMPOSE)
    datasets = [{"path": str(folder.parent)}]
    run = platform.submit("harbor", n_attempts=8, environment={"type": "docker"}, datasets=datasets)
    run.until_running("a", "b", count=2)
    held, others = run.running("a"), run.running("b")
    run.until(lambda: up(run, held | others))
    left = {kind: of_trials(kind, held) for kind in KINDS}
    kept = {kind: of_trials(kind, others) for kind in KINDS}
    assert all(left.values())
    assert all(kept.values())
    run.strike()
    faults.kill_all(platform, "a")
    # The engine runs on: what was started is an orphan now.
    assert left["container"] <= of_trials("container", held)
    platform.start_worker("a")
    # Its heartbeat of before is still about, so what it sweeps at its start is waited for.
    for kind, names in left.items():
        eventually(lambda kind=kind, names=names: not names & of_trials(kind, held), PATIENCE, pause=0.5)
    # The other's trials run in the same containers as before, or have ended.
    for kind, names in kept.items():
        going = others & run.running("b")
        assert of_trials(kind, going) <= names, kind
    assert run.closed(180) == "succeeded"
    judge(run, "kill -9 of a worker with containers (Docker)", seconds=run.rerun())
    assert {event["trial"] for event in run.of("requeued")} <= held
    for trial in others:
        assert len(run.of("claimed", trial=trial)) == 1
        (committed,) = run.of("committed", trial=trial)
        assert committed["worker"] == "b"
    for kind in KINDS:
        eventually(lambda kind=kind: not of_trials(kind, run.planned()), PATIENCE, pause=0.5)
