"""What sessions leave when they are killed, and its removal: processes with their namespaces, containers, scratch.

A session notes what it starts before it needs to be found. Nothing that is not noted is touched, and nothing of a
session whose owner lives.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

_SCRATCH = "harbor"
#: Seconds one docker command gets.
_DOCKER_SECONDS = 60.0
#: Seconds killed processes get to be gone.
_GONE_SECONDS = 5.0


def folder(workdir: Path) -> Path:
    """A session's own folder in its batch's."""
    return workdir / _SCRATCH


def own(scratch: Path) -> None:
    """Mark a scratch folder as this process's."""
    (scratch / "owner").write_text(identity(os.getpid()))


def disown(scratch: Path) -> None:
    """Take the mark back."""
    (scratch / "owner").unlink(missing_ok=True)


def note_process(scratch: Path, pid: int) -> None:
    """Note a process that must not outlive the session."""
    processes = scratch / "processes"
    processes.mkdir(exist_ok=True)
    (processes / str(pid)).write_text(identity(pid))


def note_trial(scratch: Path, trial: str, content: Path | None) -> None:
    """Note a trial that may start containers, and the folder it starts them from."""
    trials = scratch / "trials"
    trials.mkdir(exist_ok=True)
    (trials / trial).write_text(str(content or ""))


def forget_trial(scratch: Path, trial: str) -> None:
    """The trial has ended in order and removed what it started."""
    (scratch / "trials" / trial).unlink(missing_ok=True)


def is_project_of(project: str, trial: str) -> bool:
    """Whether Harbor names a compose project so for this trial: its environment, or one of its verifiers."""
    own = re.sub(r"[^a-z0-9_-]", "-", trial.lower())
    return project == f"{own}__env" or project.startswith(f"{own}__verifier__")


def sweep(workdir: Path) -> None:
    """Clean up after every dead session in ``workdir``, or in a folder directly in it."""
    for scratch in (folder(workdir), *sorted(workdir.glob(f"*/{_SCRATCH}"))):
        if scratch.is_dir() and not scratch.is_symlink() and not _owner_lives(scratch):
            clean(scratch)
            disown(scratch)


def clean(scratch: Path) -> None:
    """Remove what a session started, whoever its owner is."""
    _kill_processes(scratch / "processes")
    trials = list(_entries(scratch / "trials"))
    if trials and shutil.which("docker") is not None:
        _remove_containers({path.name: path.read_text() for path in trials})
    for path in trials:
        path.unlink(missing_ok=True)
    for name in ("roots", "files"):
        remove(scratch / name)


def live_trials(batches: Path) -> frozenset[str]:
    """The trials that sessions which live have noted, in the folder of a worker's batches."""
    scratches = (scratch for scratch in batches.glob(f"*/{_SCRATCH}") if _owner_lives(scratch))
    return frozenset(path.name for scratch in scratches for path in _entries(scratch / "trials"))


def _owner_lives(scratch: Path) -> bool:
    try:
        pid, started = (scratch / "owner").read_text().split()
    except (OSError, ValueError):
        return False
    return pid.isdigit() and identity(int(pid)) == f"{pid} {started}"


def identity(pid: int) -> str:
    """A pid with its start time: pids are used again. Without a start time the process is gone."""
    try:
        stat_line = Path(f"/proc/{pid}/stat").read_text()
        fields = stat_line.rpartition(")")[2].split()
        return f"{pid} {fields[19]}" if fields[0] != "Z" else f"{pid} "
    except (OSError, IndexError):
        return f"{pid} "


def _entries(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.iterdir())


def _kill_processes(processes: Path) -> None:
    killed = []
    for path in _entries(processes):
        pid = path.name
        with suppress(OSError, ValueError):
            noted = path.read_text()
            if pid.isdigit() and noted.split()[1:] and identity(int(pid)) == noted:
                # Each is the leader of its own group.
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(int(pid), signal.SIGKILL)
                killed.append((int(pid), noted))
        path.unlink(missing_ok=True)
    deadline = time.monotonic() + _GONE_SECONDS
    while any(identity(pid) == noted for pid, noted in killed) and time.monotonic() < deadline:
        time.sleep(0.02)


def _remove_containers(trials: Mapping[str, str]) -> None:
    """Remove what compose made for these trials (name to content folder), if this worker started it."""
    others = set()
    for container, project, started_from in labelled("ps", "ID", "--all"):
        for trial in trials:
            if is_project_of(project, trial):
                # Another worker of this machine may run the same trial by now: it does so from its own folder.
                if trials[trial] and Path(started_from).is_relative_to(trials[trial]):
                    _docker("rm", "--force", "--volumes", container)
                else:
                    others.add(trial)
    ours = trials.keys() - others
    for kind, shown in (("network", "ID"), ("volume", "Name")):
        for name, project, _ in labelled(kind, shown, "ls"):
            if any(is_project_of(project, trial) for trial in ours):
                _docker(kind, "rm", name)
    for image in _docker("image", "ls", "--format", "{{.Repository}}").split():
        if any(is_project_of(image.rpartition("-")[0], trial) for trial in ours):
            _docker("image", "rm", image)


def labelled(kind: str, shown: str, *more: str) -> Iterator[tuple[str, str, str]]:
    """Name, compose project and folder it was started from, of everything that compose made."""
    prefix = "com.docker.compose.project"
    shape = f'{{{{.{shown}}}}}\t{{{{.Label "{prefix}"}}}}\t{{{{.Label "{prefix}.working_dir"}}}}'
    for line in _docker(kind, *more, "--filter", f"label={prefix}", "--format", shape).splitlines():
        name, project, started_from = (*line.split("\t"), "", "")[:3]
        yield name, project, started_from


def _docker(*arguments: str) -> str:
    try:
        answer = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_DOCKER_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return answer.stdout if answer.returncode == 0 else ""


def remove(path: Path) -> None:
    """Remove a folder tree, also where a trial took away our right to list or write its folders."""

    def retry(_function: Callable[..., Any], name: str, _info: Any) -> None:
        with suppress(OSError):
            Path(name).parent.chmod(stat.S_IRWXU)
            if not Path(name).is_symlink():
                Path(name).chmod(stat.S_IRWXU)

    # The first round opens what is closed, the second removes it.
    for _ in range(2):
        if path.exists():
            shutil.rmtree(path, onerror=retry)
