"""Executor plug-ins: what turns a configuration into trials, runs one, and merges the results.

The kernel knows only this protocol. A plug-in is found by the entry point group ``aeo.executors``; the entry point is
an object with these members (a module-level instance).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Protocol

from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Needs, Plan, PlannedTrial, Spec, TrialRow, TrialSummary

GROUP = "aeo.executors"
#: The executor a configuration without our header is meant for: what people hand to ``harbor run``.
PLAIN = "harbor"


@dataclass(frozen=True, kw_only=True)
class SubmittedFile:
    """What the user handed in, so that errors can name the line."""

    #: As the user named it; for messages only.
    name: str = ""
    #: The text, for line numbers; empty when the configuration came as JSON from a program.
    text: str = ""
    #: Absolute folder that relative paths in the configuration start from; "" means they are refused.
    folder: str = ""


@dataclass(frozen=True, kw_only=True)
class TrialContext:
    """Where one trial runs on a worker."""

    #: The trial folder to fill, in Harbor's layout; it exists and is empty.
    trial_dir: Path
    #: The trial's content folder (``tasks/<digest>/<name>``) on this worker; None if it needs none.
    content_dir: Path | None
    #: The controller's path of the same trial folder: what the results must name.
    final_dir: str
    #: 1 for the trial's first run.
    attempt: int = 1
    #: Variables for the processes of this trial, and for nothing else: they hold secrets. Not for the disk, an argument
    #: or a log; another trial of the same session may get others.
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Where each of the plan's assets lies on this worker, by its path there (see `aeo.executors.assets`).
    assets: Mapping[str, Path] = field(default_factory=dict)


class Session(Protocol):
    """A batch's hold on an executor: may keep a helper process between trials. Used by one thread at a time,
    except `stop`."""

    def run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        """Run one trial to its end and leave its whole folder, ``result.json`` last.

        ``on_event`` is told the phase that begins (``environment``, ``agent``, ``verifier``...).

        Raises:
            ExecutorFailed: the trial has no result: its process died or was stopped. The session restarts what it needs
                at the next `run`.
            Unavailable: this worker cannot run trials now. The trial is given back uncounted and the batch ends.
        """

    def stop(self, reason: str, grace_seconds: float) -> None:
        """End the trial that runs, from another thread: SIGTERM to its process group, SIGKILL after ``grace_seconds``.

        `run` then returns (with a result that says cancelled) or raises within that time. Does nothing when none runs.
        """

    def close(self) -> None:
        """End the helper processes. Never raises."""


class Executor(Protocol):
    """One kind of evaluation."""

    name: str

    def version(self) -> str:
        """The version workers must share for one evaluation; "" if it does not matter.

        Raises:
            Unavailable: the executor cannot run on this machine (says what to install).
        """

    def config_name(self, config: Mapping[str, Any]) -> str:
        """The job name the configuration itself asks for; "" if none."""

    def plan(self, spec: Spec, file: SubmittedFile) -> Plan:
        """Resolve the configuration into trials. Creates nothing that outlives a failure.

        Raises:
            InputError: with one problem per fault, each naming its field or line.
            ExecutorFailed: the executor's own process failed.
        """

    def open(self, evaluation: Evaluation, workdir: Path) -> Session:
        """Open a session on a worker. ``workdir`` is the batch's own scratch folder; ``evaluation.plan.trials`` may be
        empty here, the header is complete."""

    def fail(
        self, evaluation: Evaluation, trial: PlannedTrial, context: TrialContext, error_type: str, message: str
    ) -> None:
        """Write the folder of a trial that got no result of its own: a result with this error, nothing scored.

        Called on a worker or on the controller.
        """

    def summarise(self, trial: PlannedTrial, trial_dir: Path) -> TrialSummary:
        """Read a finished trial folder from anywhere, trusting nothing in it.

        Raises:
            InputError: it is no result, or not this trial's.
        """

    def start_job(self, evaluation: Evaluation, job_dir: Path) -> None:
        """Write the job folder's own files into the existing ``job_dir``. Idempotent."""

    def refresh_job(self, evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
        """Bring the running job's ``result.json`` up to date, atomically. Called every few seconds at most."""

    def merge(self, evaluation: Evaluation, job_dir: Path, progress: JobProgress) -> None:
        """Close the job: final statistics over the trial folders in ``job_dir``. Idempotent."""

    def sweep(self, workdir: Path) -> None:
        """Remove what dead sessions under ``workdir`` left: processes, containers, mounts. Never touches live ones.

        Raises:
            ExecutorFailed: something of them may live on.
        """


@dataclass(frozen=True, kw_only=True)
class JobProgress:
    """What the job's summary file is made from while it runs."""

    #: Committed trials in commit order.
    rows: tuple[TrialRow, ...] = ()
    #: Names of trials that run now.
    running: tuple[str, ...] = ()
    #: How many runs were repeated.
    requeues: int = 0
    #: Why the evaluation's own rule stopped it early; empty if it did not. The closed job says so.
    stopped: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class TaskInfo:
    """One task of a dataset, as its executor reads it."""

    name: str
    #: ``category``, ``difficulty``, as far as the task says.
    labels: Mapping[str, str] = field(default_factory=dict)
    needs: Needs = field(default_factory=Needs)
    #: MiB; 0 means not declared.
    storage_mb: int = 0
    #: Phase to its time-out in seconds, before any factor: ``agent``, ``verifier``...
    timeouts: Mapping[str, float] = field(default_factory=dict)
    #: Hexadecimal digest of the content, as the executor's own tools compute it.
    digest: str = ""
    #: Key of the content folder on workers (see `ContentFolder`); empty if there is none.
    content: str = ""
    #: Its folder's name below the dataset's; empty if it has none of its own.
    folder: str = ""
    #: Why it cannot be run; empty if it can.
    problem: str = ""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where a dataset comes from."""

    #: Absolute path on the controller; None when it is in a registry and not here.
    path: Path | None = None
    #: Name and version in a registry; empty for one that is only a path.
    reference: str = ""
    #: Which registry: the executor's own words; empty for its usual one.
    registry: str = ""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A program to start."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    #: One JSON document for its standard input.
    request: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Listed:
    """What a dataset has by its registry, as far as this machine knows without asking it."""

    #: Who says so, in words.
    by: str
    #: Folder of each task to its digest, as in `TaskInfo`; "" where only the name is known. Empty: only the number is.
    tasks: Mapping[str, str] = field(default_factory=dict)
    total: int | None = None


class Datasets(Protocol):
    """What an executor may offer beside running trials, as its member ``datasets``: it knows sets of tasks.

    A download is a program of its own, so that it goes on whatever becomes of the process that started it. It prints
    JSON lines: ``{"total": N}``, ``{"done": NAME}`` for each task, ``{"note": TEXT}``, and last ``{"finished": {}}`` or
    ``{"failed": {"message": TEXT, "fix": TEXT}}``. SIGTERM ends it. Started again with the same folders it goes on with
    what is there; names printed as done before are in ``done``.

    A method ``listed`` of a source is optional: it returns a `Listed`, or None.
    """

    #: Configured out of the box: name to reference.
    defaults: Mapping[str, str]

    def tasks(self, path: Path) -> tuple[TaskInfo, ...]:
        """Read what lies at ``path``, the broken tasks too.

        Raises:
            InputError: it is no dataset, or has no tasks.
            Unavailable: the executor is not here, or its process failed.
        """

    def check(self, source: Source) -> None:
        """See that a reference can be one, without asking any registry.

        Raises:
            InputError: names ``reference`` or ``registry``; or this executor has no registries.
        """

    def config(self, source: Source) -> Mapping[str, Any]:
        """The part of a configuration that means this dataset, from where it is."""

    def label(self, source: Source) -> str:
        """The ``dataset`` label of trials planned with `config`."""

    def download(self, source: Source, folder: Path, staging: Path, done: Sequence[str]) -> Command:
        """The program that fetches into ``staging`` (on the same disk) and at its end puts it in the place of
        ``folder``, whatever was there."""


def datasets_of(executor: Executor) -> Datasets | None:
    """What an executor knows of datasets; None when it does not know any."""
    found: Datasets | None = getattr(executor, "datasets", None)
    return found


def viewer_of(executor: Executor, jobs_dir: Path, host: str, port: int) -> Command | None:
    """The program that shows merged jobs in a browser; None where the executor has none.

    An executor may offer it by a method ``viewer`` of the folder of jobs, the address and the port.
    """
    offer = getattr(executor, "viewer", None)
    if offer is None:
        return None
    command: Command = offer(jobs_dir, host, port)
    return command


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """A secret that trials will look for in their environment."""

    #: Names of variables, any of which will do.
    any_of: tuple[str, ...]
    #: Who looks for it, as a sentence begins: a place in the configuration, or an agent.
    by: str
    #: The configuration names it: without it nothing runs. Otherwise it is what such an agent usually needs.
    required: bool = False


def wanted(executor: Executor, spec: Spec, plan: Plan | None) -> tuple[Wanted, ...]:
    """Secrets that trials will look for, as far as the configuration says; without a plan perhaps fewer.

    An executor may tell by a method of this name that takes spec and plan.
    """
    tell = getattr(executor, "wanted", None)
    return tuple(tell(spec, plan)) if tell is not None else ()


def max_starting(executor: Executor, evaluation: Evaluation) -> int:
    """Trials of an evaluation that should be in their environment phase at once on a worker; 0 is any number.

    An executor may say so by a method of this name that takes the evaluation.
    """
    advice = getattr(executor, "max_starting", None)
    return int(advice(evaluation)) if advice is not None else 0


@cache
def load(name: str) -> Executor:
    """Return the installed executor of this name.

    Raises:
        InputError: none is installed under it; the message lists those that are.
    """
    found = {point.name: point for point in entry_points(group=GROUP)}
    if name not in found:
        raise InputError(
            f"No executor {name!r} is installed.",
            field="executor",
            fix=f"Installed: {', '.join(sorted(found)) or 'none'}. Plug-ins register as entry points of {GROUP!r}.",
        )
    executor: Executor = found[name].load()
    return executor


def installed() -> tuple[str, ...]:
    """Names of the installed executors."""
    return tuple(sorted({point.name for point in entry_points(group=GROUP)}))
