"""Reads a folder of tasks, and fetches a dataset from a registry with Harbor's own downloader."""

from __future__ import annotations

import asyncio
import errno
import json
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import requests
from harbor.models.dataset.paths import DatasetPaths
from harbor.models.registry import DatasetMetadata
from harbor.models.task.id import GitTaskId, LocalTaskId, PackageTaskId
from harbor.registry.client.base import BaseRegistryClient

from aeo_harbor import paths, timing
from aeo_harbor.faults import Faults

#: What a dataset needs beyond its tasks, in its own folder.
DATASET_FILE = "dataset.json"
#: Seconds before a connection that broke is tried again; it is given up when it brought nothing since the last time.
_AGAIN_SECONDS = 3.0
_NETWORK_WORDS = (
    *("could not resolve host", "could not connect", "failed to connect", "connection refused", "connection reset"),
    *("network is unreachable", "no route to host", "timed out", "unable to access", "name resolution", "early eof"),
)

Say = Callable[[Mapping[str, Any]], None]
TaskId = GitTaskId | LocalTaskId | PackageTaskId


def tasks(request: Mapping[str, Any]) -> dict[str, Any]:
    """Every task folder in ``path``; broken ones with the reason."""
    folder, faults = Path(request["path"]), Faults()
    if (folder / "task.toml").exists():
        faults.add(["path"], f"{folder} is a task, not a folder of tasks.", "Give the folder that it lies in.")
        faults.stop()
    found = [_task(entry) for entry in sorted(folder.iterdir()) if entry.is_dir() and paths.looks_like_task(entry)]
    if not found:
        faults.add(["path"], f"{folder} holds no task.", "A task is a folder with a task.toml in it.")
    faults.stop()
    return {"tasks": found}


def _task(folder: Path) -> dict[str, Any]:
    try:
        problem = paths.fault_of(folder, disable_verification=False)
        loaded = None if problem else timing.load(folder, disable_verification=False)
    except Exception as error:  # whatever a folder from outside does to the libraries that read it
        problem, loaded = " ".join(str(error).split())[:300] or type(error).__name__, None
    if loaded is None:
        return {"name": folder.name, "folder": folder.name, "problem": problem}
    config, environment = loaded.task.config, loaded.task.config.environment
    steps = config.steps or []
    timeouts = {
        "agent": sum(step.agent.timeout_sec or 0.0 for step in steps) or config.agent.timeout_sec,
        "verifier": sum(step.verifier.timeout_sec or 0.0 for step in steps) or config.verifier.timeout_sec,
        "environment": environment.build_timeout_sec,
    }
    return {
        "name": loaded.name,
        "labels": loaded.labels,
        "needs": {"cpus": float(environment.cpus or 0.0), "memory_mb": int(environment.memory_mb or 0)},
        "storage_mb": int(environment.storage_mb or 0),
        "timeouts": {name: float(seconds) for name, seconds in timeouts.items() if seconds},
        "digest": loaded.digest,
        "content": loaded.key,
        "folder": folder.name,
    }


def download(request: Mapping[str, Any], say: Say) -> None:
    """Fetch the dataset of ``request`` (reference, registry, folder, staging, done), saying how it goes."""
    done = set(request["done"])
    while True:
        before = len(done)
        try:
            asyncio.run(_download(request, done, say))
            return
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                say({"failed": {"message": "It was stopped.", "fix": ""}})
                return
            if not _is_network(error) or len(done) == before:
                say({"failed": _failure(request, error)})
                return
        say({"note": "The connection broke; going on."})
        threading.Event().wait(_AGAIN_SECONDS)


async def _download(request: Mapping[str, Any], done: set[str], say: Say) -> None:
    task = asyncio.current_task()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    staging, folder = Path(request["staging"]), Path(request["folder"])
    client, reference = _client(request["reference"], request["registry"])
    metadata = await client.get_dataset_metadata(reference)
    if not metadata.task_ids:
        raise ValueError(f"Dataset {reference!r} has no tasks")
    say({"total": len(metadata.task_ids)})
    _drop_unfinished(staging, metadata, done)

    def complete(id: TaskId, _result: object) -> None:
        name = _folder_name(id)
        if isinstance(id, LocalTaskId):
            _copy(id.path, staging / name)
        if name not in done:
            done.add(name)
            say({"done": name})

    for name in sorted(done):
        say({"done": name})
    await client.download_dataset(reference, output_dir=staging, export=True, on_task_download_complete=complete)
    _write_dataset(staging, metadata, request)
    _take_place(staging, folder)
    say({"finished": {}})


def _client(reference: str, registry: str) -> tuple[BaseRegistryClient, str]:
    from harbor.registry.client.factory import RegistryClientFactory

    if registry.endswith(".json") and "://" not in registry:
        return RegistryClientFactory.create(registry_path=Path(registry)), reference
    if registry.endswith(".json"):
        return RegistryClientFactory.create(registry_url=registry), reference
    if registry:
        return RegistryClientFactory.create(repo=registry), reference
    if "/" not in reference.partition("@")[0]:
        return RegistryClientFactory.create(), reference
    from harbor.registry.client.package import PackageDatasetClient

    return PackageDatasetClient(), reference if "@" in reference else f"{reference}@latest"


def _folder_name(id: TaskId) -> str:
    return id.name if isinstance(id, PackageTaskId) else id.get_name()


def _drop_unfinished(staging: Path, metadata: DatasetMetadata, done: set[str]) -> None:
    """Leave only whole tasks of this version: Harbor takes a folder that is there for a whole one."""
    staging.mkdir(parents=True, exist_ok=True)
    mark, wanted = staging / ".aeo-version", json.dumps([id.model_dump(mode="json") for id in metadata.task_ids])
    if not mark.is_file() or mark.read_text() != wanted:
        done.clear()
    done &= {_folder_name(id) for id in metadata.task_ids}
    for entry in staging.iterdir():
        if entry.name not in done:
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
    done &= {entry.name for entry in staging.iterdir()}
    mark.write_text(wanted)


def _copy(source: Path, target: Path) -> None:
    if target.exists():
        return
    draft = target.with_name(f".{target.name}")
    shutil.rmtree(draft, ignore_errors=True)
    shutil.copytree(source, draft, symlinks=True)
    draft.rename(target)


def _write_dataset(staging: Path, metadata: DatasetMetadata, request: Mapping[str, Any]) -> None:
    """Note what a folder of tasks alone does not tell: how the dataset is scored, which tasks the registry lists."""
    metrics = [metric.model_dump(mode="json") for metric in metadata.metrics]
    if (staging / DatasetPaths.METRIC_FILENAME).is_file():
        script = Path(request["folder"]) / DatasetPaths.METRIC_FILENAME
        metrics.insert(0, {"type": "uv-script", "kwargs": {"script_path": str(script)}})
    (staging / ".aeo-version").unlink()
    tasks = {_folder_name(id): _digest(id) for id in metadata.task_ids}
    text = {"name": metadata.name, "version": metadata.version or "", "metrics": metrics, "tasks": tasks}
    (staging / DATASET_FILE).write_text(json.dumps(text))


def _digest(id: TaskId) -> str:
    """A task's digest, where the registry names it."""
    reference = id.ref if isinstance(id, PackageTaskId) else None
    return reference.removeprefix("sha256:") if reference and reference.startswith("sha256:") else ""


def _take_place(staging: Path, folder: Path) -> None:
    old = staging.with_name("old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, those it stands for, and those it came from: Harbor hides a dead network behind a plain sentence."""
    seen: list[BaseException] = []
    waiting = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or one in seen:
            continue
        seen.append(one)
        yield one
        waiting += [*getattr(one, "exceptions", ()), one.__cause__, one.__context__]


def _words(error: BaseException) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or b"").decode(errors="replace").strip().splitlines()
        verb = next((part for part in error.cmd[1:] if not part.startswith("-")), "")
        return f"git {verb}: {said[-1] if said else f'exit code {error.returncode}'}"
    said = str(getattr(error, "strerror", None) or error)
    return " ".join(said.split()) or type(error).__name__


def _is_network(error: BaseException) -> bool:
    import httpx

    kinds = (
        httpx.TransportError,
        requests.ConnectionError,
        requests.Timeout,
        socket.gaierror,
        ConnectionError,
        TimeoutError,
    )
    return any(
        isinstance(one, kinds) or any(word in _words(one).lower() for word in _NETWORK_WORDS) for one in _chain(error)
    )


def _failure(request: Mapping[str, Any], error: BaseException) -> dict[str, str]:
    reference, registry = request["reference"], request["registry"]
    leaves = [one for one in _chain(error) if not hasattr(one, "exceptions")]
    if _is_network(error):
        why = _words(leaves[-1])[:300].rstrip(".")
        return {
            "message": f"The registry of {reference} cannot be reached ({why}).",
            "fix": "Check this machine's way to the network, then start it again: it goes on where it stopped. Or "
            f"fetch it elsewhere with `harbor download {reference}`, bring the folder here and register its path.",
        }
    if isinstance(leaves[0], FileNotFoundError) and leaves[0].filename == "git":
        return {"message": "git is not installed on the controller.", "fix": "Install it, then start this again."}
    where = f" in {registry}" if registry else ""
    fix = "Check the name and the version."
    if isinstance(leaves[0], OSError) and leaves[0].errno in (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS):
        fix = "Make room, or the folder writable, then start it again: it goes on where it stopped."
    return {
        "message": f"{reference} could not be fetched{where}: {_words(leaves[0])[:400].rstrip('.')}.",
        "fix": fix,
    }
