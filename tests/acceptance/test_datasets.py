"""A dataset from a registry, whole: Harbor's own downloader, an evaluation of it, and what is known then."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import pytest
from harbor_tasks import HOST
from needs import require
from platforms import Platform
from waiting import eventually


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    made = Platform(tmp_path_factory.mktemp("platform"))
    try:
        made.ready()
        made.worker("one")
        made.api.await_worker("one", timeout=60)
        yield made
        made.stop()
    finally:
        made.destroy()


def git(folder: Path, *arguments: str) -> str:
    who = ("-c", "user.name=test", "-c", "user.email=test@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def registry(root: Path, *, url: str = "") -> Path:
    """A registry file with one dataset: two tasks in a git repository, one in a folder; scored by the maximum."""
    repository = root / "repository"
    tasks.task(repository / "tasks" / "good", toml='[metadata]\ncategory = "text"\ndifficulty = "easy"')
    tasks.failing(repository / "tasks" / "poor")
    tasks.passing(root / "local" / "near")
    git(repository, "init", "--quiet")
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", "Tasks")
    git(repository, "config", "uploadpack.allowAnySHA1InWant", "true")
    git(repository, "config", "uploadpack.allowFilter", "true")
    where = {"git_url": url or f"file://{repository}", "git_commit_id": git(repository, "rev-parse", "HEAD")}
    listed: list[dict[str, str]] = [{"name": name, "path": f"tasks/{name}", **where} for name in ("good", "poor")]
    listed.append({"name": "near", "path": str(root / "local" / "near")})
    dataset = {"name": "mini", "version": "1.0", "description": "", "tasks": listed, "metrics": [{"type": "max"}]}
    path = root / "registry.json"
    path.write_text(json.dumps([dataset]))
    return path


def shown(platform: Platform, name: str) -> Any:
    return platform.api.get(f"/api/datasets/{name}")


def test_a_dataset_is_downloaded_evaluated_and_known(platform: Platform, tmp_path: Path) -> None:
    source = registry(tmp_path)
    added = platform.aeo("datasets", "add", "mini", "--reference", "mini@1.0", "--registry", str(source))
    assert added.ends() == 0, added.output
    followed = platform.aeo("datasets", "download", "mini")
    assert followed.ends(60) == 0, followed.output
    assert "mini is here: 3 tasks" in followed.output

    folder = platform.shared / "datasets" / "mini"
    found = shown(platform, "mini")
    assert {path.name for path in folder.iterdir()} == {"good", "poor", "near", "dataset.json"}
    assert found["dataset"]["tasks"] == 3
    assert found["dataset"]["difficulties"] == {"easy": 1}
    assert found["dataset"]["present"] == {}
    good = next(row for row in found["tasks"] if row["info"]["name"] == "good")
    assert good["info"]["timeouts"] == {"agent": 60.0, "verifier": 60.0, "environment": 600.0}
    # What a person gets with Harbor itself is the same, to the byte.
    tasks.harbor(*("download", "mini@1.0", "--registry-path", str(source), "-o", str(tmp_path)), cwd=tmp_path)
    for name in ("good", "poor"):
        same = subprocess.run(["diff", "-r", str(tmp_path / "mini" / name), str(folder / name)], capture_output=True)
        assert same.returncode == 0, same.stdout

    checked = platform.aeo("datasets", "check", "mini")
    assert checked.ends(60) == 0, checked.output
    assert "mini: sound, 3 tasks, 3 listed by its registry, at the download" in checked.output

    config = {"agents": [{"name": "oracle"}], "environment": dict(HOST), **found["dataset"]["config"]}
    id = platform.api.submit({**config, "job_name": "of-mini"})
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", 90, pause=0.2)
    result = json.loads((platform.job("of-mini") / "result.json").read_text())
    (group,) = result["stats"]["evals"].values()
    assert group["metrics"] == [{"max": 1.0}]

    def known() -> Any:
        rows = {row["info"]["name"]: row for row in shown(platform, "mini")["tasks"]}
        assert all(row["past"] for row in rows.values())
        return rows

    rows = eventually(known, 20, pause=0.2)
    assert {name: row["past"]["pass_rate"] for name, row in rows.items()} == {"good": 1.0, "poor": 0.0, "near": 1.0}
    assert all(row["workers"] == ["one"] for row in rows.values())
    assert shown(platform, "mini")["dataset"]["present"] == {"one": 3}
    (folder / "near" / "instruction.md").write_text("Do it otherwise.\n")
    (folder / "poor").rename(folder.parent / ".poor")
    checked = platform.aeo("datasets", "check", "mini")
    assert checked.ends(60) == 1, checked.output
    for words in ("changed (since", ": near", "missing (since", ": poor", "missing (against the list): poor"):
        assert words in checked.output


def test_a_download_that_was_killed_goes_on(platform: Platform, tmp_path: Path) -> None:
    """The folder's task is there at once, the repository hangs: nobody answers at its address."""
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        source = registry(tmp_path, url=f"http://127.0.0.1:{silent.getsockname()[1]}/org/repository.git")
        added = platform.aeo("datasets", "add", "killed", "--reference", "mini", "--registry", str(source))
        assert added.ends() == 0, added.output
        assert platform.aeo("datasets", "download", "killed", "--no-wait").ends() == 0

        def one_is_there() -> Any:
            found = platform.api.get("/api/datasets/killed/download")["download"]
            assert (found["state"], found["total"], found["done"]) == ("running", 3, 1)
            return found

        eventually(one_is_there, 30, pause=0.1)
        started = platform.shared / "datasets" / ".state" / "killed" / "started.json"
        os.killpg(json.loads(started.read_text())["pid"], signal.SIGKILL)
        eventually(lambda: shown(platform, "killed")["dataset"]["download"]["state"] == "interrupted", 10, pause=0.1)
    text = source.read_text()
    (dataset,) = json.loads(text)
    for task in dataset["tasks"][:2]:
        task["git_url"] = f"file://{tmp_path / 'repository'}"
    source.write_text(json.dumps([dataset]))
    followed = platform.aeo("datasets", "download", "killed")
    assert followed.ends(60) == 0, followed.output
    assert "killed is here: 3 tasks" in followed.output


def test_a_registry_out_of_reach_is_said_with_what_to_do(platform: Platform, tmp_path: Path) -> None:
    arguments = ("--reference", "mini@1.0", "--registry", "http://127.0.0.1:1/registry.json")
    assert platform.aeo("datasets", "add", "away", *arguments).ends() == 0
    failed = platform.aeo("datasets", "download", "away")
    assert failed.ends(60) == 1
    for words in ("cannot be reached", "register its path", "harbor download mini@1.0"):
        assert words in failed.output
    unknown = platform.aeo("datasets", "add", "none", "--reference", "other@1", "--registry", str(registry(tmp_path)))
    assert unknown.ends() == 0
    failed = platform.aeo("datasets", "download", "none")
    assert failed.ends(60) == 1
    assert "Check the name and the version." in failed.output
