"""Which of a trial's files are what: Harbor's folder, with its steps and its simulated user."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from aeo.executors.views import TrialFiles, logs, part

_STEPS = "steps/"


def views(names: Collection[str]) -> TrialFiles:
    """See `aeo.executors.views`."""
    whole = part(names)
    user = tuple(path for path in names if path == "user-agent/trajectory.json")
    steps = sorted({path.split("/")[1] for path in names if path.startswith(_STEPS) and path.count("/") > 1})
    return TrialFiles(
        parts=(
            replace(whole, trajectories=(*whole.trajectories, *user)),
            *(part(names, name=step, prefix=f"{_STEPS}{step}/") for step in steps),
        ),
        logs=logs(names, "agent/", "user-agent/", _STEPS, "trial.log", "verifier/"),
        error="exception.txt" * ("exception.txt" in names),
    )
