"""Jobs of our own executors are opened by the real ``harbor view`` and counted by Harbor's own code."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.error
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
import yaml
from harbor_tasks import needed_harbor
from programs import Program, free_port
from viewer import get, viewer
from waiting import eventually

from aeo import samples
from aeo.core.errors import ExecutorFailed
from aeo.core.model import Evaluation, Outcome, Spec, TrialRow, TrialSummary
from aeo.executors import Executor, JobProgress, SubmittedFile, TrialContext, command, sleep
from aeo.submission import HEADER

# Reads every trial of the job and adds it up as a job run by Harbor itself is.
RECOUNT = """
import json, pathlib, sys
from harbor.metrics.mean import Mean
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trial.result import TrialResult
from harbor.utils.pass_at_k import compute_pass_at_k_by_evals
job = pathlib.Path(sys.argv[1])
ours = JobResult.model_validate_json((job / "result.json").read_text())
trials = [TrialResult.model_validate_json((job / name / "result.json").read_text()) for name in json.loads(sys.argv[2])]
stats = JobStats.from_trial_results(trials, n_total_trials=ours.n_total_trials, n_retries=ours.stats.n_retries)
rewards = {}
for trial in trials:
    if trial.reward_valid:
        info = trial.agent_info
        key = JobStats.format_agent_evals_key(info.name, info.model_info and info.model_info.name, trial.source)
        rewards.setdefault(key, []).append(trial.verifier_result.rewards)
for key, values in rewards.items():
    stats.evals[key].metrics.append(Mean().compute(values))
for key, values in compute_pass_at_k_by_evals(trials).items():
    stats.evals[key].pass_at_k = values
print(json.dumps([ours.stats.model_dump(mode="json"), stats.model_dump(mode="json")]))
"""


@pytest.fixture(scope="module")
def harbor_python() -> str:
    return str(needed_harbor().path)


def run_job(executor: Executor, config: dict[str, Any], jobs: Path, name: str) -> tuple[Path, list[TrialSummary]]:
    """Run an evaluation as the platform does, without one: plan, start, run each, refresh, merge."""
    spec = Spec(executor=executor.name, name=name, config=config)
    plan = executor.plan(spec, SubmittedFile())
    asked = Evaluation(id="e1", spec=spec, plan=plan, submitted_at=datetime.now(timezone.utc))
    job_dir = jobs / name
    job_dir.mkdir(parents=True)
    executor.start_job(asked, job_dir)
    session = executor.open(asked, jobs.parent / f"scratch-{name}")
    rows: list[TrialRow] = []
    for trial in plan.trials:
        trial_dir = job_dir / trial.name
        trial_dir.mkdir()
        context = TrialContext(trial_dir=trial_dir, content_dir=None, final_dir=str(trial_dir))
        try:
            session.run(trial, context, lambda _: None)
        except ExecutorFailed as error:
            executor.fail(asked, trial, context, "ExecutorFailed", str(error))
        summary = executor.summarise(trial, trial_dir)
        rows.append(TrialRow(summary=summary, worker="w1", attempt=1, committed_at=datetime.now(timezone.utc)))
        executor.refresh_job(asked, job_dir, JobProgress(rows=tuple(rows)))
    session.close()
    executor.merge(asked, job_dir, JobProgress(rows=tuple(rows), requeues=1))
    return job_dir, [row.summary for row in rows]


@pytest.fixture(scope="module")
def jobs(tmp_path_factory) -> dict[str, tuple[Path, list[TrialSummary]]]:
    folder = tmp_path_factory.mktemp("view") / "jobs"
    sample = yaml.safe_load(samples.command_config().read_text())
    asked = {key: value for key, value in sample.items() if key not in HEADER}
    asked["tasks"] = [{**task, "timeout_sec": 0.2} if task["name"] == "too-slow" else task for task in asked["tasks"]]
    slept = {
        "tasks": 5,
        "attempts": 5,
        "model": "provider/model",
        "fail": {"task-2": "zero", "task-3": "infra", "task-4": "die", "task-5": "zero"},
    }
    return {
        "slept": run_job(sleep.executor, slept, folder, "slept"),
        "invalid": run_job(sleep.executor, {"tasks": 2, "fail": {"task-1": "invalid"}}, folder, "invalid"),
        "commands": run_job(command.executor, {**asked, "attempts": 1}, folder, "commands"),
    }


@pytest.fixture(scope="module")
def view(jobs) -> Iterator[str]:
    """Address of a running ``harbor view`` over the jobs."""
    folder = jobs["slept"][0].parent
    with viewer(folder, folder.parent / "view.log") as address:
        yield address


@pytest.mark.parametrize("name", ["slept", "invalid", "commands"])
def test_harbor_counts_what_we_count(harbor_python, jobs, name):
    job_dir, summaries = jobs[name]
    names = json.dumps([summary.trial for summary in summaries])
    counted = subprocess.run(
        [harbor_python, "-c", RECOUNT, str(job_dir), names], capture_output=True, text=True, timeout=60, check=False
    )
    assert counted.returncode == 0, counted.stderr
    ours, theirs = json.loads(counted.stdout)
    assert ours == theirs
    assert ours["n_completed_trials"] == len(summaries)


def test_pass_at_k_is_there(jobs):
    stats = json.loads((jobs["slept"][0] / "result.json").read_text())["stats"]
    group = stats["evals"]["sleeper__model__sleep"]
    # Three tasks have five scored trials each; one of them passes always, two never.
    assert group["pass_at_k"] == {"2": pytest.approx(1 / 3), "4": pytest.approx(1 / 3), "5": pytest.approx(1 / 3)}
    assert group["metrics"] == [{"mean": pytest.approx(1 / 3)}]


def test_the_list_of_jobs(view, jobs):
    listed = {job["name"]: job for job in get(f"{view}/api/jobs")["items"]}
    assert set(listed) == set(jobs)
    slept = listed["slept"]
    assert (slept["agents"], slept["models"], slept["datasets"]) == (["sleeper"], ["model"], ["sleep"])
    assert (slept["n_total_trials"], slept["n_completed_trials"], slept["n_errored_trials"]) == (25, 25, 10)
    assert slept["finished_at"] is not None


@pytest.mark.parametrize("name", ["slept", "invalid", "commands"])
def test_a_job_and_its_trials(view, jobs, name):
    _, summaries = jobs[name]
    job = get(f"{view}/api/jobs/{name}")
    assert job["n_total_trials"] == len(summaries)
    assert job["stats"]["n_retries"] == 1
    assert get(f"{view}/api/jobs/{name}/config")["job_name"] == name
    listed = {trial["name"]: trial for trial in get(f"{view}/api/jobs/{name}/trials?page_size=100")["items"]}
    assert set(listed) == {summary.trial for summary in summaries}
    for summary in summaries:
        shown = listed[summary.trial]
        assert shown["task_name"] == summary.task
        assert shown["error_type"] == (summary.error_types[0] if summary.error_types else None)
        rewards = {key: part["metrics"][0][key] for key, part in shown["evals"].items()}
        assert rewards == (dict(summary.rewards) if summary.outcome is Outcome.SCORED else {})
    tasks = get(f"{view}/api/jobs/{name}/tasks?page_size=100")["items"]
    assert {task["task_name"] for task in tasks} == {summary.task for summary in summaries}
    assert sum(task["n_trials"] for task in tasks) == len(summaries)


def test_each_trial_of_the_commands(view, jobs):
    job_dir, summaries = jobs["commands"]
    for summary in summaries:
        base = f"{view}/api/jobs/commands/trials/{summary.trial}"
        trial = get(base)
        assert trial["trial_uri"] == (job_dir / summary.trial).as_uri()
        assert trial["agent_info"]["name"] == "shell"
        assert trial["reward_valid"] == (summary.outcome is Outcome.SCORED)
        paths = {file["path"] for file in get(f"{base}/files")}
        assert {"config.json", "result.json", "trial.log", "agent/command-0/stdout.txt"} <= paths
        assert get(f"{base}/verifier-output")["stdout"]
        assert get(f"{base}/agent-logs")["commands"]


def test_harbor_does_not_harm_such_a_job(harbor_python, jobs, tmp_path):
    """``harbor job resume`` cannot run it, and must not delete from it."""
    copy = tmp_path / "jobs" / "slept"
    shutil.copytree(jobs["slept"][0], copy)
    before = sorted(path.relative_to(copy) for path in copy.rglob("*"))
    resumed = subprocess.run(
        [harbor_python, "-m", "harbor.cli.main", "job", "resume", "-p", str(copy)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env={**os.environ, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )
    assert resumed.returncode != 0
    assert before == sorted(path.relative_to(copy) for path in copy.rglob("*"))


def test_the_command_shows_the_same(jobs, tmp_path):
    folder, port = jobs["commands"][0].parent, free_port()
    program = Program(["view", str(folder), "--port", str(port)], tmp_path)
    try:
        listed = eventually(lambda: _jobs_at(f"http://127.0.0.1:{port}"), 60, pause=0.2)
        assert "commands" in listed
        assert program.terminate() in (0, -15, 143)
    finally:
        program.destroy()


def _jobs_at(address):
    with suppress(urllib.error.URLError, ConnectionError):
        return {job["name"] for job in get(f"{address}/api/jobs")["items"]}
    return set()


def test_without_jobs_the_command_says_what_to_do(tmp_path):
    program = Program(["view"], tmp_path)
    assert program.ends() == 2
    assert "AEO_SHARED_ROOT" in program.output
