"""Writes small Harbor tasks, and runs planned trials the way a worker does."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import psutil
import yaml
from needs import require

from aeo.core.errors import ExecutorFailed, Unavailable
from aeo.core.model import Evaluation, PlannedTrial, Spec, TrialRow
from aeo.executors import JobProgress, SubmittedFile, TrialContext
from aeo.executors.harbor import executor
from aeo.executors.harbor.python import HarborPython, harbor_python, plugin_path
from aeo.executors.harbor.session import HarborSession

#: Seconds, and the mark of this test process: others may run the same tests on this machine.
_SLEEP = str(10_000_000 + os.getpid())
HOST = {"import_path": "aeo_harbor.host_environment:HostEnvironment"}


def needed_harbor() -> HarborPython:
    """Harbor's Python: what the machine has, and in CI one that is got."""
    try:
        return harbor_python(create=os.environ.get("CI") == "true")
    except Unavailable as error:
        require(False, str(error))
        raise


def namespaces_work() -> bool:
    """Whether this machine lets us make the namespaces of the host environment."""
    answer = subprocess.run(["unshare", "--user", "--map-root-user", "--mount", "--pid", "--fork", "true"], check=False)
    return answer.returncode == 0


def task(
    folder: Path,
    *,
    solve: str = "true",
    test: str = "echo 1 > /logs/verifier/reward.txt",
    toml: str = "",
    agent_seconds: float = 60,
) -> Path:
    """A task of one step."""
    for part, text in {
        "task.toml": f"{toml}\n[agent]\ntimeout_sec = {agent_seconds}\n[verifier]\ntimeout_sec = 60\n",
        "instruction.md": "Do it.\n",
        "environment/Dockerfile": "FROM scratch\nWORKDIR /app\n",
        "solution/solve.sh": f"#!/bin/bash\n{solve}\n",
        "tests/test.sh": f"#!/bin/bash\n{test}\n",
    }.items():
        path = folder / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def passing(folder: Path) -> Path:
    """Passes when its solution ran, with a file of its environment at hand."""
    verdict = "test -f done.txt && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt"
    task(folder, solve="cp given.txt done.txt", test=verdict)
    (folder / "environment" / "given.txt").write_text("given\n")
    return folder


def failing(folder: Path) -> Path:
    """Always gets the reward 0."""
    return task(folder, test="echo 0 > /logs/verifier/reward.txt")


def several(folder: Path) -> Path:
    """Several rewards."""
    return task(folder, test="""echo '{"form": 0.5, "sense": 1}' > /logs/verifier/reward.json""")


def unrewarded(folder: Path) -> Path:
    """Its verifier writes no reward."""
    return task(folder, test="true")


def hanging(folder: Path) -> Path:
    """Its agent ignores every polite signal and leaves a process of its own behind; see `sleepers`."""
    return task(folder, solve=f"trap '' TERM INT HUP\nsetsid sleep {_SLEEP} &\nsleep {_SLEEP}\nsleep {_SLEEP}")


def sleepers() -> int:
    """How many processes of hanging agents run that this test process has to do with."""
    found = psutil.process_iter(["cmdline", "status"])
    return sum(p.info["cmdline"] == ["sleep", _SLEEP] and p.info["status"] != "zombie" for p in found)


def talking(folder: Path) -> Path:
    """Its agent says two lines, and a last one when it is woken; see `wake`."""
    return task(folder, solve=f"echo line 1; echo line 2; sleep {_SLEEP} || true; echo last")


def wake() -> None:
    """End the sleep of a talking agent."""
    for process in psutil.process_iter(["cmdline"]):
        if process.info["cmdline"] == ["sleep", _SLEEP]:
            process.terminate()


def separate(folder: Path) -> Path:
    """Its verifier has an environment of its own, which gets one file of the agent's."""
    verdict = "test -f /app/done && ! test -f /app/other; echo $((1 - $?)) > /logs/verifier/reward.txt"
    task(folder, solve="echo done > done; echo other > other", test=verdict, toml='artifacts = ["/app/done"]')
    path = folder / "task.toml"
    path.write_text(path.read_text().replace("[verifier]", '[verifier]\nenvironment_mode = "separate"'))
    return folder


def two_steps(folder: Path) -> Path:
    """Two steps with rewards of their own."""
    steps = "".join(f'[[steps]]\nname = "{name}"\n[steps.agent]\ntimeout_sec = 60\n' for name in ("one", "two"))
    for part, text in {
        "task.toml": steps,
        "environment/Dockerfile": "FROM scratch\n",
        "steps/one/instruction.md": "One.\n",
        "steps/one/solution/solve.sh": "echo one > /app/one\n",
        "steps/one/tests/test.sh": "test -f /app/one && echo 1 > /logs/verifier/reward.txt\n",
        "steps/two/instruction.md": "Two.\n",
        "steps/two/solution/solve.sh": "cp /app/one /app/two\n",
        "steps/two/tests/test.sh": "test -f /app/nothing; echo $((1 - $?)) > /logs/verifier/reward.txt\n",
    }.items():
        path = folder / part
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@dataclass
class Run:
    """An evaluation that a test plans and runs, trial by trial."""

    root: Path
    evaluation: Evaluation
    rows: list[TrialRow] = field(default_factory=list)

    @property
    def job_dir(self) -> Path:
        return Path(self.evaluation.job_dir)

    @property
    def trials(self) -> tuple[PlannedTrial, ...]:
        return self.evaluation.plan.trials

    def of_task(self, task: str) -> PlannedTrial:
        """The first trial of a task."""
        return next(trial for trial in self.trials if trial.task == task)

    @contextmanager
    def session(self) -> Iterator[HarborSession]:
        workdir = self.root / "batch"
        workdir.mkdir(exist_ok=True)
        session = executor.open(self.evaluation, workdir)
        try:
            yield session
        finally:
            session.close()
            executor.sweep(workdir)

    def context(self, trial: PlannedTrial) -> TrialContext:
        """A new folder for a run of the trial, and the task where a worker would have it: not where it was planned."""
        trial_dir = self.root / "batch" / f"{trial.name}.{len(list(self.root.glob('batch/*')))}"
        trial_dir.mkdir(parents=True)
        content = next(item for item in self.evaluation.plan.contents if item.digest == trial.content)
        place = self.root / "tasks" / content.digest / content.name
        if not place.exists():
            shutil.copytree(content.source, place)
        return TrialContext(trial_dir=trial_dir, content_dir=place, final_dir=str(self.job_dir / trial.name))

    def deliver(self, trial: PlannedTrial, context: TrialContext) -> TrialRow:
        """Put a finished trial into the job, as a commit does."""
        summary = executor.summarise(trial, context.trial_dir)
        context.trial_dir.rename(self.job_dir / trial.name)
        row = TrialRow(summary=summary, worker="w", attempt=1, committed_at=datetime.now(timezone.utc))
        self.rows.append(row)
        return row

    def run_all(self, trials: Sequence[PlannedTrial] = ()) -> None:
        """Run trials in one session and deliver them."""
        with self.session() as session:
            for trial in trials or self.trials:
                context = self.context(trial)
                session.run(trial, context, lambda phase: None)
                self.deliver(trial, context)

    def progress(self) -> JobProgress:
        return JobProgress(rows=tuple(self.rows))

    def merge(self) -> dict[str, Any]:
        executor.merge(self.evaluation, self.job_dir, self.progress())
        return self.result()

    def result(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.job_dir / "result.json").read_text())
        return document


def start(root: Path, config: Mapping[str, Any], *, multiplier: float | None = None) -> Run:
    """Plan a configuration and begin its job below ``root``."""
    text = yaml.safe_dump(dict(config), sort_keys=False)
    spec = Spec(executor="harbor", name="job", config=dict(config), agent_timeout_multiplier=multiplier)
    plan = executor.plan(spec, SubmittedFile(name="job.yaml", text=text, folder=str(root)))
    job_dir = root / "jobs" / "job"
    job_dir.mkdir(parents=True)
    now = datetime.now(timezone.utc)
    evaluation = Evaluation(id="e", spec=spec, plan=plan, submitted_at=now, job_dir=str(job_dir))
    executor.start_job(evaluation, job_dir)
    return Run(root=root, evaluation=evaluation)


def run_in_thread(
    session: HarborSession, trial: PlannedTrial, context: TrialContext
) -> tuple[threading.Thread, list[str], list[Exception]]:
    phases: list[str] = []
    errors: list[Exception] = []

    def go() -> None:
        try:
            session.run(trial, context, phases.append)
        except ExecutorFailed as error:
            errors.append(error)

    thread = threading.Thread(target=go)
    thread.start()
    return thread, phases, errors


def harbor(*arguments: str, cwd: Path) -> str:
    """Run Harbor's own command to its end; returns what it printed."""
    environment = {**os.environ, "PYTHONPATH": str(plugin_path()), "HARBOR_TELEMETRY": "0", "COLUMNS": "200"}
    command = [str(harbor_python(create=False).path), "-m", "harbor.cli.main", *arguments]
    answer = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert answer.returncode == 0, answer.stdout[-3000:] + answer.stderr[-3000:]
    return answer.stdout


def comparable(result: Mapping[str, Any], tasks: Mapping[str, str]) -> dict[str, Any]:
    """A job's result without what differs from run to run: identities, times, the trials' random names."""
    text = json.dumps(result["stats"])
    for name, task_name in tasks.items():
        text = text.replace(f'"{name}"', f'"{task_name}"')
    stats: dict[str, Any] = json.loads(text)
    for group in stats["evals"].values():
        for values in group["reward_stats"].values():
            for trials in values.values():
                trials.sort()
        for trials in group["exception_stats"].values():
            trials.sort()
    return {"stats": stats, "n_total_trials": result["n_total_trials"]}


def tasks_of(job_dir: Path) -> dict[str, str]:
    """Trial name to task, of a job on disk."""
    return {path.parent.name: json.loads(path.read_text())["task_name"] for path in job_dir.glob("*/result.json")}
