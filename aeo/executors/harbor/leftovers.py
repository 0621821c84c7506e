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
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import Any

from aeo.core.errors import ExecutorFailed

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
    """Clean up after every dead session in ``workdir``, or in a folder directly in it.

    Raises:
        ExecutorFailed: something of them may live on.
    """
    left: list[str] = []
    for scratch in (folder(workdir), *sorted(workdir.glob(f"*/{_SCRATCH}"))):
        if scratch.is_dir() and not scratch.is_symlink() and not _owner_lives(scratch):
            left += clean(scratch)
            disown(scratch)
    if left:
        raise ExecutorFailed(f"What a killed process had started may live on: {'; '.join(left)}.")


def clean(scratch: Path) -> list[str]:
    """Remove what a session started, whoever its owner is; returns what may live on, for people."""
    left = [f"process {pid}" for pid in _kill_processes(scratch / "processes")]
    trials = list(_entries(scratch / "trials"))
    if trials and shutil.which("docker") is not None:
        left += _remove_containers({path.name: path.read_text() for path in trials})
    for path in trials:
        path.unlink(missing_ok=True)
    for name in ("roots", "files"):
        remove(scratch / name)
    return left


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
    """A pid with its start time: pids are used again. Without a start time the process is gone, or cannot be seen."""
    try:
        fields = _stat(pid)
        return f"{pid} {fields[19]}" if fields[0] != "Z" else f"{pid} "
    except (OSError, IndexError):
        return f"{pid} "


def has_ended(pid: int) -> bool:
    """Whether a process is known to have ended; not where that cannot be seen, as without a descriptor left."""
    try:
        return _stat(pid)[:1] == ["Z"]
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False


def _stat(pid: int) -> list[str]:
    """What ``/proc`` says of a process, from its state on (proc(5))."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _entries(path: Path) -> Iterator[Path]:
    if path.is_dir():
        yield from sorted(path.iterdir())


def _kill_processes(processes: Path) -> list[int]:
    """Kill those that are noted; returns which live on nevertheless."""
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
    while (alive := [pid for pid, noted in killed if identity(pid) == noted]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return alive


def _remove_containers(trials: Mapping[str, str]) -> list[str]:
    """Remove what compose made for these trials (name to content folder), if this worker started it.

    Returns what may live on.
    """
    found = _containers(trials)
    if found is None:
        return [f"containers of {', '.join(sorted(trials))}, as Docker does not answer"]
    containers, others = found
    for container in containers:
        _docker("rm", "--force", "--volumes", container)
    _remove_rest(trials.keys() - others)
    still = _containers(trials) if containers else found
    return [f"container {name}" for name in (containers if still is None else still[0])]


def _containers(trials: Mapping[str, str]) -> tuple[list[str], set[str]] | None:
    """The containers that this worker started for these trials, and the trials of others; None where none are told."""
    listed = _labelled("ps", "ID", "--all")
    if listed is None:
        return None
    own, others = [], set()
    for container, project, started_from in listed:
        for trial in trials:
            if is_project_of(project, trial):
                # Another worker of this machine may run the same trial by now: it does so from its own folder.
                if trials[trial] and Path(started_from).is_relative_to(trials[trial]):
                    own.append(container)
                else:
                    others.add(trial)
    return own, others


def _remove_rest(trials: Set[str]) -> None:
    """Remove what compose made for these trials beside containers."""
    for kind, shown in (("network", "ID"), ("volume", "Name")):
        for name, project, _ in labelled(kind, shown, "ls"):
            if any(is_project_of(project, trial) for trial in trials):
                _docker(kind, "rm", name)
    for image in (_docker("image", "ls", "--format", "{{.Repository}}") or "").split():
        if any(is_project_of(image.rpartition("-")[0], trial) for trial in trials):
            _docker("image", "rm", image)


def labelled(kind: str, shown: str, *more: str) -> Sequence[tuple[str, str, str]]:
    """Name, compose project and folder it was started from, of everything that compose made, as far as Docker says."""
    return _labelled(kind, shown, *more) or []


def _labelled(kind: str, shown: str, *more: str) -> list[tuple[str, str, str]] | None:
    prefix = "com.docker.compose.project"
    shape = f'{{{{.{shown}}}}}\t{{{{.Label "{prefix}"}}}}\t{{{{.Label "{prefix}.working_dir"}}}}'
    said = _docker(kind, *more, "--filter", f"label={prefix}", "--format", shape)
    if said is None:
        return None
    rows = ((*line.split("\t"), "", "") for line in said.splitlines())
    return [(name, project, started_from) for name, project, started_from, *_ in rows]


def _docker(*arguments: str) -> str | None:
    """What a command says; None where it fails."""
    try:
        answer = subprocess.run(
            ["docker", *arguments], capture_output=True, text=True, timeout=_DOCKER_SECONDS, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout if answer.returncode == 0 else None


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
