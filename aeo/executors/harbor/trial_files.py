"""A planned trial's own files, put together from the plan's header and the trial's payload."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aeo.core.model import PlannedTrial

#: Key under which the driver's planning puts a document that has other keys than its template.
WHOLE = "*"


def config(header: Mapping[str, Any], trial: PlannedTrial, final_dir: str) -> dict[str, Any]:
    """``config.json`` of a trial whose folder will lie at ``final_dir``."""
    whole = _apply(header["agents"][trial.payload["agent"]]["config"], trial.payload["config"])
    return {**whole, "trials_dir": str(Path(final_dir).parent)}


def lock(header: Mapping[str, Any], trial: PlannedTrial) -> dict[str, Any]:
    """``lock.json`` of a trial."""
    return _apply(header["agents"][trial.payload["agent"]]["lock"], trial.payload["lock"])


def agent_info(header: Mapping[str, Any], trial: PlannedTrial) -> dict[str, Any]:
    """``agent_info`` for a trial whose agent never came up."""
    info: dict[str, Any] = header["agents"][trial.payload["agent"]]["info"]
    return info


def _apply(template: Mapping[str, Any], difference: Mapping[str, Any]) -> dict[str, Any]:
    if WHOLE in difference:
        return dict(difference[WHOLE])
    return {**template, **difference}
