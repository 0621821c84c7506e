"""A Harbor environment without containers: the task's commands run on this very machine.

Import path: ``aeo_harbor.host_environment:HostEnvironment``.

**This is no sandbox.** Each trial gets private folders (``/app``, ``/logs``, ``/tests``, ``/solution``, ``/tmp``,
``/root`` and the task's own working folder) through a user, mount and process namespace, so that trials do not see each
other and nothing of them stays behind. Everything else is the machine's own: its programs, its files as far as the user
may reach them, its network. Images, limits and network rules of a task are not applied.

Files of the task: everything in ``environment/`` but the Dockerfile and the compose files lies in the working folder at
the start (``WORKDIR`` of the task or of its Dockerfile, else ``/app``). The Dockerfile itself is not run.

Bind mounts of the configuration are shown, also read-only, where that makes nothing new on the machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Any, override

import yaml
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.utils.env import resolve_env_vars

from aeo_harbor import traces

_ENTER = str(Path(__file__).with_name("enter.py"))
#: What is shown as folders of the trial's own, beside the one of its working folder.
PRIVATE = ("/app", "/logs", "/tests", "/solution", "/runtime", "/tmp", "/root")  # noqa: S108
#: Folders of the machine a task's working folder cannot be in: making it would change the machine.
_SYSTEM = {"bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr", "var"}
_DEFINITIONS = {"Dockerfile", "docker-compose.yaml", "docker-compose.yml", ".dockerignore"}
#: Of one command's output, bytes; more is cut, as it would have to fit into memory.
_OUTPUT_LIMIT = 16 * 1024 * 1024


class HostEnvironment(BaseEnvironment):
    """Runs a trial's commands on this machine, in private folders."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._root: Path | None = None
        self._keeper: asyncio.subprocess.Process | None = None
        self._first = 0
        self._trace: Path | None = None
        self._folders: dict[str, Path] = {}
        self._bound: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)
        # Harbor leaves these to each environment; its own ones hand them to compose, which knows the notation.
        self._persistent_env = resolve_env_vars(self._persistent_env)

    @staticmethod
    @override
    def type() -> str:
        return "host"

    @property
    @override
    def capabilities(self) -> EnvironmentCapabilities:
        return EnvironmentCapabilities()

    @classmethod
    @override
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        return EnvironmentResourceCapabilities(fractional_cpus=True)

    @override
    def _validate_definition(self) -> None:
        compose = self.environment_dir / "docker-compose.yaml"
        if compose.is_file():
            services = set((yaml.safe_load(compose.read_text()) or {}).get("services") or {}) - {"main"}
            if services:
                raise ValueError(f"The host environment cannot run the compose services {sorted(services)}.")
        top = PurePosixPath(self._workdir).parts[1:2]
        if top and top[0] in _SYSTEM:
            raise ValueError(
                f"The host environment cannot make the working folder {self._workdir}: it is the system's."
            )

    @property
    def _workdir(self) -> str:
        return working_folder(self.task_env_config.workdir, self.environment_dir)

    @override
    async def start(self, force_build: bool) -> None:
        self._bound = [self._bind(mount) for mount in self._host_mounts]
        base = traces.folder("roots")
        self._root = Path(tempfile.mkdtemp(prefix="r", dir=base))
        tops = {*PRIVATE, "/" + PurePosixPath(self._workdir).parts[1]}
        self._folders = {top: self._root / "private" / top[1:] for top in sorted(tops)}
        for folder in self._folders.values():
            folder.mkdir(parents=True)
        self._folders["/tmp"].chmod(0o1777)  # noqa: S108
        for path in ("/logs/agent", "/logs/verifier", "/logs/artifacts", "/logs/user-agent", self._workdir):
            if self._is_read_only(path):
                continue
            place = self._on_disk(path)
            place.mkdir(parents=True, exist_ok=True)
            place.chmod(0o777)
        self._place_files()
        (self._root / "top").mkdir()
        (self._root / "output").mkdir()
        await self._enter()

    def _bind(self, mount: Mapping[str, Any]) -> dict[str, Any]:
        """A mount as `enter` makes it, its source as compose would read it."""
        if mount["type"] != "bind":
            raise ValueError(f"The host environment knows no mounts of type {mount['type']!r}.")
        source = Path(resolve_env_vars({"source": mount["source"]})["source"]).expanduser()
        source = Path(os.path.normpath(self.environment_dir.absolute() / source))
        if not source.exists():
            raise ValueError(f"{source}, which is to be mounted, does not exist.")
        target = os.path.normpath(mount["target"])
        if not target.startswith("/") or not target.strip("/"):
            raise ValueError(f"Nothing can be mounted at {mount['target']!r}.")
        return {"source": str(source), "target": "/" + target.strip("/"), "read_only": bool(mount.get("read_only"))}

    def _place_files(self) -> None:
        # A verifier's own environment brings its tests along instead.
        folder = self._workdir if self._enable_environment_dir_upload else "/tests"
        # Such a mount would hide them in a container, too.
        if not self.environment_dir.is_dir() or self._is_read_only(folder):
            return
        target = self._on_disk(folder)
        for entry in self.environment_dir.iterdir():
            if entry.name in _DEFINITIONS:
                continue
            if entry.is_dir():
                shutil.copytree(entry, target / entry.name, symlinks=True, dirs_exist_ok=True)
            else:
                shutil.copy2(entry, target / entry.name, follow_symlinks=False)

    async def _enter(self) -> None:
        view = {
            "top": str(self._root / "top"),
            "private": {top: str(path) for top, path in self._folders.items()},
            "mounts": self._bound,
        }
        self._keeper = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-I", "-S", _ENTER, "start"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        # Before anything is waited for: whoever cleans up after a killed driver has to know it.
        self._trace = traces.process(self._keeper.pid)
        self._keeper.stdin.write(json.dumps(view).encode())
        self._keeper.stdin.write_eof()
        line = await self._keeper.stdout.readline()
        said = json.loads(line) if line else {"error": (await self._keeper.stderr.read()).decode().strip()[-300:]}
        if said.get("target"):
            raise ValueError(said["error"])
        if "error" in said:
            raise RuntimeError(
                f"The host environment needs unprivileged user namespaces, which this machine refuses: {said['error']}"
            )
        self._first = said["pid"]

    @override
    async def stop(self, delete: bool) -> None:
        if self._keeper is not None:
            _kill_group(self._keeper.pid)
            await self._keeper.wait()
            self._keeper = None
        if self._trace is not None:
            self._trace.unlink(missing_ok=True)
            self._trace = None
        if delete and self._root is not None:
            traces.remove(self._root)
            self._root = None

    def _on_disk(self, path: str | Path) -> Path:
        """Where a path inside lies on this machine."""
        inside, mount = _inside(path), self._mounted(path)
        if mount is not None:
            return Path(mount["source"], inside.relative_to(mount["target"]))
        folder = self._folders.get("/" + inside.parts[1]) if len(inside.parts) > 1 else None
        if folder is None:
            return Path(inside)
        return folder.joinpath(*inside.parts[2:])

    def _mounted(self, path: str | Path) -> dict[str, Any] | None:
        """The mount that a path inside lies in."""
        around = [mount for mount in self._bound if _inside(path).is_relative_to(mount["target"])]
        return max(around, key=lambda one: len(one["target"]), default=None)

    def _is_read_only(self, path: str | Path) -> bool:
        mount = self._mounted(path)
        return mount is not None and mount["read_only"]

    def _to_write(self, path: str) -> Path:
        """Where a path inside lies on this machine, to be written to.

        Raises:
            OSError: it is in a mount that may only be read, and perhaps shared by many trials.
        """
        if self._is_read_only(path):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)
        return self._on_disk(path)

    @override
    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        target = self._to_write(target_path)
        target.parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.copy2, source_path, target)

    @override
    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        await asyncio.to_thread(_copy_tree, Path(source_dir), self._to_write(target_dir))

    @override
    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        Path(target_path).parent.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(shutil.copy2, self._on_disk(source_path), target_path)

    @override
    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        await asyncio.to_thread(_copy_tree, self._on_disk(source_dir), Path(target_dir))

    @override
    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command; ``user`` is not applied, every command is the namespace's root."""
        if self._keeper is None or self._root is None:
            raise RuntimeError("The host environment is not running.")
        order = {
            "argv": ["bash", "-c", command],
            "cwd": cwd or self._workdir,
            # Only what is asked for: the worker's own variables hold its secrets.
            "env": {
                "PATH": os.environ.get("PATH", os.defpath),
                "HOME": "/root",
                "LANG": "C.UTF-8",
                **(self._merge_env(env) or {}),
            },
        }
        # Files, not pipes: a process left in the background would keep a pipe open and the command never end.
        output = Path(tempfile.mkdtemp(dir=self._root / "output"))
        with (output / "out").open("wb") as out, (output / "err").open("wb") as err:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                *("-I", "-S", _ENTER, "run", str(self._first)),
                stdin=asyncio.subprocess.PIPE,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        try:
            process.stdin.write(json.dumps(order).encode())
            process.stdin.write_eof()
            code = await asyncio.wait_for(process.wait(), timeout_sec)
        except TimeoutError:
            code, note = 124, f"\ntimed out after {timeout_sec} seconds"
        else:
            note = ""
        finally:
            if process.returncode is None:
                _kill_group(process.pid)
                await asyncio.shield(process.wait())
        result = ExecResult(stdout=_read(output / "out"), stderr=_read(output / "err") + note, return_code=code)
        shutil.rmtree(output, ignore_errors=True)
        return result


def _inside(path: str | Path) -> PurePosixPath:
    # Two slashes at the start are another root to this class.
    return PurePosixPath("/" + os.path.normpath(str(path)).lstrip("/"))


def working_folder(given: str | None, environment_dir: Path) -> str:
    """Where a task's commands begin: as it says, else as its Dockerfile does."""
    wanted = os.path.normpath(given or _dockerfile_workdir(environment_dir / "Dockerfile"))
    return wanted if wanted.startswith("/") and wanted.strip("/") else "/app"


def _dockerfile_workdir(dockerfile: Path) -> str:
    """WORKDIR of the last build stage; "/app" if it sets none."""
    workdir = ""
    for line in dockerfile.read_text().splitlines() if dockerfile.is_file() else []:
        word, _, value = line.strip().partition(" ")
        if word.upper() == "FROM":
            workdir = ""
        elif word.upper() == "WORKDIR":
            workdir = os.path.join(workdir or "/", value.strip().strip("\"'"))  # noqa: PTH118
    return workdir or "/app"


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _read(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(_OUTPUT_LIMIT).decode(errors="replace")
        return text + ("\n[cut]" if file.read(1) else "")


def _copy_tree(source: Path, target: Path) -> None:
    """Copy a folder's content; links stay links, sockets and devices stay behind."""

    def odd(folder: str, names: list[str]) -> list[str]:
        paths = [(name, Path(folder, name)) for name in names]
        return [name for name, path in paths if not (path.is_symlink() or path.is_file() or path.is_dir())]

    shutil.copytree(source, target, symlinks=True, ignore=odd, dirs_exist_ok=True)
