"""Datasets as Harbor knows them: folders of tasks, and names in its registries."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aeo import codec
from aeo.core.errors import InputError, Problem
from aeo.executors import Command, Listed, Source, TaskInfo, secrets
from aeo.executors.harbor import drivers, program

#: What the download wrote beside the tasks (see ``inside/aeo_harbor/datasets.py``).
_DATASET_FILE = "dataset.json"
_PART = r"[A-Za-z0-9][A-Za-z0-9._-]*"
#: ``name@version`` of a registry file, ``org/name@reference`` of Harbor's own registry.
_REFERENCE = re.compile(rf"(?:{_PART}/)?{_PART}(?:@[A-Za-z0-9][A-Za-z0-9._:+-]*)?")
#: Where a git repository may be: what Harbor's ``--repo`` takes.
_REPOSITORY = re.compile(r"(?:https?|ssh|git)://[^\s]+|git@[^\s:]+:[^\s]+|[\w.-]+(?:/[\w.-]+)+(?:@[\w./-]+)?")


class HarborDatasets:
    """See `aeo.executors.Datasets`."""

    #: As Harbor's documentation names them; without a version, each download takes and notes the latest.
    defaults: Mapping[str, str] = {
        "terminal-bench-2": "terminal-bench/terminal-bench-2",
        "swe-bench-verified": "swe-bench/swe-bench-verified",
    }

    #: Tasks that datasets have had since they were published, by their names in Harbor's registry.
    sizes: Mapping[str, int] = {"terminal-bench/terminal-bench-2": 89, "swe-bench/swe-bench-verified": 500}

    def listed(self, source: Source) -> Listed | None:
        """What the registry said at the download, what its file on this machine says, or the number that is known."""
        noted = _noted(source.path) if source.path is not None else {}
        if noted:
            return Listed(by="its registry, at the download", tasks=noted)
        if source.registry.endswith(".json") and "://" not in source.registry:
            found = _in_file(Path(source.registry), source.reference)
            if found:
                return Listed(by=source.registry, tasks=found)
        name, _, version = source.reference.partition("@")
        if name in self.sizes and not version and not source.registry:
            return Listed(by="what is known of it", total=self.sizes[name])
        return None

    def tasks(self, path: Path) -> tuple[TaskInfo, ...]:
        """Read every task folder with Harbor's own reader."""
        answer = drivers.call("tasks", {"path": str(path)})
        if "faults" in answer:
            raise InputError(
                problems=tuple(
                    Problem(message=str(fault["message"]), field="path", fix=str(fault["fix"]))
                    for fault in answer["faults"]
                )
            )
        return tuple(codec.decode(TaskInfo, item) for item in answer["ok"]["tasks"])

    def check(self, source: Source) -> None:
        """See that the reference and the registry have a form that Harbor takes."""
        for field, value in (("reference", source.reference), ("registry", source.registry)):
            if secrets.has_key(value):
                raise InputError(
                    "holds a secret, which would be stored.", field=field, fix="Let git know it: a credential helper."
                )
        if not _REFERENCE.fullmatch(source.reference) or ".." in source.reference:
            raise InputError(
                f"{source.reference[:100]!r} is no name in a registry.",
                field="reference",
                fix="Give org/name, org/name@version, or name@version of a registry file.",
            )
        _check_registry(source)

    def config(self, source: Source) -> Mapping[str, Any]:
        """A list of one dataset, and the metrics that came with it."""
        if source.path is not None:
            metrics = _metrics(source.path)
            return {"datasets": [{"path": str(source.path)}], **({"metrics": metrics} if metrics else {})}
        name, _, version = source.reference.partition("@")
        kind = "ref" if "/" in name and not source.registry else "version"
        return {"datasets": [{"name": name, **({kind: version} if version else {}), **_registry(source.registry)}]}

    def label(self, source: Source) -> str:
        """The folder's name, or the name in the registry."""
        return source.path.resolve().name if source.path is not None else source.reference.partition("@")[0]

    def download(self, source: Source, folder: Path, staging: Path, done: Sequence[str]) -> Command:
        """A Python of ours that finds or gets Harbor's, and becomes Harbor's downloader."""
        kept = {name: value for name in ("AEO_HARBOR_PYTHON", "AEO_CACHE") if (value := os.environ.get(name))}
        return Command(
            argv=(sys.executable, "-m", "aeo.executors.harbor.fetch"),
            env={
                **program.environment(**kept),
                # Nobody is there to be asked, and a connection that brings nothing must end.
                "GIT_TERMINAL_PROMPT": "0",
                "GIT_HTTP_LOW_SPEED_LIMIT": "100",
                "GIT_HTTP_LOW_SPEED_TIME": "120",
            },
            request={
                "reference": source.reference,
                "registry": source.registry,
                "folder": str(folder),
                "staging": str(staging),
                "done": list(done),
            },
        )


def _check_registry(source: Source) -> None:
    registry = source.registry
    if not registry:
        return
    if "/" in source.reference:
        raise InputError(
            f"{source.reference} is a name of Harbor's own registry.",
            field="registry",
            fix="Leave the registry out, or give the name as its file has it: name@version.",
        )
    if registry.endswith(".json") and "://" not in registry:
        if not Path(registry).is_absolute():
            raise InputError("must be an absolute path on the controller.", field="registry")
        if not Path(registry).is_file():
            raise InputError(f"{registry} does not exist on the controller.", field="registry")
    elif not _REPOSITORY.fullmatch(registry):
        raise InputError(
            f"{registry[:100]!r} is no registry.",
            field="registry",
            fix="Give the path or the address of a registry.json, or a git repository.",
        )


def _registry(registry: str) -> dict[str, str]:
    if not registry:
        return {}
    if registry.endswith(".json"):
        return {"registry_url" if "://" in registry else "registry_path": registry}
    return {"repo": registry}


def _noted(path: Path) -> dict[str, str]:
    """The tasks that a download noted."""
    try:
        found = json.loads((path / _DATASET_FILE).read_bytes())["tasks"]
        return {str(name): str(digest) for name, digest in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _in_file(path: Path, reference: str) -> dict[str, str]:
    """The tasks of a dataset in a registry's file."""
    name, _, version = reference.partition("@")
    try:
        entries = [one for one in json.loads(path.read_bytes()) if one["name"] == name]
        chosen = [one for one in entries if not version or one.get("version") == version]
        # Without a version it is not known here which one was fetched.
        if len(chosen) != 1:
            return {}
        return {Path(task["path"]).name: "" for task in chosen[0]["tasks"]}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _metrics(path: Path) -> list[Any]:
    try:
        found = json.loads((path / _DATASET_FILE).read_bytes())["metrics"]
    except (OSError, ValueError, KeyError, TypeError):
        return []
    return found if isinstance(found, list) else []
