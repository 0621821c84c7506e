"""The configured datasets: those of the executors, less what a person removed, and what people added."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path

from aeo import codec, executors
from aeo.core.errors import Conflict, InputError, NotFound, Problem
from aeo.core.names import check_name
from aeo.datasets import downloads, reading
from aeo.executors import Datasets, Source, datasets_of
from aeo.layout import Shared

#: Of a dataset without a sound task, how many tasks are named with what is wrong.
_SHOWN = 5


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """A set of tasks under a name of ours: a path of the controller, or a name in a registry."""

    name: str
    executor: str
    #: Absolute; empty for one of a registry.
    path: str = ""
    #: The name and version there; empty for a path.
    reference: str = ""
    #: Which registry; empty for the executor's usual one.
    registry: str = ""
    #: None for one that is configured out of the box.
    added_at: datetime | None = None
    added_by: str = ""


@dataclass(frozen=True, kw_only=True)
class _File:
    datasets: tuple[Dataset, ...] = ()
    #: Names out of the box that a person removed.
    removed: tuple[str, ...] = ()


def read(shared: Shared) -> Mapping[str, Dataset]:
    """Every configured dataset by name, in the order of names.

    Raises:
        InputError: the file is damaged.
    """
    file = _load(shared)
    found = {name: item for name, item in _defaults().items() if name not in file.removed}
    found.update({item.name: item for item in file.datasets})
    return dict(sorted(found.items()))


def get(shared: Shared, name: str) -> Dataset:
    """One configured dataset.

    Raises:
        NotFound: none has this name.
    """
    known = read(shared)
    if name not in known:
        raise NotFound(f"no dataset {name!r} is configured.", field="name", fix=f"Known: {', '.join(known) or 'none'}.")
    return known[name]


def source(shared: Shared, dataset: Dataset) -> Source:
    """Where a dataset is: its path; the downloaded folder, if there is one; else the registry alone."""
    folder = Path(dataset.path) if dataset.path else shared.dataset(dataset.name)
    here = bool(dataset.path) or folder.is_dir()
    return Source(path=folder if here else None, reference=dataset.reference, registry=dataset.registry)


def knowledge(executor: str) -> Datasets:
    """What an executor knows of datasets.

    Raises:
        InputError: it is not installed, or knows none.
    """
    found = datasets_of(executors.load(executor))
    if found is None:
        raise InputError(f"The executor {executor!r} knows no datasets.", field="executor")
    return found


def add(
    shared: Shared,
    name: str,
    *,
    executor: str = executors.PLAIN,
    path: str = "",
    reference: str = "",
    registry: str = "",
    by: str = "",
) -> Dataset:
    """Configure a dataset: a folder of the controller with tasks in it, or a reference to a registry.

    Raises:
        InputError: the name, the path or the reference cannot be used; says why.
        Conflict: the name is taken.
        Unavailable: the executor cannot look at it now.
    """
    check_name(name, "dataset name", field="name")
    if "__" in name:
        raise InputError("has two underscores in a row, which part names in results.", field="name")
    if bool(path) == bool(reference):
        raise InputError("give either a path or a reference.", field="path")
    if path and registry:
        fix = "Leave one of the two out."
        raise InputError("is of a reference, and a path was given.", field="registry", fix=fix)
    made = Dataset(
        name=name,
        executor=executor,
        path=path,
        reference=reference,
        registry=registry,
        added_at=datetime.now(timezone.utc),
        added_by=by,
    )
    knows = knowledge(executor)
    if name in read(shared):
        raise _taken(name)
    if path:
        made = replace(made, path=str(_folder(path)))
        _check_tasks(shared, made, knows)
    else:
        knows.check(Source(reference=reference, registry=registry))
    with _changing(shared) as file:
        if name in read(shared):
            raise _taken(name)
        file["file"] = replace(file["file"], datasets=(*file["file"].datasets, made))
    return made


def remove(shared: Shared, name: str, *, files: bool = False) -> Dataset:
    """Configure a dataset no more. ``files``: drop what was downloaded, too; a path of a person is never touched.

    Raises:
        NotFound: none has this name.
        Conflict: it is being downloaded.
    """
    dataset = get(shared, name)
    if downloads.is_running(shared, name):
        raise Conflict(f"{name} is being downloaded.", field="name", fix=f"Stop that first: aeo datasets cancel {name}")
    with _changing(shared) as file:
        now = file["file"]
        gone = {*now.removed, name} if name in _defaults() else {*now.removed}
        kept = tuple(item for item in now.datasets if item.name != name)
        file["file"] = _File(datasets=kept, removed=tuple(sorted(gone)))
    if files and not dataset.path:
        shutil.rmtree(shared.dataset(name), ignore_errors=True)
        shutil.rmtree(shared.dataset_state(name), ignore_errors=True)
    return dataset


def _taken(name: str) -> Conflict:
    return Conflict(
        f"a dataset {name!r} is configured already.", field="name", fix="Choose another name, or remove it."
    )


def _folder(path: str) -> Path:
    if not Path(path).is_absolute() or "\0" in path:
        raise InputError("must be an absolute path on the controller.", field="path")
    try:
        folder = Path(path).resolve(strict=True)
        if not folder.is_dir():
            raise InputError(f"{path} is no folder.", field="path")
        next(folder.iterdir(), None)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist on the controller.", field="path") from None
    except (OSError, RuntimeError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"{path} cannot be read: {why}.", field="path") from None
    return folder


def _check_tasks(shared: Shared, dataset: Dataset, knows: Datasets) -> None:
    found = reading.tasks(shared, dataset.name, knows, Path(dataset.path)).tasks
    broken = [task for task in found if task.problem]
    if len(broken) == len(found):
        raise InputError(
            problems=tuple(Problem(message=task.problem, field=task.name) for task in broken[:_SHOWN])
            or (Problem(message=f"{dataset.path} holds no task.", field="path"),)
        )


@cache
def _defaults() -> Mapping[str, Dataset]:
    return {
        name: Dataset(name=name, executor=executor, reference=reference)
        for executor in executors.installed()
        for name, reference in getattr(datasets_of(executors.load(executor)), "defaults", {}).items()
    }


def _load(shared: Shared) -> _File:
    try:
        return codec.loads(_File, shared.datasets_file.read_bytes())
    except FileNotFoundError:
        return _File()
    except InputError as error:
        raise InputError(f"is damaged: {error}", field=str(shared.datasets_file), fix="Repair or delete it.") from None


@contextmanager
def _changing(shared: Shared) -> Iterator[dict[str, _File]]:
    """Give the file's content to change, alone; it is written whole or not at all."""
    with shared.datasets_file.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        holder = {"file": _load(shared)}
        yield holder
        draft = shared.datasets_file.with_suffix(".new")
        with draft.open("w") as file:
            file.write(json.dumps(codec.encode(holder["file"]), indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(shared.datasets_file)
