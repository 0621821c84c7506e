"""The ``sleep`` executor: trials of known duration with scripted endings, for tests and benchmarks. Starts no process.

::

    tasks: 6                    # task-1 ... task-6; or a list of names; or trials: N, the same with one attempt each
    attempts: 2                 # trials per task (1)
    seconds: 0.5                # of each task; or a list, taken in turn; or {min: 0.1, max: 2.0, seed: 7}
    estimate: 60                # what the plan says of each task, number or list (the true seconds)
    deadline: 30                # hard deadline of the platform, seconds (ten times the true ones, and a minute)
    reward: 1                   # number or list, taken in turn
    cpus: 1
    memory_mb: 256
    labels: {category: text}    # of every task
    agent: sleeper              # labels of the whole evaluation
    model: provider/name
    dataset: sleep
    fail:                       # task to endings: of each trial's first run, of its second...; then it is scored
      task-3: [die, infra, invalid, zero, hang, ok]
      task-5: die               # one word: every run

``die`` is a process without a result, ``infra`` a result of failed infrastructure, ``invalid`` one without a usable
reward, ``zero`` a score of 0, ``hang`` never ends by itself and does not listen to `stop`. The worker's speed is the
variable ``AEO_SLEEP_SPEED`` (1): a worker of speed 2 sleeps half as long.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from aeo.core.errors import ExecutorFailed, InputError
from aeo.core.model import Evaluation, Needs, Plan, PlannedTrial, Spec
from aeo.core.names import check_name
from aeo.executors import Executor, Session, SubmittedFile, TrialContext, folder, result
from aeo.executors.fields import Fields, Report, is_number
from aeo.executors.flat_form import N_, FlatForm
from aeo.executors.forms import Field
from aeo.executors.statistics import CANCELLED

ENDINGS = ("ok", "die", "infra", "invalid", "zero", "hang")
#: A worker's speed.
SPEED = "AEO_SLEEP_SPEED"
#: Seconds after which even a trial that hangs ends, so that no thread is lost for ever.
HANG_SECONDS = 3600.0
_KEYS = (
    "tasks",
    "trials",
    "attempts",
    "seconds",
    "estimate",
    "deadline",
    "reward",
    "cpus",
    "memory_mb",
    "labels",
    "agent",
    "model",
    "dataset",
    "fail",
)
_TRIAL_LIMIT = 200_000


def read(config: Mapping[str, Any], file: SubmittedFile) -> Plan:
    """Read a configuration into a plan.

    Raises:
        InputError: with one problem per fault.
    """
    fields = Fields(dict(config), (), Report(file), _KEYS)
    names = _names(fields)
    attempts = fields.whole("attempts", 1, least=1, most=1000)
    if len(names) * attempts > _TRIAL_LIMIT:
        fields.problem("attempts", f"make more than {_TRIAL_LIMIT} trials.")
        names = names[:1]
    seconds = _seconds(fields, len(names))
    estimates = _in_turn(fields, "estimate", len(names)) if "estimate" in fields else seconds
    rewards = _in_turn(fields, "reward", len(names), default=1.0, least=-1e9)
    deadline = fields.number("deadline", 0.0)
    needs = Needs(cpus=fields.number("cpus", 0.0), memory_mb=fields.whole("memory_mb", 0))
    own, labels, endings = fields.texts("labels"), _labels(fields), _endings(fields, names)
    fields.report.refuse()
    tasks = [
        folder.TaskPlan(
            name=name,
            estimated_seconds=estimate,
            deadline_seconds=deadline or time_ * 10 + 60,
            needs=needs,
            labels=own,
            payload={"seconds": time_, "reward": reward, "endings": endings.get(name, ["ok"])},
        )
        for name, time_, estimate, reward in zip(names, seconds, estimates, rewards, strict=True)
    ]
    return folder.plan(tasks, labels=labels, attempts=attempts)


def _names(fields: Fields) -> list[str]:
    if ("tasks" in fields) == ("trials" in fields):
        fields.problem("tasks", "give either tasks or trials.")
        return []
    key = "tasks" if "tasks" in fields else "trials"
    raw = fields.raw(key)
    if not isinstance(raw, list):
        count = fields.whole(key, 1, least=1, most=_TRIAL_LIMIT)
        return [f"task-{number}" for number in range(1, count + 1)]
    if key == "trials" or not raw or not all(isinstance(name, str) for name in raw):
        fields.problem(key, "must be a number, or tasks a list of names.")
        return []
    for index, name in enumerate(raw):
        try:
            check_name(name, "task name")
        except InputError as error:
            fields.problem(key, error.problems[0].message, error.problems[0].fix, below=index)
    if len(set(raw)) < len(raw):
        fields.problem(key, "names a task twice.")
    return raw


def _seconds(fields: Fields, count: int) -> list[float]:
    raw = fields.raw("seconds", 0.0)
    if not isinstance(raw, dict):
        return _in_turn(fields, "seconds", count)
    spread = Fields(raw, ("seconds",), fields.report, ("min", "max", "seed"))
    least, most = spread.number("min", 0.0), spread.number("max", 1.0)
    if least > most:
        spread.problem("min", "must not be more than max.")
    draw = random.Random(spread.whole("seed", 0))  # noqa: S311  (durations, no secrets)
    return [draw.uniform(least, most) for _ in range(count)]


def _in_turn(fields: Fields, key: str, count: int, *, default: float = 0.0, least: float = 0.0) -> list[float]:
    raw = fields.raw(key, default)
    values = raw if isinstance(raw, list) else [raw]
    if not values or not all(is_number(value) and least <= value <= 1e9 for value in values):
        fields.problem(key, f"must be a number of at least {least:g}, or a list of them.")
        return [default] * count
    return [float(values[index % len(values)]) for index in range(count)]


def _labels(fields: Fields) -> dict[str, str]:
    provider, _, model = fields.text("model").rpartition("/")
    labels = {"agent": fields.text("agent", "sleeper"), "dataset": fields.text("dataset", "sleep")}
    for key, value in labels.items():
        if not value or "__" in value or "/" in value:
            fields.problem(key, "must be a name without '/' and double underscores.")
    return {**labels, **({"model": model} if model else {}), **({"provider": provider} if provider else {})}


def _endings(fields: Fields, names: list[str]) -> dict[str, Any]:
    raw = fields.raw("fail", {})
    if not isinstance(raw, dict):
        fields.problem("fail", "must be a mapping of task names to endings.")
        return {}
    known = set(names)
    for name, endings in raw.items():
        if name not in known:
            fields.problem("fail", "is no task of this evaluation.", below=str(name))
        for ending in endings if isinstance(endings, list) else [endings]:
            if ending not in ENDINGS:
                fields.problem("fail", f"{ending!r} is no ending.", f"Known: {', '.join(ENDINGS)}.", below=str(name))
    return raw


class SleepSession:
    """Sleeps, one trial after the other."""

    def __init__(self, evaluation: Evaluation, speed: float):
        self._evaluation = evaluation
        self._speed = speed
        self._running = False
        self._reason = ""
        self._lock = threading.Lock()
        self._stop = threading.Event()

    def run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        """See `aeo.executors.Session`."""
        with self._lock:
            self._stop.clear()
            self._running = True
        try:
            self._run(trial, context, on_event)
        finally:
            with self._lock:
                self._running = False

    def _run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        ending = _ending(trial, context.attempt)
        result.begin(context.trial_dir, self._evaluation, trial, context.final_dir)
        on_event("agent")
        started = datetime.now(timezone.utc)
        stopped = self._sleep(trial.payload["seconds"] / self._speed, listening=ending != "hang")
        if not stopped and ending in ("die", "hang"):
            raise ExecutorFailed(f"{trial.name} died, as its configuration says.")
        finished = datetime.now(timezone.utc)
        rewards, error_type, message = (
            _cancelled(self._reason) if stopped else _RESULTS[ending](trial.payload["reward"])
        )
        result.finish(
            context.trial_dir,
            self._evaluation,
            trial,
            context.final_dir,
            result.Ending(
                started_at=started,
                finished_at=finished,
                rewards=rewards,
                error_type=error_type,
                error_message=message,
                phases={"agent": (started, finished)},
            ),
        )

    def _sleep(self, seconds: float, *, listening: bool) -> bool:
        """Returns whether it was stopped."""
        if not listening:
            time.sleep(HANG_SECONDS)
            return False
        return self._stop.wait(seconds) if seconds > 0 else self._stop.is_set()

    def stop(self, reason: str, grace_seconds: float = 0.0) -> None:  # noqa: ARG002
        """See `aeo.executors.Session`."""
        with self._lock:
            if self._running:
                self._reason = reason or "stopped"
                self._stop.set()

    def close(self) -> None:
        """See `aeo.executors.Session`."""


_Result = tuple[Mapping[str, float] | None, str, str]
_RESULTS: Mapping[str, Callable[[float], _Result]] = {
    "ok": lambda reward: ({"reward": reward}, "", ""),
    "zero": lambda _: ({"reward": 0.0}, "", ""),
    "infra": lambda _: (None, "EnvironmentStartTimeoutError", "The environment did not start, as configured."),
    "invalid": lambda _: (None, result.REWARD_MISSING, "No reward was left, as configured."),
}


def _cancelled(reason: str) -> _Result:
    return None, CANCELLED, reason


def _ending(trial: PlannedTrial, attempt: int) -> str:
    endings = trial.payload["endings"]
    if isinstance(endings, str):
        return endings
    return str(endings[attempt - 1]) if attempt <= len(endings) else "ok"


class Sleep:
    """See `aeo.executors.Executor`."""

    name = "sleep"
    carrier = folder.FlatCarrier()
    form = FlatForm(
        fields=(
            Field(name="tasks", label=N_("Number of tasks"), group="tasks", kind="whole"),
            Field(name="seconds", label=N_("Seconds of each task"), group="tasks", default="0"),
            Field(name="reward", label=N_("Reward"), group="tasks", default="1"),
            Field(name="cpus", label=N_("CPUs of each trial"), group="tasks", default="0"),
            Field(name="memory_mb", label=N_("Memory of each trial (MiB)"), group="tasks", kind="whole", default="0"),
        )
    )

    def version(self) -> str:
        return ""

    def config_name(self, config: Mapping[str, Any]) -> str:  # noqa: ARG002
        return ""

    def plan(self, spec: Spec, file: SubmittedFile) -> Plan:
        return read(spec.config, file)

    def open(self, evaluation: Evaluation, workdir: Path) -> Session:  # noqa: ARG002
        speed = float(os.environ.get(SPEED) or 1.0)
        return SleepSession(evaluation, speed if speed > 0 else 1.0)

    fail = staticmethod(folder.fail)
    summarise = staticmethod(result.summarise)
    start_job = staticmethod(folder.start)
    refresh_job = staticmethod(folder.refresh_job)
    merge = staticmethod(folder.merge)

    def sweep(self, workdir: Path) -> None:
        """Nothing is left by a session without processes."""


executor: Executor = Sleep()
