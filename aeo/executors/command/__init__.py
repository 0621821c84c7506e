"""The ``command`` executor: each task is a command of the worker, rated by its exit code, output or a reward file.

Commands run as the worker's own user, in a fresh folder, without any isolation beyond that. The configuration is
described in `aeo.executors.command.tasks`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from aeo import codec
from aeo.core.model import Evaluation, Needs, Plan, Spec
from aeo.executors import Executor, Session, SubmittedFile, Wanted, folder, result
from aeo.executors.command import session, tasks
from aeo.executors.command.datasets import CommandDatasets
from aeo.executors.flat_form import N_, FlatForm
from aeo.executors.forms import Field
from aeo.executors.secrets import references

#: Seconds beyond a task's own time-out until the platform's deadline.
_MARGIN_SECONDS = 60.0


class Command:
    """See `aeo.executors.Executor`."""

    name = "command"
    form = FlatForm(
        dataset_key="tasks_file",
        dataset_help=N_("absolute path of a tasks file (YAML or JSONL) on the controller"),
        fields=(
            Field(name="dataset", label=N_("Dataset's name"), group="tasks", kind="text", default="command"),
            Field(name="timeout_sec", label=N_("Seconds per task"), group="time", default="600"),
        ),
    )
    datasets = CommandDatasets()
    carrier = folder.FlatCarrier(timeouts=True)

    def version(self) -> str:
        return ""

    def config_name(self, config: Mapping[str, Any]) -> str:  # noqa: ARG002
        return ""

    def plan(self, spec: Spec, file: SubmittedFile) -> Plan:
        read = tasks.read(spec.config, file)
        factor = spec.agent_timeout_multiplier or 1.0
        planned = [
            folder.TaskPlan(
                name=task.name,
                estimated_seconds=task.timeout_seconds * factor,
                deadline_seconds=task.timeout_seconds * factor + _MARGIN_SECONDS,
                needs=Needs(cpus=task.cpus, memory_mb=task.memory_mb),
                labels=task.labels,
                payload={"task": codec.encode(task)},
            )
            for task in read.tasks
        ]
        return folder.plan(planned, labels=read.labels, attempts=read.attempts)

    def wanted(self, spec: Spec, plan: Plan | None) -> Iterator[Wanted]:
        """The secrets that tasks refer to, as ``${NAME}``."""
        tasks_of = spec.config.get("tasks")
        places = [("env", spec.config.get("env"))]
        places += [
            (f"tasks[{index}].env", task.get("env"))
            for index, task in enumerate(tasks_of if isinstance(tasks_of, (list, tuple)) else ())
            if isinstance(task, Mapping)
        ]
        if plan is not None:
            # Those of a file of tasks, too.
            places += [(f"task {trial.task}", trial.payload["task"].get("env")) for trial in plan.trials]
        yield from references(places)

    def open(self, evaluation: Evaluation, workdir: Path) -> Session:
        return session.CommandSession(evaluation, workdir)

    fail = staticmethod(folder.fail)
    summarise = staticmethod(result.summarise)
    start_job = staticmethod(folder.start)
    refresh_job = staticmethod(folder.refresh_job)
    merge = staticmethod(folder.merge)
    sweep = staticmethod(session.sweep)


executor: Executor = Command()
