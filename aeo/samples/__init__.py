"""Small evaluations that ship with AEO: for ``aeo demo``, for trying a set-up, for tests."""

from __future__ import annotations

from pathlib import Path


def harbor_tasks() -> Path:
    """A dataset of eight tiny tasks in Harbor's format; runs in containers and without."""
    return Path(__file__).parent / "harbor"


def command_config() -> Path:
    """A configuration of the ``command`` executor in the same spirit, under our own header."""
    return Path(__file__).parent / "command" / "demo.yaml"
