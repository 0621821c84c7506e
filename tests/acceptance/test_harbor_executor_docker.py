"""The Harbor executor in Harbor's docker environment."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import harbor_tasks as tasks
import pytest
from needs import require
from waiting import eventually

from aeo.core.model import Outcome
from aeo.executors.harbor import executor

pytestmark = pytest.mark.docker
IMAGE = "debian:bookworm"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.fixture(scope="module", autouse=True)
def _engine() -> None:
    tasks.needed_harbor()
    require(shutil.which("docker") and docker("info", "--format", "{{.ServerVersion}}").strip(), "a Docker engine")
    require(docker("image", "ls", "--quiet", IMAGE).strip(), f"the image {IMAGE}")


def in_docker(task: Path) -> Path:
    (task / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
    (task / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    init: true\n")
    return task


def things(trial: str) -> list[str]:
    """Containers, networks and images of a trial."""
    name = trial.lower()
    shown = docker("ps", "--all", "--format", "{{.Names}}") + docker("network", "ls", "--format", "{{.Name}}")
    return [line for line in (shown + docker("image", "ls", "--format", "{{.Repository}}")).split() if name in line]


def test_a_trial_in_docker_and_what_a_killed_driver_leaves(tmp_path: Path) -> None:
    task = in_docker(tasks.task(tmp_path / "set" / "either", test="cp /app/reward /logs/verifier/reward.txt"))
    (task / "solution" / "solve.sh").write_text("echo 1 > /app/reward\n")
    hanging = in_docker(tasks.task(tmp_path / "set" / "hanging", solve="echo on > /logs/agent/on; sleep 3600"))
    assert hanging.exists()
    run = tasks.start(tmp_path, {"datasets": [{"path": "set"}], "environment": {"type": "docker"}})
    stranger = docker(
        "run", "--detach", "--label", "com.docker.compose.project=other__env", IMAGE, "sleep", "600"
    ).strip()
    try:
        trial = run.of_task("hanging")
        with run.session() as session:
            thread, phases, errors = tasks.run_in_thread(session, trial, run.context(trial))
            eventually(lambda: "agent" in phases, 60)
            assert len(things(trial.name)) > 1
            assert session._driver is not None
            os.killpg(session._driver.pid, signal.SIGKILL)
            thread.join(60)
            assert errors
            assert things(trial.name) == []
            passing = run.of_task("either")
            context = run.context(passing)
            session.run(passing, context, lambda phase: None)
            assert executor.summarise(passing, context.trial_dir).outcome is Outcome.SCORED
        assert things(passing.name) == []
        assert docker("ps", "--quiet", "--no-trunc", "--filter", f"id={stranger}").strip() == stranger
    finally:
        docker("rm", "--force", stranger)
