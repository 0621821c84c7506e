"""The bundled tasks can be run by Harbor with and without containers; real runs of them are in the acceptance tests."""

from __future__ import annotations

import os

import pytest

from aeo import samples

try:
    import tomllib
except ImportError:
    import tomli as tomllib  # type: ignore[no-redef]

TASKS = sorted(samples.harbor_tasks().iterdir())


def test_there_are_enough():
    assert len(TASKS) >= 6
    assert samples.command_config().is_file()


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_complete(task):
    config = tomllib.loads((task / "task.toml").read_text())
    parts = [task / "steps" / step["name"] for step in config.get("steps", [])] or [task]
    for part in parts:
        assert (part / "instruction.md").read_text().strip()
        for script in (part / "solution/solve.sh", part / "tests/test.sh"):
            assert os.access(script, os.X_OK)
            assert script.read_text().startswith("#!/bin/sh\n")
    assert "init: true" in (task / "environment/docker-compose.yaml").read_text()
    assert "FROM debian:bookworm" in (task / "environment/Dockerfile").read_text()
    # Environments without containers have no other folders, and know whole processors only.
    assert isinstance(config["environment"]["cpus"], int)


def test_every_kind_of_ending_is_there():
    rewards = {task.name: "".join(path.read_text() for path in task.rglob("test.sh")) for task in TASKS}
    assert any("reward.json" in text for text in rewards.values())
    assert [name for name, text in rewards.items() if "/logs/verifier" not in text] == ["no-reward"]
    assert [task.name for task in TASKS if (task / "steps").is_dir()] == ["two-steps"]
