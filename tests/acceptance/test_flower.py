"""Flower as `aeo flower` starts it: sees workers and queues, changes nothing, and does not disturb."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from platforms import Platform
from programs import TOKEN, Program, free_port
from waiting import eventually


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    """A controller with its embedded broker, and two workers."""
    made = Platform(tmp_path_factory.mktemp("flower"))
    try:
        made.ready()
        for id in ("a", "b"):
            made.worker(id)
        for id in ("a", "b"):
            made.api.await_worker(id)
        yield made
    finally:
        made.destroy()


@pytest.fixture(scope="module")
def flower(platform: Platform) -> Iterator[httpx.Client]:
    """A client of a running Flower, signed in."""
    port = free_port()
    # It finds broker and token in the shared root, as a person beside the controller starts it.
    environment = {"AEO_SHARED_ROOT": str(platform.shared), "AEO_AUTH_TOKEN": ""}
    program = Program(["flower", "--port", str(port)], platform.folder, environment)
    url = f"http://127.0.0.1:{port}"
    try:
        with httpx.Client(base_url=url, auth=("aeo", TOKEN), trust_env=False, timeout=60) as client:
            eventually(lambda: answers(client, program), 30, pause=0.2)
            yield client
        assert program.terminate() == 0
        password = (platform.shared / "redis" / "password").read_text()
        assert password not in program.output
        assert TOKEN not in program.output
    finally:
        program.destroy()


def answers(client: httpx.Client, program: Program) -> bool:
    assert program.process.poll() is None, program.output
    try:
        return client.get("/healthcheck").is_success
    except httpx.HTTPError:
        return False


def get(client: httpx.Client, path: str) -> Any:
    answer = client.get(path)
    answer.raise_for_status()
    return answer.json()


def test_it_sees_the_workers_and_the_queue_of_each(flower: httpx.Client) -> None:
    def look() -> bool:
        seen = get(flower, "/api/workers?refresh=1")
        queues = {name.partition("@")[0]: [q["name"] for q in seen[name].get("active_queues", [])] for name in seen}
        assert queues == {"a": ["worker.a"], "b": ["worker.b"], "control": ["control"]}
        return True

    assert eventually(look, 30, pause=0.2)
    lengths = {item["name"]: item["messages"] for item in get(flower, "/api/queues/length")["active_queues"]}
    assert lengths == {"worker.a": 0, "worker.b": 0, "control": 0}


def test_it_sees_the_messages_of_a_run_and_does_not_disturb_it(platform: Platform, flower: httpx.Client) -> None:
    id = platform.api.submit({"executor": "sleep", "name": "seen", "trials": 20, "per_worker_concurrency": "all"})
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", 60, pause=0.2)
    assert platform.api.status(id)["outcomes"]["scored"] == 20
    platform.check_once_each("seen")
    eventually(lambda: "aeo.run_batch" in {task["name"] for task in get(flower, "/api/tasks").values()}, 20, pause=0.2)


def test_it_needs_the_token_and_shows_no_password(platform: Platform, flower: httpx.Client) -> None:
    for path in ("/", "/workers", "/broker", "/tasks", "/api/workers", "/api/tasks", "/api/queues/length"):
        assert httpx.get(f"{flower.base_url}{path}", trust_env=False).status_code == 401
    password = (platform.shared / "redis" / "password").read_text()
    pages = ["/workers", "/broker", "/api/workers?refresh=1", "/api/queues/length"]
    pages += [f"/worker/{name}" for name in get(flower, "/api/workers")]
    for path in pages:
        answer = flower.get(path)
        assert answer.is_success, path
        assert password not in answer.text
        assert TOKEN not in answer.text


def test_it_changes_nothing(platform: Platform, flower: httpx.Client) -> None:
    name = next(name for name in get(flower, "/api/workers?refresh=1") if name.startswith("a@"))
    for path in (f"/api/worker/shutdown/{name}", f"/api/worker/queue/cancel-consumer/{name}?queue=worker.a"):
        assert flower.post(path).status_code == 403
    assert platform.api.worker("a")["state"] == "online"


def test_no_argument_shows_a_secret(platform: Platform, flower: httpx.Client) -> None:
    password = (platform.shared / "redis" / "password").read_text()
    shown = [" ".join(process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"])]
    assert not [line for line in shown if password in line]
    # Other tests of this machine have the same token.
    ours = [line for line in shown if " flower --port " in line]
    assert ours
    assert not [line for line in ours if TOKEN in line]


def test_without_a_token_it_does_not_start(tmp_path: Path) -> None:
    environment = {"AEO_AUTH_TOKEN": "", "AEO_SHARED_ROOT": str(tmp_path), "AEO_BROKER_URL": "redis://127.0.0.1:1/0"}
    program = Program(["flower"], tmp_path, environment)
    assert program.ends() == 2
    assert "token" in program.output
