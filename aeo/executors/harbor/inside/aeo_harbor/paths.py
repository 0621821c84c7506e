"""Files and folders a job configuration names on the controller."""

from __future__ import annotations

import base64
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harbor.metrics.factory import MetricFactory
from harbor.models.job.config import DatasetConfig, JobConfig
from harbor.models.metric.config import MetricConfig
from harbor.models.task.task import Task
from harbor.models.trial.config import TaskConfig, TrialConfig

from aeo_harbor.faults import Faults

#: Of all files that travel inside the plan, bytes.
_PACK_LIMIT = 8 * 1024 * 1024
_TASK_SIGNS = ("task.toml", "instruction.md", "tests", "environment")


def settle(config: JobConfig, folder: str) -> list[str]:
    """Make relative paths absolute below ``folder`` and check what is there; returns warnings.

    Raises:
        Faults: something is missing or broken, or a path is relative and ``folder`` is empty.
    """
    faults, warnings = Faults(), []
    for index, dataset in enumerate(config.datasets):
        place = ["datasets", index]
        if dataset.is_repo():
            continue
        dataset.registry_path = _absolute(faults, [*place, "registry_path"], dataset.registry_path, folder)
        if dataset.registry_path and not dataset.registry_path.is_file():
            faults.add([*place, "registry_path"], f"{dataset.registry_path} does not exist on the controller.")
        if dataset.n_tasks is not None and dataset.n_tasks < 1:
            faults.add([*place, "n_tasks"], "must be at least 1.")
        if dataset.path is not None:
            dataset.path = _absolute(faults, [*place, "path"], dataset.path, folder)
            warnings += _check_dataset(faults, [*place, "path"], dataset, config)
    for index, task in enumerate(config.tasks):
        if task.path is not None and not task.is_git_task():
            task.path = _absolute(faults, ["tasks", index, "path"], task.path, folder)
            reason = fault_of(task.path, disable_verification=config.verifier.disable)
            if reason:
                faults.add(["tasks", index, "path"], f"{task.path} is no usable task: {reason}")
    for index, metric in enumerate(config.metrics):
        _settle_metric(faults, ["metrics", index, "kwargs"], metric, folder)
    for holder, key, place in _files(config):
        value = holder[key] if isinstance(holder, list) else getattr(holder, key)
        path = _absolute(faults, place, Path(value), folder)
        if not path.exists():
            faults.add(place, f"{path} does not exist on the controller.")
        _put(holder, key, path if isinstance(value, Path) else str(path))
    faults.stop()
    return warnings


def _settle_metric(faults: Faults, place: list[str | int], metric: MetricConfig, folder: str) -> None:
    script = metric.kwargs.get("script_path")
    if isinstance(script, str):
        path = _absolute(faults, [*place, "script_path"], Path(script), folder)
        metric.kwargs["script_path"] = str(path)
        if not path.is_file():
            faults.add([*place, "script_path"], f"{path} does not exist on the controller.")
            return
    try:
        MetricFactory.create_metric(metric.type, **metric.kwargs)
    except (TypeError, ValueError, OSError) as error:
        faults.add(place, f"No metric {metric.type.value!r} can be made from this: {error}.")


def _absolute(faults: Faults, place: list[str | int], path: Path | None, folder: str) -> Path | None:
    if path is None or path.is_absolute():
        return path
    if str(path).startswith("~"):
        return path.expanduser()
    if not folder:
        faults.add(place, f"The path {path} is relative, and it is not known to what.", "Give an absolute path.")
        return path
    return Path(folder, path)


def _check_dataset(faults: Faults, place: list[str | int], dataset: DatasetConfig, config: JobConfig) -> list[str]:
    path = dataset.path
    if not path.is_dir():
        faults.add(place, f"{path} is no folder on the controller.")
        return []
    if (path / "task.toml").exists():
        faults.add(place, f"{path} is a task, not a folder of tasks.", "List it under 'tasks' as {path: ...}.")
        return []
    broken, sound = {}, 0
    for entry in sorted(path.iterdir()):
        if entry.is_dir() and looks_like_task(entry):
            reason = fault_of(entry, disable_verification=config.verifier.disable)
            sound += not reason
            if reason:
                broken[entry.name] = reason
    if not sound:
        shown = "; ".join(f"{name}: {reason}" for name, reason in list(broken.items())[:5])
        faults.add(place, f"{path} holds no usable task." + (f" {shown}" if shown else ""))
        return []
    for name in sorted(broken.keys() & set(dataset.task_names or ())):
        faults.add([*place[:-1], "task_names"], f"The task {name} in {path} is broken: {broken.pop(name)}")
    return [f"{path / name} is skipped: {reason}" for name, reason in broken.items()]


def looks_like_task(folder: Path) -> bool:
    """Whether a folder is meant to be a task, be it a broken one."""
    return any((folder / sign).exists() for sign in _TASK_SIGNS)


def fault_of(folder: Path, *, disable_verification: bool) -> str:
    """Why Harbor would not run this task folder; "" when it would."""
    if not folder.is_dir():
        return "there is no such folder on the controller."
    if Task.is_valid_dir(folder, disable_verification=disable_verification):
        return ""
    if not (folder / "task.toml").is_file():
        return "it has no task.toml."
    try:
        Task(folder, disable_verification=disable_verification)
    except Exception as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        return " ".join(lines)[:300]
    return "it has neither an environment folder nor a docker_image."


def place_of(config: JobConfig, task: TaskConfig) -> list[str | int]:
    """Where in the configuration a task comes from."""
    for index, own in enumerate(config.tasks):
        if own == task:
            return ["tasks", index]
    for index, dataset in enumerate(config.datasets):
        names = (dataset.name, dataset.path.name if dataset.path else None)
        if task.source is not None and task.source in names:
            return ["datasets", index]
    return []


def _files(config: JobConfig | TrialConfig) -> Iterator[tuple[Any, Any, list[str | int]]]:
    """Every local file or folder but tasks: its holder, its key there, its place in the configuration."""
    for index in range(len(config.extra_instruction_paths)):
        yield config.extra_instruction_paths, index, ["extra_instruction_paths", index]
    compose = config.environment.extra_docker_compose
    for index in range(len(compose)):
        yield compose, index, ["environment", "extra_docker_compose", index]
    agents = config.agents if isinstance(config, JobConfig) else [config.agent]
    for number, agent in enumerate(agents):
        if agent.load_trajectory:
            yield agent, "load_trajectory", ["agents", number, "load_trajectory"]
        for index, skill in enumerate(agent.skills):
            if _is_local(skill):
                yield agent.skills, index, ["agents", number, "skills", index]
    if config.user_agent is not None:
        for key in ("user_persona_path", "user_prompt_template_path"):
            if getattr(config.user_agent, key) is not None:
                yield config.user_agent, key, ["user_agent", key]
        if config.user_agent.bridge.prompt_path is not None:
            yield config.user_agent.bridge, "prompt_path", ["user_agent", "bridge", "prompt_path"]


def _is_local(skill: str) -> bool:
    return skill.startswith(("/", "./", "../", "~"))


def _put(holder: Any, key: Any, value: Any) -> None:
    if isinstance(holder, list):
        holder[key] = value
    else:
        setattr(holder, key, value)


def pack(config: JobConfig) -> dict[str, dict[str, str]]:
    """The files besides tasks that trials need on workers: path to (relative path to content, base64).

    Raises:
        Faults: they are too many to travel inside the plan.
    """
    packed: dict[str, dict[str, str]] = {}
    total = 0
    for holder, key, place in _files(config):
        path = Path(holder[key] if isinstance(holder, list) else getattr(holder, key))
        files = [path] if path.is_file() else [item for item in sorted(path.rglob("*")) if item.is_file()]
        for item in files:
            if item != path and not item.resolve().is_relative_to(path.resolve()):
                faults = Faults()
                faults.add(place, f"{item} is a link that leads out of {path}.", "Replace it by a file of its own.")
                raise faults
        total += sum(item.stat().st_size for item in files)
        if total > _PACK_LIMIT:
            faults = Faults()
            faults.add(place, f"{path} is too large to travel with the plan (over {_PACK_LIMIT >> 20} MiB together).")
            raise faults
        packed[str(path)] = {
            ("" if item == path else str(item.relative_to(path))): _mode(item)
            + base64.b64encode(item.read_bytes()).decode()
            for item in files
        }
    return packed


def _mode(path: Path) -> str:
    return "x" if path.stat().st_mode & stat.S_IXUSR else "-"


def unpack(config: TrialConfig, packed: dict[str, dict[str, str]], folder: Path) -> None:
    """Write the packed files below ``folder`` and point the trial at them."""
    places = {path: folder / str(number) / Path(path).name for number, path in enumerate(packed)}
    for path, files in packed.items():
        for relative, content in files.items():
            target = places[path] / relative if relative else places[path]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(base64.b64decode(content[1:]))
            target.chmod(0o755 if content[0] == "x" else 0o644)
    for holder, key, _ in _files(config):
        value = holder[key] if isinstance(holder, list) else getattr(holder, key)
        if str(value) in places:
            _put(holder, key, places[str(value)] if isinstance(value, Path) else str(places[str(value)]))
