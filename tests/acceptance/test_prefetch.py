"""A dataset at a worker before the run, by real programs: Harbor reads its tasks, Docker has its images.

The worker has the controller's disk by an rsync daemon alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import pytest
from harbor_tasks import HOST
from needs import require
from platforms import Platform
from programs import command_line, free_port
from rsync_hosts import PASSWORD, missing, rsync_daemon
from waiting import eventually

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import executor
from aeo.executors.supplies import Image

BASE = "debian:bookworm"


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60).stdout


@pytest.fixture(scope="module")
def engine() -> None:
    tasks.needed_harbor()
    require(shutil.which("docker") and docker("info", "--format", "{{.ServerVersion}}").strip(), "a Docker engine")
    require(docker("image", "ls", "--quiet", BASE).strip(), f"the image {BASE}")


class Reach:
    """The way from workers to the controller's disk: an rsync daemon, always at the same place."""

    def __init__(self, platform: Platform):
        self._platform, self._port, self._stack = platform, free_port(), ExitStack()
        self.url = self.serve()

    def serve(self, options: str = "") -> str:
        """Serve with these options from now on; returns the address."""
        self.close()
        scratch = self._platform.folder / "rsyncd"
        daemon = rsync_daemon(self._platform.shared, scratch, port=self._port, options=options)
        return self._stack.enter_context(daemon).url

    def close(self) -> None:
        self._stack.close()


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    require(not missing("rsync"), missing("rsync"))
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    made = Platform(tmp_path_factory.mktemp("ahead"))
    try:
        yield made.ready()
        made.stop()
    finally:
        made.destroy()


@pytest.fixture(scope="module", autouse=True)
def reach(platform: Platform) -> Iterator[Reach]:
    made = Reach(platform)
    try:
        platform.worker("far", "--transfer-url", made.url, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        platform.api.await_worker("far", timeout=60)
        yield made
    finally:
        made.close()


def test_a_run_after_it_sends_nothing(platform: Platform, reach: Reach) -> None:
    folder = platform.folder / "set"
    for name in ("one", "two", "three"):
        tasks.passing(folder / name)
    assert platform.aeo("datasets", "add", "set", "--path", str(folder)).ends() == 0
    done = platform.aeo("datasets", "prefetch", "set", "--no-images", "--wait")
    assert done.ends(60) == 0, done.output
    assert "tasks 3 of 3" in done.output
    assert len(list((platform.folder / "far" / "tasks").glob("*/.ahead"))) == 3
    again = platform.aeo("datasets", "prefetch", "set", "--no-images", "--wait")
    assert again.ends(60) == 0, again.output
    checked = platform.aeo("datasets", "check", "set")
    assert checked.ends(60) == 0, checked.output
    assert "set: sound, 3 tasks" in checked.output
    assert "on far (online): 3 of 3" in checked.output

    # From now on no task can be fetched; evaluations' records can, and results arrive.
    reach.serve("exclude = /tasks/")
    config = {"environment": dict(HOST), "datasets": [{"path": str(folder)}]}
    id = platform.api.submit({"executor": "harbor", "name": "after", **config})
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", 90, pause=0.2)
    # That it could not be: one that is new does not arrive.
    tasks.passing(folder / "four")
    failed = platform.aeo("datasets", "prefetch", "set", "--task", "four", "--no-images", "--wait")
    assert failed.ends(60) == 1, failed.output
    shutil.rmtree(folder / "four")
    reach.serve()
    assert not list((platform.folder / "far" / "tasks").glob("*/.ahead"))

    (folder / "two" / "task.toml").write_text("[agent\n")
    (folder / "three" / "instruction.md").write_text("Do it otherwise.\n")
    checked = platform.aeo("datasets", "check", "set", "--json")
    assert checked.ends(60) == 1, checked.output
    (report,) = json.loads(checked.output)["reports"]
    # A broken task has no digest, so it differs from what it was.
    assert report["recorded"] == {"changed": ["three", "two"], "missing": [], "added": []}
    assert [item["name"] for item in report["broken"]] == ["two"]
    assert report["workers"][0]["missing"] == ["three"]


def test_it_takes_no_slot_and_waits_for_none(platform: Platform) -> None:
    """The one slot is taken for as long as the test lasts."""
    folder = platform.folder / "beside"
    for name in ("one", "two"):
        tasks.task(folder / name)
    assert platform.aeo("datasets", "add", "beside", "--path", str(folder)).ends() == 0
    id = platform.api.submit({"executor": "sleep", "name": "long", "tasks": 2, "seconds": 600})
    eventually(lambda: platform.api.status(id)["running"] == 1, 30, pause=0.1)
    done = platform.aeo("datasets", "prefetch", "beside", "--no-images", "--wait")
    assert done.ends(60) == 0, done.output
    status = platform.api.status(id)
    assert (status["running"], status["pending"]) == (1, 1)
    assert platform.aeo("cancel", id).ends() == 0
    eventually(lambda: platform.api.status(id)["state"] == "cancelled", 60, pause=0.1)


def in_docker(folder: Path, stamp: str, **more: Any) -> Path:
    """A task whose reward is right when it runs in the very image that was built ahead."""
    task = tasks.task(folder, **more)
    dockerfile = f"FROM {BASE}\nLABEL aeo-test={stamp}\nRUN date +%s%N > /stamp\nWORKDIR /app\n"
    (task / "environment" / "Dockerfile").write_text(dockerfile)
    (task / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    init: true\n")
    return task


def remove_images(stamp: str) -> None:
    for image in docker("image", "ls", "--quiet", "--filter", f"label=aeo-test={stamp}").split():
        docker("image", "rm", "--force", image)


@pytest.mark.docker
def test_images_are_built_ahead_and_one_that_cannot_be_had_is_named(engine: None, platform: Platform) -> None:
    stamp = uuid.uuid4().hex
    folder = platform.folder / "docker-set"
    built = in_docker(
        folder / "built", stamp, test="cp /stamp /logs/verifier/stamp; echo 1 > /logs/verifier/reward.txt"
    )
    nowhere = tasks.task(folder / "nowhere", toml='[environment]\ndocker_image = "registry.invalid/none:1"\n')
    (nowhere / "environment" / "Dockerfile").unlink()
    named = tasks.task(folder / "named", toml=f'[environment]\ndocker_image = "{BASE}"\n')
    (named / "environment" / "Dockerfile").unlink()
    assert built.exists()
    try:
        assert platform.aeo("datasets", "add", "docker-set", "--path", str(folder)).ends() == 0
        failed = platform.aeo("datasets", "prefetch", "docker-set", "--wait")
        assert failed.ends(100) == 1, failed.output
        assert "far: image registry.invalid/none:1: could not pull registry.invalid/none:1" in failed.output
        (row,) = platform.api.get("/api/datasets/docker-set/prefetch")["prefetch"]["workers"]
        assert (row["state"], row["tasks_done"], row["images_done"], row["images_total"]) == ("failed", 3, 2, 3)
        (name,) = docker("image", "ls", "--format", "{{.Repository}}", "--filter", f"label=aeo-test={stamp}").split()
        assert name.startswith("hb__")
        when = docker("run", "--rm", name, "cat", "/stamp").strip()

        config = {"environment": {"type": "docker"}, "tasks": [{"path": str(folder / "built")}]}
        id = platform.api.submit({"executor": "harbor", "name": "in-docker", **config})
        eventually(lambda: platform.api.status(id)["state"] == "succeeded", 100, pause=0.3)
        (seen,) = platform.job("in-docker").glob("*/verifier/stamp")
        assert seen.read_text().strip() == when
        # Harbor removes what it built for the trial, and leaves this one.
        assert docker("image", "ls", "--quiet", name).strip()
        started = time.monotonic()
        again = platform.aeo("datasets", "prefetch", "docker-set", "--task", "built", "--wait")
        assert again.ends(60) == 0, again.output
        assert docker("run", "--rm", name, "cat", "/stamp").strip() == when
        assert time.monotonic() - started < 30
    finally:
        remove_images(stamp)


@pytest.mark.docker
def test_ctrl_c_ends_a_build_and_nothing_is_broken(engine: None, platform: Platform) -> None:
    stamp = uuid.uuid4().hex
    folder = platform.folder / "slow-set"
    task = in_docker(folder / "slow", stamp)
    dockerfile = task / "environment" / "Dockerfile"
    dockerfile.write_text(dockerfile.read_text().replace("RUN date", "RUN sleep 300; date"))
    in_docker(folder / "fast", stamp)
    try:
        assert platform.aeo("datasets", "add", "slow-set", "--path", str(folder)).ends() == 0
        followed = platform.aeo("datasets", "prefetch", "slow-set", "--wait")
        eventually(lambda: "images 1 of 2" in followed.output, 60, pause=0.1)
        followed.process.send_signal(signal.SIGINT)
        assert followed.ends(20) == 130, followed.output
        assert "Stopped." in followed.output

        def stopped() -> bool:
            (row,) = platform.api.get("/api/datasets/slow-set/prefetch")["prefetch"]["workers"]
            return bool(row["state"] == "cancelled")

        eventually(stopped, 30, pause=0.1)
        worker = next(one for one in platform.programs if "far" in one.process.cmdline())
        eventually(lambda: not [child for child in worker.family() if "build" in command_line(child)], 20, pause=0.1)
        # The worker takes the next order, and what came stayed.
        again = platform.aeo("datasets", "prefetch", "slow-set", "--task", "fast", "--wait")
        assert again.ends(60) == 0, again.output
    finally:
        remove_images(stamp)


@pytest.mark.docker
def test_images_as_harbor_has_them(engine: None, tmp_path: Path) -> None:
    """Each environment of a task, sidecars too, by compose's own reading; what is broken is named."""
    stamp = uuid.uuid4().hex
    task = in_docker(tmp_path / "set" / "sides", stamp)
    (task / "environment" / "docker-compose.yaml").write_text(
        "services:\n  main:\n    environment: ['A=${SOME_NAME_OF_TEST}']\n"
        f"  db:\n    image: {BASE}\n  side:\n    build: ./side\n"
    )
    (task / "environment" / "side").mkdir()
    (task / "environment" / "side" / "Dockerfile").write_text(f"FROM {BASE}\nLABEL aeo-test={stamp}\n")
    toml = task / "task.toml"
    toml.write_text(toml.read_text() + '[environment.env]\nSOME_NAME_OF_TEST = "${SOME_NAME_OF_TEST:-given}"\n')
    separate = tasks.separate(tmp_path / "set" / "separate")
    (separate / "tests" / "Dockerfile").write_text(f"FROM {BASE}\n")
    broken = tasks.task(tmp_path / "set" / "broken")
    (broken / "environment" / "docker-compose.yaml").write_text("services: [\n")
    odd = tmp_path / "set" / "odd"
    odd.mkdir()
    (odd / "task.toml").write_text("[agent\n")
    found = executor.supplies.needed([task, separate, broken, odd])
    assert set(found.problems) == {"broken", "odd"}
    pulled = {image.name for image in found.images if not image.built}
    assert pulled == {BASE}
    built = sorted(image.name.rpartition("-")[2] for image in found.images if image.built)
    # The agent's and the verifier's of the second, both services of the first.
    assert built == ["main", "main", "main", "side"]
    side = next(image for image in found.images if image.name.endswith("-side"))
    try:
        assert not executor.supplies.is_here(side)
        executor.supplies.bring(side, threading.Event())
        assert executor.supplies.is_here(side)
        stop = threading.Event()
        stop.set()
        with pytest.raises(ExecutorFailed, match="stopped"):
            executor.supplies.bring(Image(name="registry.invalid/none:1"), stop)
    finally:
        remove_images(stamp)


def test_without_an_engine_it_is_said(monkeypatch: pytest.MonkeyPatch, platform: Platform, tmp_path: Path) -> None:
    folder = tmp_path / "engineless"
    tasks.task(folder / "one")
    blind = platform.worker(
        "blind", environment={"DOCKER_HOST": "unix:///nowhere/docker.sock", "PATH": os.environ["PATH"]}
    )
    platform.api.await_worker("blind", timeout=60)
    assert platform.aeo("datasets", "add", "engineless", "--path", str(folder)).ends() == 0
    failed = platform.aeo("datasets", "prefetch", "engineless", "--worker", "blind", "--wait")
    assert failed.ends(60) == 1, failed.output
    assert "blind: images: " in failed.output
    assert "tasks 1 of 1" in failed.output
    assert blind.terminate() == 0
    platform.programs.remove(blind)
