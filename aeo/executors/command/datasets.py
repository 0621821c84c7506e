"""Datasets of commands: a folder with a file of tasks in it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aeo import codec
from aeo.core.errors import InputError
from aeo.core.model import Needs
from aeo.executors import Command, Source, SubmittedFile, TaskInfo
from aeo.executors.command import tasks

#: What a dataset's file is called, the first that is there.
FILES = ("tasks.yaml", "tasks.yml", "tasks.jsonl")
_NO_REGISTRY = "The command executor knows no registry."
_GIVE_PATH = f"Give the path of a folder with a {FILES[0]} or {FILES[2]} in it."


class CommandDatasets:
    """See `aeo.executors.Datasets`."""

    defaults: Mapping[str, str] = {}

    def tasks(self, path: Path) -> tuple[TaskInfo, ...]:
        """Read the file of tasks as an evaluation would."""
        read = tasks.read({"tasks_file": str(_file(path))}, SubmittedFile())
        return tuple(
            TaskInfo(
                name=task.name,
                labels=task.labels,
                needs=Needs(cpus=task.cpus, memory_mb=task.memory_mb),
                timeouts={"agent": task.timeout_seconds},
                digest=hashlib.sha256(codec.dumps(task).encode()).hexdigest(),
            )
            for task in read.tasks
        )

    def check(self, source: Source) -> None:
        """Refuse: there are no registries of commands."""
        raise InputError(_NO_REGISTRY, field="registry" if source.registry else "reference", fix=_GIVE_PATH)

    def config(self, source: Source) -> Mapping[str, Any]:
        """The file of tasks and the dataset's name."""
        if source.path is None:
            raise InputError(_NO_REGISTRY, field="reference", fix=_GIVE_PATH)
        return {"tasks_file": str(_file(source.path)), "dataset": self.label(source)}

    def label(self, source: Source) -> str:
        """The folder's name."""
        return source.path.resolve().name if source.path is not None else source.reference

    def download(self, source: Source, folder: Path, staging: Path, done: Sequence[str]) -> Command:  # noqa: ARG002
        """Refuse: there are no registries of commands."""
        raise InputError(_NO_REGISTRY, field="reference", fix=_GIVE_PATH)


def _file(folder: Path) -> Path:
    for name in FILES:
        if (folder / name).is_file():
            return folder / name
    raise InputError(f"{folder} holds no task.", field="path", fix=f"Put a {FILES[0]} or {FILES[2]} into it.")
