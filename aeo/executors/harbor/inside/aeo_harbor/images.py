"""Which images Harbor's docker environment would start a task from: asked of that environment itself."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from harbor.environments.definition import should_use_prebuilt_docker_image
from harbor.environments.docker.docker import DockerEnvironment
from harbor.models.task.config import EnvironmentConfig
from harbor.models.task.task import Task
from harbor.models.task.verifier_mode import resolve_verifier_environment_definition
from harbor.models.trial.paths import TrialPaths


def images(request: Mapping[str, Any]) -> dict[str, Any]:
    """For each of ``folders``: how compose is called for its environments, or why that is not known."""
    found, problems = [], {}
    for folder in map(Path, request["folders"]):
        try:
            found += [{"task": folder.name, **call} for call in _calls(folder)]
        except Exception as error:  # whatever a folder from outside does to the libraries that read it
            problems[folder.name] = " ".join(str(error).split())[:300] or type(error).__name__
    return {"calls": found, "problems": problems}


def _calls(folder: Path) -> Iterator[dict[str, Any]]:
    task = Task(folder)
    # Harbor builds nothing for one that names an image; a verifier's environment is often the agent's.
    yielded: list[dict[str, Any]] = []
    for directory, config in _environments(task):
        call = _call(task, directory, config)
        if call not in yielded:
            yielded.append(call)
            yield call


def _environments(task: Task) -> Iterator[tuple[Path, EnvironmentConfig]]:
    yield task.paths.environment_dir, task.config.environment
    for step in task.config.steps or [None]:
        definition = resolve_verifier_environment_definition(task.config, task.paths, step)
        if definition is not None:
            yield definition.directory, definition.config


def _call(task: Task, directory: Path, config: EnvironmentConfig) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        environment = DockerEnvironment(
            environment_dir=directory,
            environment_name=task.short_name,
            session_id="ahead",
            # Only named: nothing is mounted, as nothing is started.
            trial_paths=TrialPaths(Path(scratch)),
            task_env_config=config,
        )
        environment._use_prebuilt = should_use_prebuilt_docker_image(
            directory, docker_image=config.docker_image, force_build=False
        )
        return {
            # Harbor's name for the image of this content.
            "name": environment._main_image_name,
            "directory": str(directory.resolve()),
            "files": [str(path.resolve()) for path in environment._docker_compose_paths],
            "env": {
                name: value.replace(scratch, "/tmp/aeo")  # noqa: S108 - so that two of one content are alike
                for name, value in environment._compose_env_vars(include_os_env=False).items()
            },
        }
