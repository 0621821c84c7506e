"""Bind mounts that a configuration names and that need something where the trial runs."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from aeo_harbor.faults import Faults
from aeo_harbor.host_environment import PRIVATE, working_folder
from aeo_harbor.timing import Loaded

#: How a configuration names the host environment.
_HOST = "aeo_harbor.host_environment:HostEnvironment"


def check(raw: Mapping[str, Any], tasks: Collection[Loaded]) -> list[str]:
    """See that what is mounted by a relative path is there: compose reads it from the task's environment folder.

    Returns warnings: of targets that this machine lacks, as others may.

    Raises:
        Faults: a task lacks it.
    """
    faults = Faults()
    for place, mount in _binds(raw):
        source = mount["source"]
        if not source or "$" in source or source.startswith(("/", "~")) or _is_made(mount):
            continue
        lacking = [task for task in tasks if not _has(task, source)]
        if lacking:
            faults.add(
                [*place, "source"],
                f"{source!r} would be read from each task's environment folder, and {lacking[0].name} has none there.",
                "Give an absolute path of the controller; it is sent to the workers.",
            )
    faults.stop()
    if (raw.get("environment") or {}).get("import_path") != _HOST:
        return []
    targets = (os.path.normpath(mount["target"]) for _, mount in _binds(raw) if isinstance(mount.get("target"), str))
    return [
        f"The mount target {target} does not exist on the controller's machine: where a worker lacks it, too, its "
        "trials fail, as the host environment makes no folders there. Use one below /app, or an existing one."
        for target in targets
        if any(_must_exist(target, task) for task in tasks)
    ]


def _must_exist(target: str, task: Loaded) -> bool:
    """Whether the host environment needs this on the machine, and this machine lacks it."""
    first = "/" + "".join(PurePosixPath(target).parts[1:2])
    workdir = working_folder(task.task.config.environment.workdir, task.task.paths.environment_dir)
    private = first in PRIVATE or first == "/" + PurePosixPath(workdir).parts[1]
    return not private and Path(first).exists() and not Path(target).exists()


def _has(task: Loaded, source: str) -> bool:
    """Whether a task brings it; what lies outside of its folder no worker gets."""
    path = Path(os.path.normpath(task.task.paths.environment_dir.absolute() / source))
    return path.exists() and path.is_relative_to(task.folder.absolute())


def _is_made(mount: Mapping[str, Any]) -> bool:
    bind = mount.get("bind")
    return isinstance(bind, Mapping) and bind.get("create_host_path") is True


def _binds(raw: Mapping[str, Any]) -> Iterator[tuple[list[str | int], Mapping[str, Any]]]:
    environment = raw.get("environment") or {}
    key = "mounts" if "mounts" in environment else "mounts_json"
    for index, mount in enumerate(environment.get(key) or ()):
        if mount.get("type") == "bind" and isinstance(mount.get("source"), str):
            yield ["environment", key, index], mount
