"""docker-compose.yml for real: built, started, signed in to, a Harbor evaluation run in containers, stopped."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import httpx
import psutil
import pytest
from needs import require
from programs import free_port
from waiting import eventually

pytestmark = [pytest.mark.docker, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
#: What the trials' containers are made of; the engine must have it, as nothing is pulled.
TRIAL_IMAGE = "debian:bookworm"
#: A base made from Debian's packages where images cannot be pulled.
BASE = "aeo-test/debian:trixie"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PACKAGES = "python3,python3-venv,rsync,openssh-client,ca-certificates,docker-cli,docker-compose,redis-server"


def docker(*arguments: str, seconds: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=seconds)


@dataclass(frozen=True, kw_only=True)
class Stack:
    """The compose file, started."""

    project: str
    environment: dict[str, str]
    data: Path
    log: Path
    #: Of the person at the browser.
    url: str
    token: str
    up: psutil.Popen

    def compose(self, *arguments: str, seconds: float = 120) -> str:
        """Run a command of compose; returns what it printed."""
        return compose(self.project, self.environment, *arguments, seconds=seconds)

    def containers(self) -> dict[str, dict[str, Any]]:
        """What the engine knows of each service's container."""
        ids = self.compose("ps", "--all", "--quiet").split()
        found = json.loads(docker("inspect", *ids).stdout)
        return {item["Config"]["Labels"]["com.docker.compose.service"]: item for item in found}


def compose(project: str, environment: dict[str, str], *arguments: str, seconds: float = 120) -> str:
    answer = subprocess.run(
        ["docker", "compose", "--project-name", project, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=seconds,
    )
    assert answer.returncode == 0, answer.stderr[-4000:]
    return answer.stdout


def base_image() -> str:
    """A Debian to build from; made here once, as registries cannot be reached everywhere."""
    if docker("image", "inspect", BASE).returncode == 0:
        return BASE
    require(shutil.which("mmdebstrap"), "mmdebstrap")
    # What this machine trusts, a mirror's own certificate included, is trusted in the build.
    hook = f"upload {CERTIFICATES} {CERTIFICATES}"
    change = f"ENV SSL_CERT_FILE={CERTIFICATES} PIP_CERT={CERTIFICATES}"
    bootstrap = ["mmdebstrap", "--quiet", "--variant=minbase", f"--include={PACKAGES}", f"--customize-hook={hook}"]
    made = subprocess.Popen([*bootstrap, "trixie", "-"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    taken = subprocess.run(["docker", "import", "--change", change, "-", BASE], stdin=made.stdout, check=False)
    said = made.communicate()[1]
    assert (made.returncode, taken.returncode) == (0, 0), said.decode()[-2000:]
    return BASE


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """Built and started as a person does it, with another name and other ports."""
    require(shutil.which("docker") and docker("info").returncode == 0, "a Docker engine")
    require(docker("compose", "version").returncode == 0, "compose")
    require(docker("image", "inspect", TRIAL_IMAGE).returncode == 0, f"the image {TRIAL_IMAGE}")
    folder = tmp_path_factory.mktemp("compose")
    project = f"aeo-test-{os.getpid()}"
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AEO_")}
    base = base_image()
    environment = {
        **clean,
        "AEO_DATA": str(folder / "aeo"),
        "AEO_UID": str(os.getuid() or 1000),
        "AEO_GID": str(os.getgid() or 1000),
        "AEO_BASE_IMAGE": base,
        "AEO_REDIS_IMAGE": base,
        "AEO_IMAGE": f"{project}:latest",
        "AEO_PORT": str(free_port()),
        "AEO_FLOWER_PORT": str(free_port()),
    }
    compose(project, environment, "build", "--quiet", seconds=500)
    log = folder / "up.log"
    with log.open("wb") as file:
        up = psutil.Popen(
            ["docker", "compose", "--project-name", project, "up", "--no-color"],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
        )
    try:
        url, token = eventually(lambda: printed(up, log), 240, pause=0.5)
        yield Stack(project=project, environment=environment, data=folder / "aeo", log=log, url=url, token=token, up=up)
    finally:
        compose(project, environment, "down", "--volumes", "--timeout", "5")
        if up.poll() is None:
            up.kill()
        up.wait()
        docker("image", "rm", f"{project}:latest")


def printed(up: psutil.Popen, log: Path) -> tuple[str, str] | None:
    """The address at the end of `docker compose up`, and the token in it."""
    said = log.read_text("utf-8", "replace")
    assert up.poll() is None, said
    found = re.search(r"Sign in: (http://\S+)/\?token=(\S+)", said)
    return (found[1], found[2]) if found else None


def test_the_file_is_valid_without_any_setting(tmp_path: Path) -> None:
    require(shutil.which("docker") and docker("compose", "version").returncode == 0, "compose")
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AEO_")}
    answer = subprocess.run(
        ["docker", "compose", "--file", ROOT / "docker-compose.yml", "config", "--format", "json"],
        cwd=tmp_path,
        env=clean,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    services = json.loads(answer.stdout)["services"]
    assert services["worker-1"]["environment"]["AEO_LOCAL_ROOT"] == "/srv/aeo/work/worker-1"
    assert {port["host_ip"] for service in services.values() for port in service.get("ports", [])} == {"127.0.0.1"}


def test_it_ends_with_an_address_that_signs_in(stack: Stack) -> None:
    assert "2 of 2 workers are online" in stack.log.read_text()
    assert stack.url == f"http://127.0.0.1:{stack.environment['AEO_PORT']}"
    with httpx.Client(base_url=stack.url, follow_redirects=True, trust_env=False, timeout=60) as browser:
        assert browser.get("/workers").url.path == "/sign-in"
        page = browser.get(f"/?token={stack.token}")
        assert page.is_success
        assert stack.token not in str(page.url)
        shown = browser.get("/workers")
        assert shown.is_success
        assert "worker-1" in shown.text
        assert "worker-2" in shown.text


def test_a_harbor_evaluation_runs_in_containers_of_the_host(stack: Stack) -> None:
    folder = stack.data / "datasets" / "contained"
    for name in ("one", "two"):
        task = tasks.task(
            folder / name, solve="touch /app/done", test="test -f /app/done && echo 1 >/logs/verifier/reward.txt"
        )
        (task / "environment" / "Dockerfile").write_text(f"FROM {TRIAL_IMAGE}\nWORKDIR /app\n")
        (task / "environment" / "docker-compose.yaml").write_text("services:\n  main:\n    init: true\n")
    config = {
        "job_name": "contained",
        "n_attempts": 1,
        "agents": [{"name": "oracle"}],
        "environment": {"type": "docker"},
        "datasets": [{"path": str(folder)}],
    }
    headers = {"Authorization": f"Bearer {stack.token}"}
    with httpx.Client(base_url=stack.url, headers=headers, trust_env=False, timeout=60) as api:
        answer = api.post("/api/evaluations", json={"config": config})
        assert answer.status_code == 201, answer.text
        id = answer.json()["evaluation"]["id"]

        def status() -> Any:
            return api.get(f"/api/evaluations/{id}").json()["status"]

        eventually(lambda: status()["state"] in ("succeeded", "failed"), 240, pause=0.5)
        assert status()["state"] == "succeeded"
        assert status()["outcomes"]["scored"] == 2
    result = json.loads((stack.data / "data" / "jobs" / "contained" / "result.json").read_text())
    assert result["stats"]["n_completed_trials"] == 2
    assert result["stats"]["n_errored_trials"] == 0
    # What containers wrote as root belongs to the worker's user again, or nobody could clean it.
    owner = int(stack.environment["AEO_UID"])
    for root in ("data", "work"):
        assert [path for path in (stack.data / root).rglob("*") if path.lstat().st_uid != owner] == []


def test_flower_answers_with_the_token_only(stack: Stack) -> None:
    address = f"http://127.0.0.1:{stack.environment['AEO_FLOWER_PORT']}/api/workers"

    def look() -> bool:
        assert httpx.get(address, trust_env=False).status_code == 401
        seen = httpx.get(f"{address}?refresh=1", auth=("aeo", stack.token), trust_env=False, timeout=60).json()
        return {name.partition("@")[0] for name in seen} == {"worker-1", "worker-2", "control"}

    assert eventually(look, 40, pause=0.5)


def test_secrets_stand_in_no_container_and_no_log(stack: Stack) -> None:
    password = (stack.data / "redis" / "password").read_text()
    known = docker("inspect", *stack.compose("ps", "--all", "--quiet").split()).stdout
    logs = "".join(
        docker("logs", item["Id"]).stdout + docker("logs", item["Id"]).stderr for item in stack.containers().values()
    )
    arguments = " ".join(word for process in psutil.process_iter(["cmdline"]) for word in process.info["cmdline"] or [])
    for secret in (password, stack.token):
        assert secret
        for place in (known, logs, arguments):
            assert secret not in place


def test_no_program_of_ours_is_root(stack: Stack) -> None:
    owner = int(stack.environment["AEO_UID"])
    for service, container in stack.containers().items():
        if not container["State"]["Running"]:
            continue
        init = psutil.Process(container["State"]["Pid"])
        # Redis is the container's first process; the others have an init before them.
        users = [user for user in map(uids, init.children(recursive=True)) if user] or [uids(init)]
        assert set(users) == {(owner, owner, owner)}, service


def uids(process: psutil.Process) -> tuple[int, ...]:
    """Real, effective and saved user; nothing of a process that has just ended."""
    try:
        return tuple(process.uids())
    except psutil.NoSuchProcess:
        return ()


def test_a_stop_reaches_everyone(stack: Stack) -> None:
    stack.compose("stop", "--timeout", "60")
    codes = {service: container["State"]["ExitCode"] for service, container in stack.containers().items()}
    assert len(codes) == 8
    assert set(codes.values()) == {0}, codes
    assert stack.up.wait(30) == 0
