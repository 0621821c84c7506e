"""Controller, workers and all-in-one as real programs: start, refusal, signals, death."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import psutil
import pytest
from programs import TOKEN, Api, Program, all_gone, command_line, free_port
from waiting import eventually, never

from aeo.config import Config
from aeo.core.errors import InputError
from aeo.embedded import local, server
from aeo.store import workers
from aeo.store.connection import connect

GRACE = "3"


class Controller:
    """A running ``aeo controller``."""

    def __init__(self, folder: Path, port: int | None = None, environment: dict[str, str] | None = None):
        self.folder = folder
        self.port = port or free_port()
        self.root = folder / "shared"
        self.api = Api(f"http://127.0.0.1:{self.port}")
        self.program = Program(
            ["controller", "--port", str(self.port), "--shared-root", str(self.root), "--grace-seconds", GRACE],
            folder,
            environment,
        )

    def ready(self) -> Controller:
        eventually(self.api.healthy, 60, pause=0.1)
        return self

    def worker(self, id: str, *more: str, root: str = "", environment: dict[str, str] | None = None) -> Program:
        arguments = ["worker", "--controller-url", self.api.url, "--worker-id", id, "--poll-interval", "0.5"]
        return Program(
            [*arguments, "--local-root", str(self.folder / (root or f"root-{id}")), *more], self.folder, environment
        )


@pytest.fixture(scope="module")
def controller(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controller]:
    made = Controller(tmp_path_factory.mktemp("controller"))
    try:
        yield made.ready()
        family = made.program.family()
        made.api.close()
        assert made.program.terminate() == 0, made.program.output
        eventually(lambda: all_gone(family))
    finally:
        made.program.destroy()


@pytest.fixture
def programs() -> Iterator[list[Program]]:
    """What is put in here is ended after the test."""
    started: list[Program] = []
    yield started
    for program in started:
        program.destroy()


def test_second_controller_on_the_same_root_is_refused(controller: Controller) -> None:
    second = Program(
        ["controller", "--port", str(free_port()), "--shared-root", str(controller.root)], controller.folder
    )
    assert second.ends() == 2
    assert "another controller runs on" in second.output


def test_a_taken_port_is_said(controller: Controller, tmp_path: Path) -> None:
    second = Program(["controller", "--port", str(controller.port), "--shared-root", str(tmp_path / "other")], tmp_path)
    assert second.ends() == 2
    # One line, and no address of a controller that is another's.
    (line,) = second.output.splitlines()
    assert f"port {controller.port}" in line
    assert not (tmp_path / "other").exists()


def test_the_web_process_is_known_from_another_that_answers(controller: Controller, tmp_path: Path) -> None:
    config = Config(port=controller.port, shared_root=tmp_path / "other", auth_token=TOKEN)
    with pytest.raises(InputError, match="web"), local.controller(config, logs=tmp_path):
        pass
    assert f"port {controller.port}" in (tmp_path / "web.log").read_text()
    # What it had started is gone too, the embedded server with it.
    pid = int((tmp_path / "other" / "redis" / "pid").read_text())
    assert all_gone([psutil.Process(pid)] if psutil.pid_exists(pid) else [])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--transfer-url", "ftp://x/y"], "--transfer-url: the address has a scheme that is not known"),
        (["--broker-url", "redis://127.0.0.1:1/0"], "check --broker-url"),
        (["--broker-url", "http://x"], "--broker-url: The broker's address is not valid"),
        (["--shared-root", "/proc/x"], "--shared-root: cannot create /proc/x"),
        (["--jobs-dir", "/proc/x"], "--jobs-dir: cannot create /proc/x"),
    ],
)
def test_a_controller_that_cannot_work_says_why(tmp_path: Path, arguments: list[str], said: str) -> None:
    controller = Program(["controller", "--port", str(free_port()), *arguments], tmp_path)
    assert controller.ends() == 2, controller.output
    (line,) = controller.output.splitlines()
    assert said in line


def test_a_token_that_was_given_is_kept_for_the_command_line(controller: Controller) -> None:
    kept = controller.root / "token"
    assert kept.read_text().strip() == TOKEN
    assert kept.stat().st_mode & 0o777 == 0o600


def test_a_kept_token_is_the_one_in_force(tmp_path: Path) -> None:
    path = tmp_path / "token"
    made = local.keep_token(path, "")
    assert local.keep_token(path, "") == made == path.read_text().strip()
    assert local.keep_token(path, "given") == "given"
    assert local.keep_token(path, "") == path.read_text().strip() == "given"
    assert path.stat().st_mode & 0o777 == 0o600


def test_nothing_secret_in_arguments_or_output(controller: Controller, programs: list[Program]) -> None:
    worker = controller.worker("discreet", "--auth-token", TOKEN, environment={"AEO_AUTH_TOKEN": ""})
    programs.append(worker)
    controller.api.await_worker("discreet")
    password = (controller.root / "redis" / "password").read_text()
    for process in [controller.program.process, *controller.program.family(), worker.process, *worker.family()]:
        line = " ".join(command_line(process))
        assert TOKEN not in line
        assert password not in line
    for text in (controller.program.output, worker.output):
        assert TOKEN not in text
        assert password not in text


@pytest.mark.parametrize(
    ("arguments", "environment", "said"),
    [
        ([], {"AEO_AUTH_TOKEN": "wrong-token-wrong-token"}, "refuses the token"),
        (["--transfer-url", "gopher://x/y"], {}, "transfer"),
        (["--transfer-url", "/nowhere/at/all"], {}, "--transfer-url"),
        (["--shared-root", "."], {}, "no controller's folder"),
        (["--broker-url", "http://x"], {}, "--broker-url"),
        ([], {"AEO_AUTH_TOKEN": ""}, "Error: no token: set AEO_AUTH_TOKEN or --auth-token @FILE"),
        ([], {"AEO_AUTH_TOKEN": "tökenlich"}, "--auth-token"),
        (["--controller-url", "http://127.0.0.1:99999"], {}, "--controller-url"),
        (["--local-root", "/proc/foo"], {}, "Error: --local-root: cannot create /proc/foo"),
    ],
)
def test_a_worker_that_cannot_work_says_why(
    controller: Controller, programs: list[Program], arguments: list[str], environment: dict[str, str], said: str
) -> None:
    worker = controller.worker("wrong", *arguments, environment=environment)
    programs.append(worker)
    assert worker.ends() == 2, worker.output
    assert said in worker.output
    assert "Traceback" not in worker.output
    # Nobody counts on it, now or for the time of a heartbeat.
    assert controller.api.worker("wrong") is None


def test_a_worker_without_its_broker_says_so_before_anybody_counts_on_it(
    controller: Controller, programs: list[Program]
) -> None:
    worker = controller.worker("unheard", "--broker-url", "redis://127.0.0.1:1/0")
    programs.append(worker)
    assert worker.ends() == 1, worker.output
    assert "127.0.0.1:1 does not answer" in worker.output
    assert "Check --broker-url." in worker.output
    assert ".." not in worker.output
    assert controller.api.worker("unheard") is None


def test_a_worker_that_cannot_reach_the_broker_it_was_told_of(tmp_path: Path, programs: list[Program]) -> None:
    controller = Controller(tmp_path, environment={"AEO_WORKER_BROKER_URL": "redis://127.0.0.1:1/0"})
    programs.append(controller.program)
    worker = controller.ready().worker("cut-off")
    programs.append(worker)
    assert worker.ends() == 1, worker.output
    assert "forward its port to this machine, or give --broker-url" in worker.output
    controller.api.close()
    assert controller.program.terminate() == 0, controller.program.output


def test_an_address_that_is_no_controller(tmp_path: Path) -> None:
    with HTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{stranger.server_port}"
        worker = Program(["worker", "--controller-url", url, "--worker-id", "lost"], tmp_path)
        assert worker.ends() == 2
        assert "no AEO controller" in worker.output
        stranger.shutdown()


def test_ids_and_roots_in_use(controller: Controller, programs: list[Program]) -> None:
    programs.append(controller.worker("taken"))
    controller.api.await_worker("taken")
    same_root = controller.worker("other", root="root-taken")
    same_id = controller.worker("taken", root="root-elsewhere")
    programs += [same_root, same_id]
    assert same_root.ends() == 2
    assert "another worker runs on" in same_root.output
    assert same_id.ends() == 2
    assert "taken" in same_id.output
    assert same_id.output.count("--worker-id") == 1


def test_a_workers_life(controller: Controller, programs: list[Program]) -> None:
    worker = controller.worker("mortal", "--slots", "3", "--display-name", "The Mortal", "--host", "rack-7")
    programs.append(worker)
    found = controller.api.await_worker("mortal")
    assert found["info"]["display_name"] == "The Mortal"
    assert found["info"]["host"] == "rack-7"
    assert found["info"]["capacity"]["slots"] == 3
    first = found["heartbeat"]["at"]
    eventually(lambda: _beat(controller, "mortal") > first)
    family = worker.family()
    assert worker.terminate() == 0, worker.output
    eventually(lambda: all_gone(family))
    # It said goodbye: no share waits for it until its last heartbeat has expired.
    assert controller.api.worker("mortal") is None
    # Its successor in the same root is welcome, with the same identity.
    again = controller.worker("mortal")
    programs.append(again)
    back = controller.api.await_worker("mortal")
    assert back["info"]["instance"] == found["info"]["instance"]
    assert back["info"]["boot"] != found["info"]["boot"]
    # So is one whose predecessor was killed a moment ago.
    again.process.kill()
    programs.append(controller.worker("mortal"))
    eventually(lambda: controller.api.worker("mortal")["info"]["boot"] != back["info"]["boot"], 30)


def _beat(controller: Controller, id: str) -> str:
    """When it was last heard of; "" while that is too long ago."""
    return str((controller.api.worker(id)["heartbeat"] or {"at": ""})["at"])


def test_a_forgotten_worker_registers_again(controller: Controller, programs: list[Program]) -> None:
    programs.append(controller.worker("forgotten"))
    controller.api.await_worker("forgotten")
    password, port = ((controller.root / "redis" / name).read_text() for name in ("password", "port"))
    db = connect(f"redis://:{password}@127.0.0.1:{port}/0")
    workers.remove(db, "forgotten")
    db.close()
    controller.api.await_worker("forgotten")


@pytest.mark.parametrize("signals", [1, 2])
def test_a_stopping_worker_and_its_trial(controller: Controller, programs: list[Program], signals: int) -> None:
    id = f"stopping-{signals}"
    worker = controller.worker(id)
    programs.append(worker)
    controller.api.await_worker(id)
    go = controller.folder / f"go-{signals}"
    task = {"name": "waits", "command": f"until test -e {go}; do sleep 0.05; done"}
    config = {"executor": "command", "name": id, "workers": [id], "tasks": [task], "attempts": 3}
    evaluation = controller.api.submit(config)
    eventually(lambda: controller.api.status(evaluation)["running"] == 1)
    worker.process.send_signal(signal.SIGTERM)
    eventually(lambda: controller.api.worker(id)["heartbeat"]["draining"] == "stopping")
    if signals == 2:
        worker.process.send_signal(signal.SIGTERM)
    else:
        go.touch()
    assert worker.ends() == 0, worker.output
    assert f"worker {id}: finishing 1 trial; a second Ctrl-C gives it back" in worker.output
    assert controller.api.worker(id) is None
    done = signals == 1

    def settled() -> bool:
        status = controller.api.status(evaluation)
        return bool(status["done"] == int(done) and status["running"] == 0 and status["pending"] == 3 - int(done))

    eventually(settled)
    controller.api.cancel(evaluation)


def test_a_dead_web_process_is_replaced(controller: Controller) -> None:
    web = next(p for p in controller.program.process.children() if command_line(p)[-1:] == ["web"])
    family = web.children(recursive=True)
    web.kill()
    eventually(lambda: all_gone([web, *family]), 20)
    eventually(controller.api.healthy, 30, pause=0.1)
    assert "web ended with -9" in controller.program.output


def test_a_worker_waits_for_its_controller_and_outlives_it(tmp_path: Path, programs: list[Program]) -> None:
    port = free_port()
    worker = Program(
        [*("worker", "--controller-url", f"http://127.0.0.1:{port}", "--worker-id", "early", "--poll-interval", "0.5")],
        tmp_path,
    )
    programs.append(worker)
    eventually(lambda: "trying again" in worker.output, 30)
    first = Controller(tmp_path, port)
    programs.append(first.program)
    first.ready().api.await_worker("early")
    first.api.close()

    # Killed, it leaves no process of its own but the embedded server, to which its successor attaches.
    family = [p for p in first.program.family() if "aeo.processes" in command_line(p)]
    assert len(family) >= 2
    first.program.process.kill()
    eventually(lambda: all_gone(family), 30)
    server = psutil.Process(int((first.root / "redis" / "pid").read_text()))
    assert server.is_running()
    second = Controller(tmp_path, port)
    programs.append(second.program)
    second.ready().api.await_worker("early")
    assert worker.process.is_running()
    second.api.close()
    assert second.program.terminate() == 0, second.program.output
    eventually(lambda: all_gone([server]))


def test_a_broker_that_goes_away_is_told_once_and_when_it_is_back(tmp_path: Path, programs: list[Program]) -> None:
    broker = server.start(tmp_path / "broker")
    try:
        controller = Controller(tmp_path, environment={"AEO_BROKER_URL": broker.url})
        programs.append(controller.program)
        controller.ready()
        server.stop(broker)
        eventually(lambda: "does not answer" in controller.program.output, 20)
        tries = controller.program.output
        # Every loop of the control process meets it several times meanwhile.
        never(lambda: controller.program.output != tries, 4)
        broker = server.start(tmp_path / "broker")
        eventually(lambda: "answers again" in controller.program.output, 30)
        assert "Traceback" not in controller.program.output
        assert "Warning" not in controller.program.output
        controller.api.close()
        assert controller.program.terminate() == 0, controller.program.output
    finally:
        server.stop(broker)


def test_up_runs_everything_until_interrupted(tmp_path: Path, programs: list[Program]) -> None:
    port = free_port()
    up = Program(
        ["up", "--port", str(port), "--worker", "big=2", "--worker", "small=1"], tmp_path, {"AEO_AUTH_TOKEN": ""}
    )
    programs.append(up)
    api = Api(f"http://127.0.0.1:{port}")
    eventually(api.healthy, 60, pause=0.1)
    token = tmp_path / "aeo-data" / "token"
    assert token.stat().st_mode & 0o777 == 0o600
    assert token.read_text().strip() not in up.output
    assert str(token) in up.output or eventually(lambda: str(token) in up.output)
    api.close()
    api = Api(api.url)
    api._client.headers["Authorization"] = f"Bearer {token.read_text().strip()}"
    slots = {id: api.await_worker(id)["info"]["capacity"]["slots"] for id in ("big", "small")}
    assert slots == {"big": 2, "small": 1}
    api.close()
    eventually(lambda: "ready" in up.output)
    first, *_, last = up.output.splitlines()
    assert first == f"Controller: {api.url}"
    assert last == "2 workers ready (3 slots); Ctrl-C stops."
    assert "Connected to" not in up.output
    family = up.family()
    up.process.send_signal(signal.SIGINT)
    assert up.ends() == 0, up.output
    eventually(lambda: all_gone(family))
    with suppress(psutil.NoSuchProcess):
        assert all_gone([psutil.Process(int((tmp_path / "aeo-data" / "redis" / "pid").read_text()))])
