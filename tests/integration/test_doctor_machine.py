"""`aeo doctor` on a machine with faults that a test plants: each is named, with what to do."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from time import time
from typing import Any

import pytest
from click.testing import CliRunner
from needs import require
from programs import AEO, free_port

from aeo import lock
from aeo.cli import main
from aeo.embedded import server as embedded

IMAGE = "debian:bookworm"
TOKEN = "the-token-of-this-controller"


def look(*arguments: str, code: int) -> dict[str, list[dict[str, str]]]:
    """Run the doctor; what it found, by what it looked at."""
    result = CliRunner().invoke(main, ["doctor", "--json", *arguments])
    assert result.exit_code == code, result.output
    found: dict[str, list[dict[str, str]]] = {}
    for condition in json.loads(result.stdout)["conditions"]:
        found.setdefault(condition["about"], []).append(condition)
    return found


def the_fault(found: dict[str, list[dict[str, str]]], about: str) -> dict[str, str]:
    faults = [condition for condition in found.get(about, []) if condition["level"] == "fault"]
    assert len(faults) == 1, found
    assert faults[0]["fix"]
    return faults[0]


@contextmanager
def controller(ahead: float = 0.0, version: str = "0.1.0") -> Iterator[str]:
    """Something that answers as a controller does, whose clock is ``ahead``."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            open_page = self.path == "/api/health"
            known = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            body = json.dumps({"status": "ok", "redis": True, "version": version} if open_page else {}).encode()
            self.send_response(200 if open_page or known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def date_time_string(self, timestamp: float | None = None) -> str:
            return formatdate(time() + ahead, usegmt=True)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine where nothing of ours is yet."""
    for name in [name for name in os.environ if name.startswith("AEO_") and name != "AEO_HARBOR_PYTHON"]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AEO_SHARED_ROOT", str(tmp_path / "shared"))
    monkeypatch.setenv("AEO_LOCAL_ROOT", str(tmp_path / "local"))
    monkeypatch.setenv("AEO_AUTH_TOKEN", TOKEN)
    monkeypatch.setenv("AEO_PORT", str(free_port()))
    return tmp_path


def program(folder: Path, name: str, text: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_a_sound_machine_has_no_fault(machine: Path, server: embedded.Server, monkeypatch: pytest.MonkeyPatch) -> None:
    require(shutil.which("rsync"), "rsync")
    (machine / "shared" / "inbox").mkdir(parents=True)
    monkeypatch.setenv("AEO_BROKER_URL", server.url)
    monkeypatch.setenv("AEO_TRANSFER_URL", str(machine / "shared"))
    # Whether an engine runs here is not this test's.
    monkeypatch.setenv("PATH", str(programs(machine, "rsync", "uv")))
    monkeypatch.delenv("AEO_HARBOR_PYTHON", raising=False)
    with controller() as url:
        monkeypatch.setenv("AEO_CONTROLLER_URL", url)
        found = look(code=0)
    assert {"broker", "clock", "controller", "disk", "inodes", "port", "rsync", "transfer", "version"} <= found.keys()
    assert [item for items in found.values() for item in items if item["level"] == "fault"] == []
    assert {item["fix"] for items in found.values() for item in items if item["level"] == "ok"} == {""}


def programs(machine: Path, *names: str) -> Path:
    """A folder of these programs alone."""
    folder = machine / "bin"
    folder.mkdir(exist_ok=True)
    for name in names:
        if shutil.which(name):
            (folder / name).symlink_to(shutil.which(name) or "")
    return folder


def test_ten_faults_of_one_machine_are_named_each_with_its_fix(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shared = machine / "shared"
    shared.mkdir()
    (shared / "token").write_text(TOKEN)
    (shared / "token").chmod(0o644)
    broker = free_port()
    monkeypatch.setenv("AEO_BROKER_URL", f"redis://:secret-of-the-broker@127.0.0.1:{broker}/0")
    old = program(machine / "harbor", "python", "#!/bin/sh\necho 3.12 0.1.30\n")
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(old))
    bin = programs(machine)
    refuses = 'echo "Cannot connect to the Docker daemon at unix:///nowhere/docker.sock. Is it running?" >&2; exit 1'
    docker = shutil.which("docker")
    if docker is None:
        program(bin, "docker", f"#!/bin/sh\n{refuses}\n")
    else:
        (bin / "docker").symlink_to(docker)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    monkeypatch.setenv("AEO_TRANSFER_URL", str(machine / "not mounted"))
    monkeypatch.setenv("AEO_AUTH_TOKEN", "another")
    monkeypatch.setenv("PATH", str(bin))
    with controller(ahead=-300, version="9.9.9") as url, socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        port = other.getsockname()[1]
        monkeypatch.setenv("AEO_PORT", str(port))
        monkeypatch.setenv("AEO_CONTROLLER_URL", url)
        found = look(code=1)
    for about, text, fix in (
        ("broker", f"nothing listens at 127.0.0.1:{broker}", "AEO_BROKER_URL"),
        ("rsync", "not on PATH", "apt-get install rsync"),
        ("clock", "300 s ahead of", "NTP"),
        ("port", f"127.0.0.1:{port} is taken", "--port"),
        ("harbor", "0.1.30", "harbor==0.26.0"),
        ("docker", "unix:///nowhere/docker.sock", "systemctl start docker"),
        ("token", "refuses", "AEO_AUTH_TOKEN"),
        ("secrets", "can be read by other users", "chmod 600"),
        ("transfer", "no such folder", "transfer-url"),
    ):
        named = the_fault(found, about)
        assert text in named["text"], named
        assert fix in named["fix"], named
    (version,) = found["version"]
    assert version["level"] == "warning"
    assert "9.9.9" in version["fix"]
    assert "secret-of-the-broker" not in json.dumps(found)


def test_a_controller_that_runs_is_sound_whole_and_as_its_web_process_alone(
    machine: Path, server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = machine / "shared"
    for name in ("inbox", "evaluations"):
        (shared / name).mkdir(parents=True)
    (shared / "controller.lock").touch()
    monkeypatch.setenv("AEO_BROKER_URL", server.url)
    with controller() as url:
        monkeypatch.setenv("AEO_PORT", url.rpartition(":")[2])
        alone = look("--role", "controller", code=0)
        assert [item["text"] for item in alone["port"]] == [f"{url.removeprefix('http://')} is a controller's"]
        assert [item["level"] for item in alone["controller"]] == ["warning"]
        with lock.hold(shared / "controller.lock", "controller", field=""):
            whole = look("--role", "controller", code=0)
    assert "port" not in whole
    assert {item["level"] for about in ("controller", "token", "version") for item in whole.get(about, [])} == {"ok"}


def test_a_broker_that_refuses_the_password_or_forgets(
    machine: Path, server: embedded.Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = server.url.rpartition("@")[2]
    monkeypatch.setenv("AEO_BROKER_URL", f"redis://:wrong@{place}")
    assert "refuses the password" in the_fault(look("--role", "controller", code=1), "broker")["text"]
    monkeypatch.setenv("AEO_BROKER_URL", server.url)
    from aeo.store.connection import connect

    db = connect(server.url)
    try:
        before = db.client.config_get("maxmemory-policy")["maxmemory-policy"]
        db.client.config_set("maxmemory-policy", "allkeys-lru")
        named = the_fault(look("--role", "controller", code=1), "broker memory")
        db.client.config_set("maxmemory-policy", before)
    finally:
        db.close()
    assert "noeviction" in named["fix"]


@contextmanager
def small_disk(path: Path, options: str) -> Iterator[None]:
    """A file system of its own at ``path``."""
    path.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], capture_output=True, check=False)
    require(made.returncode == 0, "the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def test_a_full_disk_and_one_without_inodes(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEO_JOBS_DIR", str(machine / "jobs"))
    with small_disk(machine / "shared", "size=4m"), small_disk(machine / "jobs", "size=4m,nr_inodes=100"):
        (machine / "shared" / "log").write_bytes(bytes(4 * 1024 * 1024 - 64 * 1024))
        for number in range(99):
            (machine / "jobs" / str(number)).touch()
        found = look("--role", "controller", code=1)
    full, empty = the_fault(found, "disk"), the_fault(found, "inodes")
    assert str(machine / "shared") in full["text"]
    assert "aeo prune" in full["fix"]
    assert f"{machine / 'jobs'}: 0 of 100 inodes" in empty["text"]


#: A root's Python may be closed to others: it becomes another user when everything is loaded.
AS_ANOTHER = """
import os, sys
from aeo import executors
from aeo.cli import doctor, main
for name in executors.installed():
    executors.load(name)
os.setgroups([]), os.setgid(65534), os.setuid(65534)
main(sys.argv[1:])
"""


def test_a_shared_root_of_another_user(tmp_path: Path) -> None:
    require(os.geteuid() == 0, "to become another user")
    root = tmp_path / "shared"
    root.mkdir(mode=0o700)
    asked = {"AEO_SHARED_ROOT": str(root), "PATH": os.environ["PATH"], "HOME": "/", "AEO_CACHE": "/nonexistent"}
    command = [sys.executable, "-c", AS_ANOTHER, "doctor", "--role", "controller", "--json"]
    answer = subprocess.run(command, env=asked, cwd="/", capture_output=True, check=False)
    assert answer.returncode == 1, answer.stderr.decode()
    named = [item for item in json.loads(answer.stdout)["conditions"] if item["about"] == "shared root"]
    assert "cannot be read and written by this user (65534)" in named[0]["text"]
    assert "chown" in named[0]["fix"]


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60).stdout


def engine_needed() -> None:
    require(shutil.which("docker") and docker("info", "--format", "{{.ServerVersion}}").strip(), "a Docker engine")
    require(docker("image", "ls", "--quiet", IMAGE).strip(), f"the image {IMAGE}")


@pytest.mark.docker
def test_a_container_of_a_dead_trial_is_named_and_one_of_a_live_trial_is_not(machine: Path) -> None:
    from aeo.executors.harbor import leftovers

    engine_needed()
    task = machine / "local" / "tasks" / "digest" / "task" / "environment"
    task.mkdir(parents=True)
    scratch = leftovers.folder(machine / "local" / "batches" / "one")
    scratch.mkdir(parents=True)
    leftovers.own(scratch)
    leftovers.note_trial(scratch, "living__abc", task.parent)
    ids = {}
    try:
        for project, folder in (
            ("living__abc__env", task),
            ("dead__abc__env", task),
            ("dead__abc__env", Path("/home/other")),
            ("mine", task),
        ):
            labels = {"project": project, "project.working_dir": str(folder)}
            flags = [f"--label=com.docker.compose.{name}={value}" for name, value in labels.items()]
            ids[project, folder] = docker("create", *flags, IMAGE, "true").strip()
        named = the_fault(look("--role", "worker", code=1), "orphans")
        dead = ids["dead__abc__env", task][:12]
        assert named["text"] == f"1 container of dead trials: {dead}"
        assert named["fix"] == f"docker rm --force --volumes {dead}"
        docker(*named["fix"].split()[1:])
        assert [item["level"] for item in look("--role", "worker", code=1)["orphans"]] == ["ok"]
    finally:
        docker("rm", "--force", *ids.values())


def test_as_a_program_it_says_what_it_takes_this_machine_for(machine: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AEO_")}
    environment["PATH"] = str(machine)
    answer = subprocess.run([AEO, "doctor"], env=environment, capture_output=True, check=False, cwd=machine)
    assert answer.returncode == 1
    assert b"any machine of a pool" in answer.stdout
    assert b"  FAULT   rsync" in answer.stdout
    assert b"-> Install the package rsync" in answer.stdout
