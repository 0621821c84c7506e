"""The main job, whole: real controller, real workers, real Harbor; the merged job equals a job of one machine."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import pytest
import yaml
from harbor_tasks import HOST
from merged_jobs import check_equal, check_resume
from needs import require
from platforms import Platform
from waiting import eventually

WORKERS = {"one": 1, "two": 2, "three": 1}
IMAGE = "debian:bookworm"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    tasks.needed_harbor()
    made = Platform(tmp_path_factory.mktemp("platform"))
    try:
        made.ready()
        for id, slots in WORKERS.items():
            made.worker(id, "--slots", str(slots))
        for id in WORKERS:
            made.api.await_worker(id, timeout=60)
        yield made
        made.stop()
    finally:
        made.destroy()


def run_both(platform: Platform, name: str, config: dict[str, Any]) -> tuple[Path, Path]:
    """Submit a configuration, and give the same to ``harbor run``; returns both job folders."""
    config = {**config, "quiet": True}
    path = platform.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(config))
    submitted = platform.aeo("submit", str(path), "--name", name, "--wait", "--per-worker-concurrency", "all")
    code = submitted.ends(240)
    single = platform.folder / "single"
    single.mkdir(exist_ok=True)
    options = ("-o", str(single), "--job-name", name, "-y")
    tasks.harbor("run", "-c", str(path), *options, cwd=platform.folder)
    assert code == 0, submitted.output
    return platform.job(name), single / name


def test_in_the_host_environment(platform: Platform, tmp_path: Path) -> None:
    require(tasks.namespaces_work(), "user namespaces")
    # pass@k is only for datasets of one binary reward.
    for write in (tasks.passing, tasks.failing):
        write(platform.folder / "binary" / write.__name__)
    for write in (tasks.several, tasks.unrewarded, tasks.two_steps):
        write(platform.folder / "various" / write.__name__.replace("_", "-"))
    config = {
        "n_attempts": 2,
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "environment": dict(HOST),
        "datasets": [{"path": str(platform.folder / name)} for name in ("binary", "various")],
    }
    ours, single = run_both(platform, "host", config)
    assert len(platform.check_once_each("host")) > 1
    check_equal(ours, single, tmp_path)
    check_resume(ours, "passing", tmp_path)


@pytest.mark.docker
def test_in_the_docker_environment(platform: Platform, tmp_path: Path) -> None:
    require(shutil.which("docker"), "the docker command")
    require(docker_answers("info"), "a Docker engine")
    require(docker_answers("image", "inspect", IMAGE), f"the image {IMAGE}")
    for name, verdict in {"failing": "echo 0", "passing": "test -f /app/done && echo 1 || echo 0"}.items():
        folder = platform.folder / "contained" / name
        tasks.task(folder, solve="touch /app/done", test=f"({verdict}) > /logs/verifier/reward.txt")
        (folder / "environment" / "Dockerfile").write_text(f"FROM {IMAGE}\nWORKDIR /app\n")
        (folder / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    init: true\n")
    config = {
        "n_attempts": 2,
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "environment": {"type": "docker"},
        "datasets": [{"path": str(platform.folder / "contained")}],
    }
    ours, single = run_both(platform, "contained", config)
    assert len(platform.check_once_each("contained")) > 1
    check_equal(ours, single, tmp_path)
    check_resume(ours, "failing", tmp_path)


def docker_answers(*arguments: str) -> bool:
    return subprocess.run(["docker", *arguments], capture_output=True, timeout=60, check=False).returncode == 0


def test_a_thousand_trials_over_three_workers(platform: Platform) -> None:
    config = {"executor": "sleep", "name": "thousand", "trials": 1000, "per_worker_concurrency": "all"}
    id = platform.api.submit(config)
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", 110, pause=0.2)
    status = platform.api.status(id)
    assert (status["done"], status["outcomes"]["scored"]) == (1000, 1000)
    assert len(platform.check_once_each("thousand")) > 1
    result = json.loads((platform.job("thousand") / "result.json").read_text())
    assert result["stats"]["n_completed_trials"] == result["n_total_trials"] == 1000
