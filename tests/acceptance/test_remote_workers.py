"""Workers that reach the controller's disk only by ssh and by an rsync daemon, as on other machines."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import harbor_tasks as tasks
import pytest
from harbor_tasks import HOST
from needs import require
from platforms import Platform
from rsync_hosts import PASSWORD, missing, rsync_daemon, ssh_server
from waiting import eventually


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    require(not missing("rsync", "ssh", "sshd"), missing("rsync", "ssh", "sshd"))
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    folder = tmp_path_factory.mktemp("remote")
    made = Platform(folder)
    try:
        made.ready()
        with ExitStack() as hosts:
            daemon = hosts.enter_context(rsync_daemon(made.shared, folder / "rsyncd"))
            shell = hosts.enter_context(ssh_server(folder / "sshd"))
            path = f"{shell.programs}{os.pathsep}{os.environ['PATH']}"
            made.worker("daemon", "--transfer-url", daemon.url, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
            made.worker("shell", "--transfer-url", shell.url(made.shared), environment={"PATH": path})
            for id in ("daemon", "shell"):
                made.api.await_worker(id, timeout=60)
            yield made
            made.stop()
    finally:
        made.destroy()


def test_tasks_go_out_and_results_come_home(platform: Platform) -> None:
    for write in (tasks.passing, tasks.two_steps):
        write(platform.folder / "set" / write.__name__.replace("_", "-"))
    config = {"n_attempts": 4, "environment": dict(HOST), "datasets": [{"path": str(platform.folder / "set")}]}
    id = platform.api.submit({"executor": "harbor", "name": "far", **config})
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", 90, pause=0.2)
    assert platform.check_once_each("far") == {"daemon", "shell"}
    assert len(tasks.tasks_of(platform.job("far"))) == 8
    for worker in ("daemon", "shell"):
        root: Path = platform.folder / worker
        assert list(root.glob("tasks/*/*/task.toml"))
        # What the controller has committed is no longer kept here, nor is anything of a batch.
        eventually(lambda root=root: not list(root.glob("outbox/*/*")), 30)
        assert not list(root.glob("batches/*"))


def test_a_worker_with_a_wrong_password_says_so_and_ends(platform: Platform) -> None:
    url = next(p for p in platform.programs if "daemon" in p.process.cmdline()).process.cmdline()
    address = url[url.index("--transfer-url") + 1]
    wrong = platform.worker("wrong", "--transfer-url", address, environment={"AEO_TRANSFER_PASSWORD": "not-it"})
    assert wrong.ends() == 2
    assert "--transfer-url" in wrong.output
    assert "not-it" not in wrong.output
    platform.programs.remove(wrong)
