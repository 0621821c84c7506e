"""Running the tasks of one batch, each in a fresh folder of its own, and rating what they leave."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from uuid import uuid4

from aeo import codec
from aeo.core.errors import ExecutorFailed
from aeo.core.model import Evaluation, PlannedTrial
from aeo.executors import TrialContext, result
from aeo.executors.command import rating
from aeo.executors.command.tasks import Task
from aeo.executors.fields import REFERENCE
from aeo.executors.process import Child, Exit, kill_marked
from aeo.executors.statistics import CANCELLED

#: Bytes kept of each output, the end aside.
OUTPUT_LIMIT = 4 * 1024 * 1024
#: Seconds between SIGTERM and SIGKILL.
GRACE_SECONDS = 5.0
#: Variable that marks every process of a run, so that those which left their group are found.
MARK = "AEO_RUN"
LOCK = "session.lock"
#: Variables of the worker that commands get; all else, its tokens among it, stays out.
_INHERITED = (
    "PATH",
    "HOME",
    "USER",
    "LOGNAME",
    "SHELL",
    "LANG",
    "LC_ALL",
    "TZ",
    "TMPDIR",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
)
_INHERITED_ANY_CASE = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY")
#: Shorter values are not looked for in outputs: they would be found everywhere.
_SHORTEST_SECRET = 6


class NotStarted(Exception):
    """The command could not be started here; another worker may be able to."""

    def __init__(self, error_type: str, message: str):
        self.error_type = error_type
        super().__init__(message)


@dataclass(frozen=True, kw_only=True)
class _Place:
    """Where one run happens."""

    workdir: Path
    cwd: Path
    env: Mapping[str, str] = field(repr=False)
    #: Variable to value, to be kept out of the trial folder.
    secrets: Mapping[str, str] = field(repr=False)
    #: The command's own files in the trial folder.
    output: Path


class CommandSession:
    """Runs commands one after the other."""

    def __init__(self, evaluation: Evaluation, workdir: Path):
        workdir.mkdir(parents=True, exist_ok=True)
        self._evaluation = evaluation
        self._workdir = workdir
        self._mark = uuid4().hex
        self._lock = threading.Lock()
        self._child: Child | None = None
        self._running = False
        self._stopped = ""
        # Held as long as this process lives: tells `sweep` that the session does.
        self._file = (workdir / LOCK).open("w", encoding="utf-8")
        fcntl.flock(self._file, fcntl.LOCK_EX)
        self._file.write(self._mark)
        self._file.flush()

    def run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        """See `aeo.executors.Session`."""
        with self._lock:
            self._running, self._stopped = True, ""
        workdir: Path | None = None
        try:
            workdir = Path(tempfile.mkdtemp(prefix=f"{trial.task[:32]}-", dir=self._workdir))
            self._run(trial, context, on_event, workdir)
        except OSError as error:
            raise ExecutorFailed(f"The folders of the trial could not be written: {error}") from error
        finally:
            with self._lock:
                self._running, self._child = False, None
            kill_marked(lambda value: value == self._mark, MARK)
            if workdir is not None:
                _remove(workdir)

    def _run(self, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None], workdir: Path) -> None:
        task = codec.decode(Task, trial.payload["task"])
        result.begin(context.trial_dir, self._evaluation, trial, context.final_dir)
        on_event("agent")
        started = _now()
        try:
            place = self._place(task, trial, context, workdir)
            end = self._execute(task, place)
        except NotStarted as error:
            rated = rating.Rating(error_type=error.error_type, error_message=str(error))
            self._finish(trial, context, rated, started, _now(), {})
            return
        ended = _now()
        on_event("verifier")
        rated = self._rate(task, place, end, context.trial_dir)
        _redact(place)
        metadata = {"exit_code": end.code, "output_bytes_left_out": end.dropped}
        self._finish(trial, context, rated, started, ended, metadata)

    def _place(self, task: Task, trial: PlannedTrial, context: TrialContext, workdir: Path) -> _Place:
        cwd = workdir / task.cwd  # an absolute one replaces the folder
        if not os.path.isabs(task.cwd):  # noqa: PTH117
            cwd.mkdir(parents=True, exist_ok=True)
        if not cwd.is_dir():
            raise NotStarted("FolderMissingError", f"There is no folder {task.cwd} on this worker.")
        output = context.trial_dir / "agent" / "command-0"
        output.mkdir(parents=True)
        names = {name for value in task.env.values() for name in REFERENCE.findall(value)}
        known = {**{name: os.environ[name] for name in names if name in os.environ}, **context.environment}
        missing = sorted(names - known.keys())
        if missing:
            raise NotStarted("VariableMissingError", f"Not set in this worker's environment: {', '.join(missing)}.")
        own = {name: REFERENCE.sub(lambda match: known[match[1]], value) for name, value in task.env.items()}
        return _Place(
            workdir=workdir,
            cwd=cwd,
            env={**_inherited(), **context.environment, **own, **self._variables(trial, context, workdir)},
            secrets={name: known[name] for name in {*names, *context.environment}},
            output=output,
        )

    def _variables(self, trial: PlannedTrial, context: TrialContext, workdir: Path) -> dict[str, str]:
        return {
            "AEO_EVALUATION": self._evaluation.id,
            "AEO_TRIAL": trial.name,
            "AEO_TASK": trial.task,
            "AEO_ATTEMPT": str(context.attempt),
            "AEO_WORKDIR": str(workdir),
            "AEO_AGENT": trial.labels.get("agent", ""),
            "AEO_MODEL": result.full_model(trial.labels) or "",
            MARK: self._mark,
        }

    def _execute(self, task: Task, place: _Place) -> Exit:
        result.write_text(place.output / "command.txt", (task.argv[-1] if task.shell else repr(list(task.argv))) + "\n")
        factor = self._evaluation.spec.agent_timeout_multiplier or 1.0
        try:
            child = Child(
                task.argv,
                cwd=place.cwd,
                env=place.env,
                stdout=place.output / "stdout.txt",
                stderr=place.output / "stderr.txt",
                limit=OUTPUT_LIMIT,
                grace_seconds=GRACE_SECONDS,
            )
        except FileNotFoundError:
            raise NotStarted(rating.NOT_FOUND, f"There is no program {task.argv[0]!r} on this worker.") from None
        except OSError as error:
            raise NotStarted("CommandStartError", f"{task.argv[0]!r} could not be started: {error.strerror}.") from None
        with self._lock:
            self._child = child
            if self._stopped:
                child.stop(self._stopped)
        return child.wait(task.timeout_seconds * factor)

    def _rate(self, task: Task, place: _Place, end: Exit, trial_dir: Path) -> rating.Rating:
        if end.stopped or self._stopped:
            return rating.Rating(error_type=CANCELLED, error_message=end.stopped or self._stopped)
        rated = _shown(rating.rate(task, end, place.cwd, place.output / "stdout.txt", place.env), place.secrets)
        verifier = trial_dir / "verifier"
        verifier.mkdir()
        result.write_text(verifier / "test-stdout.txt", rated.notes + "\n")
        if rated.rewards:
            result.write_json(verifier / "reward.json", rated.rewards)
        return rated

    def _finish(
        self,
        trial: PlannedTrial,
        context: TrialContext,
        rated: rating.Rating,
        started: datetime,
        ended: datetime,
        metadata: Mapping[str, int],
    ) -> None:
        finished = _now()
        ending = result.Ending(
            started_at=started,
            finished_at=finished,
            rewards=rated.rewards,
            error_type=rated.error_type,
            error_message=rated.error_message,
            phases={"agent": (started, ended), "verifier": (ended, finished)},
            metadata=metadata,
        )
        result.finish(context.trial_dir, self._evaluation, trial, context.final_dir, ending)

    def stop(self, reason: str, grace_seconds: float = GRACE_SECONDS) -> None:
        """See `aeo.executors.Session`."""
        with self._lock:
            if self._running:
                self._stopped = reason or "stopped"
                if self._child is not None:
                    self._child.stop(self._stopped, grace_seconds)

    def close(self) -> None:
        """See `aeo.executors.Session`."""
        with suppress(OSError):
            (self._workdir / LOCK).unlink(missing_ok=True)
            self._file.close()


def sweep(workdir: Path) -> None:
    """Kill what dead sessions in ``workdir`` or in its sub-folders left running."""
    for path in (workdir / LOCK, *workdir.glob(f"*/{LOCK}")):
        with suppress(OSError), path.open("r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while the session lives
            mark = file.read()
            if mark:
                kill_marked(lambda value, mark=mark: value == mark, MARK)  # type: ignore[misc]
            path.unlink()


def _inherited() -> dict[str, str]:
    names = {*_INHERITED, *(name for name in os.environ if name.upper() in _INHERITED_ANY_CASE)}
    return {name: os.environ[name] for name in names if name in os.environ}


def _redact(place: _Place) -> None:
    """Replace the values of referenced variables in the outputs, should the command have shown them."""
    for path in (place.output / "stdout.txt", place.output / "stderr.txt"):
        content = shown = path.read_bytes()
        for name, value in place.secrets.items():
            if len(value) >= _SHORTEST_SECRET:
                shown = shown.replace(os.fsencode(value), f"${{{name}}}".encode())
        if shown != content:
            path.write_bytes(shown)


def _shown(rated: rating.Rating, secrets: Mapping[str, str]) -> rating.Rating:
    """The rating without secrets: messages and names of rewards come from what the command wrote."""
    rewards = rated.rewards and {_without(name, secrets): value for name, value in rated.rewards.items()}
    return replace(
        rated,
        rewards=rewards,
        error_message=_without(rated.error_message, secrets),
        notes=_without(rated.notes, secrets),
    )


def _without(text: str, secrets: Mapping[str, str]) -> str:
    for name, value in secrets.items():
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, f"${{{name}}}")
    return text


def _remove(folder: Path) -> None:
    def allow(_call: object, path: str, _error: object) -> None:
        # A task may have taken its own rights away.
        with suppress(OSError):
            Path(path).parent.chmod(0o700)
            Path(path).chmod(0o700)
            Path(path).unlink() if not Path(path).is_dir() else shutil.rmtree(path, ignore_errors=True)

    shutil.rmtree(folder, onerror=allow)


def _now() -> datetime:
    return datetime.now(timezone.utc)
