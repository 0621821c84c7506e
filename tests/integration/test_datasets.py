"""Datasets through the API and the command line, and how workers tell what they hold."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from downloading import Scripted
from engine import register, worker_site
from flask.testing import FlaskClient
from served import served
from waiting import eventually

from aeo import contents, datasets, users
from aeo.cli import datasets as commands
from aeo.cli import main
from aeo.config import Config
from aeo.core.model import ContentFolder, Plan, PlannedTrial
from aeo.datasets import reading
from aeo.executors import TaskInfo
from aeo.executors.harbor.datasets import HarborDatasets
from aeo.site import Site, open_site
from aeo.store import held
from aeo.users import Role
from webapp import create_app

TOKEN = "token-of-this-test"


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        monkeypatch.setattr(commands, "POLL_SECONDS", 0.02)
        yield site


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Scripted:
    """Downloads of the usual executor are a script, and what it fetched is read by nobody's rules."""
    knows = Scripted(gate=tmp_path / "gate")
    monkeypatch.setattr(HarborDatasets, "download", staticmethod(knows.download))
    monkeypatch.setattr(HarborDatasets, "tasks", staticmethod(knows.tasks))
    return knows


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    tasks = [
        {"name": name, "command": "true", "labels": {"category": category, "difficulty": difficulty}}
        for name, category, difficulty in (
            ("sort", "text", "easy"),
            ("sum", "numbers", "hard"),
            ("cut", "text", "hard"),
        )
    ]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(task) + "\n" for task in tasks))
    return folder


def aeo(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def client_of(site: Site, token: str = TOKEN) -> FlaskClient:
    client = create_app(site).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    return client


# Command line


def test_a_folder_is_added_shown_and_removed(controller: Site, mine: Path) -> None:
    assert "terminal-bench-2" in aeo("datasets").stdout
    added = aeo("datasets", "add", "mine", "--path", str(mine), "--executor", "command")
    assert "3 tasks" in added.stdout
    listed = aeo("datasets", "list").stdout
    assert "hard 2" in listed
    view = json.loads(aeo("datasets", "list", "--json").stdout)["datasets"][0]
    assert (view["tasks"], view["categories"], len(view["digest"])) == (3, {"text": 2, "numbers": 1}, 64)
    assert view["config"] == {"tasks_file": str(mine / "tasks.jsonl"), "dataset": "mine"}
    shown = aeo("datasets", "show", "mine", "--difficulty", "hard", "--sort", "category").stdout
    assert shown.index("\nsum ") < shown.index("\ncut ")
    assert "\nsort " not in shown
    limited = aeo("datasets", "show", "mine", "--limit", "1", "--descending")
    assert "1 of 3" in limited.stderr
    assert "sum" in limited.stdout
    assert "already" in aeo("datasets", "add", "mine", "--path", str(mine), "--executor", "command", code=2).stderr
    assert "removed" in aeo("datasets", "remove", "mine").stdout
    assert "no dataset 'mine'" in aeo("datasets", "show", "mine", code=2).stderr
    assert mine.is_dir()


def test_a_reference_is_added_and_nothing_is_asked(controller: Site) -> None:
    added = aeo("datasets", "add", "hello", "--reference", "org/hello@latest")
    assert "aeo datasets download hello" in added.stdout
    assert "not here yet" in aeo("datasets", "show", "hello").stdout
    assert json.loads(aeo("datasets", "remove", "hello", "--json").stdout)["removed"]["reference"] == "org/hello@latest"
    assert "--path" in aeo("datasets", "add", "hello", code=2).stderr


def test_a_download_is_followed_from_the_command_line(controller: Site, scripted: Scripted) -> None:
    started = json.loads(aeo("datasets", "download", "terminal-bench-2", "--no-wait", "--json").stdout)
    assert started["download"]["state"] == "running"
    assert "being downloaded" in aeo("datasets", "download", "terminal-bench-2", code=2).stderr
    assert eventually(lambda: "running 1/2" in aeo("datasets", "list").stdout)
    assert "cancelled" in aeo("datasets", "cancel", "terminal-bench-2").stdout
    assert "cancelled" in aeo("datasets", "show", "terminal-bench-2").stdout
    scripted.gate.touch()
    followed = aeo("datasets", "download", "terminal-bench-2")
    assert "is here: 2 tasks" in followed.stdout
    assert scripted.asked == [[], ["one"]]
    assert "done 2/2" in followed.stderr
    assert eventually(lambda: json.loads(aeo("datasets", "list", "--json").stdout)["datasets"][1]["tasks"] == 2)


def test_a_download_that_fails_says_why_and_what_to_do(controller: Site, scripted: Scripted) -> None:
    scripted.script = """echo '{"failed": {"message": "The registry is away.", "fix": "Try later."}}'"""
    failed = aeo("datasets", "download", "terminal-bench-2", code=1)
    assert "The registry is away. Try later." in failed.stderr


# API


def test_only_administrators_change_datasets(controller: Site, mine: Path) -> None:
    for role in (Role.VIEWER, Role.MEMBER):
        client = client_of(controller, users.add(controller.shared, role.value, role))
        assert client.get("/api/datasets").status_code == 200
        assert client.get("/api/datasets/terminal-bench-2").status_code == 200
        body = {"name": "mine", "path": str(mine), "executor": "command"}
        assert client.post("/api/datasets", json=body).status_code == 403
        assert client.delete("/api/datasets/terminal-bench-2").status_code == 403
        assert client.post("/api/datasets/terminal-bench-2/download").status_code == 403
        assert client.delete("/api/datasets/terminal-bench-2/download").status_code == 403
    assert list(datasets.read(controller.shared)) == ["swe-bench-verified", "terminal-bench-2"]


def test_the_api_adds_shows_and_refuses(controller: Site, mine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    client = client_of(controller)
    made = client.post("/api/datasets", json={"name": "mine", "path": str(mine), "executor": "command"})
    assert made.status_code == 201
    assert made.headers["Location"] == "/api/datasets/mine"
    assert made.json["dataset"]["dataset"]["added_by"] == "operator"
    page = client.get("/api/datasets/mine?sort=difficulty&descending=true&limit=1&search=").json
    assert [row["info"]["name"] for row in page["tasks"]] == ["cut"]
    assert page["total"] == 3
    for query in ("sort=colour", "limit=0", "odd=1"):
        assert client.get(f"/api/datasets/mine?{query}").status_code == 422
    wrong = client.post("/api/datasets", json={"name": "other", "path": "/nonexistent"})
    assert wrong.status_code == 422
    assert wrong.json["problems"][0]["field"] == "path"
    assert client.get("/api/datasets/nothing").status_code == 404
    assert client.get("/api/datasets/mine/download").json == {"download": None}
    assert client.post("/api/datasets/mine/download").status_code == 422
    assert client.delete("/api/datasets/mine/download").status_code == 404
    shutil.rmtree(mine)
    monkeypatch.setattr(reading, "LOOK_SECONDS", 0.0)
    assert "cannot be read" in client.get("/api/datasets").json["datasets"][0]["problem"]
    assert client.delete("/api/datasets/mine?files=true").status_code == 200


# Presence


def test_workers_tell_what_they_hold(site: Site, tmp_path: Path) -> None:
    worker = worker_site(site, tmp_path, "w1")
    digests = ["a" * 64, "b" * 64]
    for digest in digests:
        (site.shared.task(digest, "task")).mkdir(parents=True)
    plan = Plan(trials=(), contents=tuple(ContentFolder(digest=d, source="", name="task") for d in digests))

    def run(digest: str) -> frozenset[str]:
        contents.fetch(worker, plan, PlannedTrial(name="t", task="t", content=digest))
        return held.which(site.db, ["w1"], digests)["w1"]

    assert run(digests[0]) == {digests[0]}
    assert run(digests[1]) == set(digests)
    site.db.client.flushall()  # the store forgot everything: all is told anew with the next trial
    assert run(digests[0]) == set(digests)
    shutil.rmtree(worker.local.tasks)  # the folder was emptied by hand: so is what is known
    assert run(digests[1]) == {digests[1]}


def test_a_dataset_shows_which_worker_holds_how_much(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Scripted
) -> None:
    found = (TaskInfo(name="one", content="a" * 64), TaskInfo(name="two", content="b" * 64))
    monkeypatch.setattr(HarborDatasets, "tasks", staticmethod(lambda path: found))
    for worker in ("w1", "w2"):
        register(site, worker)
    held.replace(site.db, "w2", ["b" * 64, "c" * 64])
    datasets.add(site.shared, "mine", path=str(tmp_path))
    detail = datasets.show(site, "mine")
    assert detail.view.present == {"w2": 1}
    assert [row.workers for row in detail.tasks] == [(), ("w2",)]
    assert detail.view.config == {"datasets": [{"path": str(tmp_path)}]}
