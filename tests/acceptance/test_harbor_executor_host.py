"""The host environment itself, in Harbor's Python: what a task's commands see and what remains of them."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import psutil
import pytest
from needs import require

from aeo.executors.harbor.python import harbor_python, plugin_path

PROGRAM = """
import asyncio, json, sys, uuid
from pathlib import Path
from aeo_harbor.host_environment import HostEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

folder = Path(sys.argv[1])

def make(name):
    paths = TrialPaths(folder / name)
    return HostEnvironment(environment_dir=folder / "environment", environment_name="t", session_id=name + "__env",
                           trial_paths=paths, task_env_config=EnvironmentConfig(env={"GIVEN": "${GIVEN_TO_US}"}))

async def main():
    first, second = make("a"), make("b")
    said = {}
    try:
        await first.start(False)
        await second.start(False)
        for name, command in json.load(sys.stdin):
            result = await (second if name.startswith("second") else first).exec(command, timeout_sec=3)
            said[name] = [result.return_code, result.stdout, result.stderr]
        await first.download_dir("/logs/agent", folder / "got")
    except Exception as error:
        said["error"] = str(error)
    finally:
        await first.stop(True)
        await second.stop(True)
    print(json.dumps(said))

asyncio.run(main())
"""

UPLOADS = """
import asyncio, json, sys
from pathlib import Path
from aeo_harbor.host_environment import HostEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

folder = Path(sys.argv[1])

async def main():
    mounts = [{"type": "bind", "source": str(folder / "shared"), "target": "/app", "read_only": True},
              {"type": "bind", "source": str(folder / "own"), "target": "/app/own"}]
    made = HostEnvironment(environment_dir=folder / "environment", environment_name="t", session_id="a__env",
                           trial_paths=TrialPaths(folder / "a"), task_env_config=EnvironmentConfig(), mounts=mounts)
    said = []
    try:
        await made.start(False)
        for target in ("/app/file", "//app/deep/file", "/app/../app/file"):
            try:
                await made.upload_file(folder / "file", target)
            except OSError as error:
                said.append(error.strerror)
        try:
            await made.upload_dir(folder / "up", "/app/up")
        except OSError as error:
            said.append(error.strerror)
        await made.upload_file(folder / "file", "/app/own/file")
        await made.upload_file(folder / "file", "/tests/file")
        said.append((await made.exec("cat /app/given /app/own/file /tests/file")).stdout)
    finally:
        await made.stop(True)
    print(json.dumps(said))

asyncio.run(main())
"""

LACKING = """
import asyncio, json, sys
from pathlib import Path
from aeo_harbor.host_environment import HostEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.trial.paths import TrialPaths

folder = Path(sys.argv[1])

async def main():
    mounts = [{"type": "bind", "source": str(folder), "target": "/usr/nowhere/x"}]
    made = HostEnvironment(environment_dir=folder / "environment", environment_name="t", session_id="a__env",
                           trial_paths=TrialPaths(folder / "a"), task_env_config=EnvironmentConfig(), mounts=mounts)
    try:
        await made.start(False)
    except ValueError as error:
        print(json.dumps(str(error)))
    finally:
        await made.stop(True)

asyncio.run(main())
"""

COUNT_SLEEPERS = "cat /proc/[0-9]*/comm | grep -c '^sleep$'"


@pytest.fixture(scope="module", autouse=True)
def _harbor() -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")


def run(folder: Path, *commands: tuple[str, str], wrap: str = "") -> dict[str, Any]:
    """Run commands in an environment whose task has a file and a working folder of its own."""
    (folder / "environment" / "sub").mkdir(parents=True)
    (folder / "environment" / "sub" / "given.txt").write_text("given\n")
    (folder / "environment" / "Dockerfile").write_text(
        "FROM a\nWORKDIR /nope\nFROM b\nWORKDIR /place\nWORKDIR of/work\n"
    )
    said: dict[str, Any] = in_harbor(folder, PROGRAM, json.dumps(commands), wrap=wrap)
    return said


def in_harbor(folder: Path, program: str, given: str = "", *, wrap: str = "") -> Any:
    """What a program in Harbor's Python says."""
    command = [str(harbor_python(create=False).path), "-c", program, str(folder)]
    if wrap:
        command = ["unshare", "-rm", "sh", "-c", wrap + '; exec "$@"', "sh", *command]
    answer = subprocess.run(
        command,
        input=given,
        env={
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "PYTHONPATH": str(plugin_path()),
            "AEO_HARBOR_SCRATCH": str(folder / "scratch"),
            "GIVEN_TO_US": "value",
            "SECRET_OF_THE_WORKER": "hush",
        },
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)


def test_uploads_do_not_write_through_a_mount_that_may_only_be_read(tmp_path: Path) -> None:
    for name in ("environment", "shared", "own", "up"):
        (tmp_path / name).mkdir()
    for name in ("shared/given", "file", "up/file", "environment/of-the-task"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "shared" / "own").mkdir()
    (tmp_path / "shared").chmod(0o755)
    said = in_harbor(tmp_path, UPLOADS)
    assert said == [*["Read-only file system"] * 4, "shared/given\nfile\nfile\n"]
    assert sorted(path.name for path in (tmp_path / "shared").iterdir()) == ["given", "own"]
    assert (tmp_path / "shared").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "own" / "file").read_text() == "file\n"


def test_a_target_that_the_machine_lacks_is_the_cause_named(tmp_path: Path) -> None:
    (tmp_path / "environment").mkdir()
    said = in_harbor(tmp_path, LACKING)
    assert said.startswith("The mount target /usr/nowhere/x does not exist on this machine")


def test_what_commands_see(tmp_path: Path) -> None:
    said = run(
        tmp_path,
        ("where", "pwd; cat sub/given.txt; ls Dockerfile"),
        ("environment", "echo $HOME $GIVEN; env | grep -c SECRET"),
        ("user", "id -u; ls /root | wc -l"),
        ("write", "echo mine > /tmp/x; echo log > /logs/agent/log"),
        ("write odd things", "ln -s /etc/passwd /logs/agent/link; mkfifo /logs/agent/pipe"),
        ("second sees none of it", "cat /tmp/x"),
        ("first still does", "cat /tmp/x"),
        ("exit", "exit 7"),
        ("signal", "kill -9 $$"),
        ("background", "sleep 600 & echo started"),
        ("background lives on", COUNT_SLEEPERS),
        ("second has other processes", COUNT_SLEEPERS),
        ("too long", "trap '' TERM; sleep 600"),
        ("no shell words are lost", "printf '%s\\n' 'a  b' \"$((1 + 1))\" >&2"),
    )
    assert said["where"] == [
        2,
        "/place/of/work\ngiven\n",
        "ls: cannot access 'Dockerfile': No such file or directory\n",
    ]
    assert said["environment"] == [1, "/root value\n0\n", ""]
    assert said["user"] == [0, "0\n0\n", ""]
    assert said["second sees none of it"][0] == 1
    assert said["first still does"][1] == "mine\n"
    assert (said["exit"][0], said["signal"][0]) == (7, 137)
    assert said["background"] == [0, "started\n", ""]
    assert said["background lives on"][1] == "1\n"
    assert said["second has other processes"][1] == "0\n"
    assert said["too long"][0] == 124
    assert said["no shell words are lost"][2] == "a  b\n2\n"
    assert (tmp_path / "got" / "log").read_text() == "log\n"
    assert (tmp_path / "got" / "link").is_symlink()
    assert not (tmp_path / "got" / "pipe").exists()


def test_nothing_remains(tmp_path: Path) -> None:
    run(tmp_path, ("leave", "setsid nohup sleep 601 & mkdir -p /tmp/a/b; chmod 0 /tmp/a; echo done"))
    assert not list(tmp_path.glob("scratch/*/*"))
    # Other tests mount too, at the same time.
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    assert not [process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"] == ["sleep", "601"]]


def test_a_machine_that_refuses_namespaces_is_told_so(tmp_path: Path) -> None:
    said = run(tmp_path, ("never", "true"), wrap="echo 0 > /proc/sys/user/max_user_namespaces")
    assert "needs unprivileged user namespaces" in said["error"]
    assert "never" not in said
