"""Plans an evaluation through the driver."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aeo import codec
from aeo.core.errors import InputError, Problem
from aeo.core.model import ContentFolder, Needs, Plan, PlannedTrial, Spec
from aeo.core.names import check_name
from aeo.executors import SubmittedFile, source, variables
from aeo.executors.harbor import assets, drivers, secrets


def plan(spec: Spec, file: SubmittedFile) -> Plan:
    """See `aeo.executors.Executor.plan`."""
    check_name(spec.name, "job name", field="name")
    config = codec.encode(spec.config)
    _refuse_secrets(config, file)
    answer = drivers.call(
        "plan",
        {
            "config": assets.settled(config, file.folder),
            "name": spec.name,
            "folder": file.folder,
            "agent_timeout_multiplier": spec.agent_timeout_multiplier,
        },
    )
    if "faults" in answer:
        raise InputError(problems=tuple(_problem(fault, file) for fault in answer["faults"]))
    said, env_file = answer["ok"], assets.env_file(config, file.folder)
    return Plan(
        trials=tuple(_trial(trial) for trial in said["trials"]),
        contents=tuple(ContentFolder(**content) for content in said["contents"]),
        header={
            **said["header"],
            **({"env_file": env_file, "env_names": variables.names(Path(env_file))} if env_file else {}),
        },
        version=said["version"],
        warnings=(*said["warnings"], *assets.notes(config)),
    )


def _refuse_secrets(config: Mapping[str, Any], file: SubmittedFile) -> None:
    found = secrets.find(config)
    if found:
        raise InputError(problems=tuple(_secret(item, file) for item in found))


def _secret(found: secrets.Found, file: SubmittedFile) -> Problem:
    name = str(found.path[-1]).upper() if found.resolvable else "NAME"
    if not name.isidentifier():
        name = "NAME"
    here = f"Write ${{{name}}} and set it once: `aeo secrets set {name}`, or in each worker's environment."
    elsewhere = "Move it to an 'env' as NAME: ${NAME}; `aeo secrets set NAME`, or set it in each worker's environment."
    return Problem(
        message="holds a secret, which would be stored with the plan and with every result.",
        field=source.place(file.name, file.text, found.path),
        fix=here if found.resolvable else elsewhere,
    )


def _problem(fault: Mapping[str, Any], file: SubmittedFile) -> Problem:
    return Problem(
        message=str(fault["message"]),
        field=source.place(file.name, file.text, fault["path"]),
        fix=str(fault["fix"]),
    )


def _trial(said: Mapping[str, Any]) -> PlannedTrial:
    return PlannedTrial(**{**said, "needs": Needs(**said["needs"])})
