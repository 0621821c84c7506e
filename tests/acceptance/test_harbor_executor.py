"""The Harbor executor against the real Harbor, in the host environment."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import psutil
import pytest
from harbor_tasks import HOST, Run
from needs import require
from programs import command_line
from waiting import eventually

from aeo import codec
from aeo.core.errors import InputError
from aeo.core.model import Outcome
from aeo.executors.harbor import executor
from aeo.executors.harbor.session import HarborSession


@pytest.fixture(scope="module", autouse=True)
def _harbor() -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A job of every kind of task, two agents and two attempts, run trial by trial and merged."""
    root = tmp_path_factory.mktemp("whole")
    for write in (tasks.passing, tasks.failing, tasks.several, tasks.unrewarded, tasks.two_steps, tasks.separate):
        write(root / "set" / write.__name__.replace("_", "-"))
    run = tasks.start(root, config(root))
    run.run_all()
    run.merge()
    return run


def config(root: Path) -> dict[str, Any]:
    return {
        "n_attempts": 2,
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "environment": dict(HOST),
        "datasets": [{"path": str(root / "set")}],
    }


def test_a_merged_job_equals_a_job_of_one_machine(whole: Run, tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(config(whole.root)))
    tasks.harbor("run", "-c", str(path), "-o", str(tmp_path), "--job-name", "single", "-q", "-y", cwd=tmp_path)
    single = json.loads((tmp_path / "single" / "result.json").read_text())
    ours = tasks.comparable(whole.result(), tasks.tasks_of(whole.job_dir))
    assert ours == tasks.comparable(single, tasks.tasks_of(tmp_path / "single"))
    assert ours["stats"]["n_completed_trials"] == 24
    assert whole.result().keys() == single.keys()


def test_its_trials_have_the_files_and_words_of_a_job_of_one_machine(whole: Run) -> None:
    names = {trial.name for trial in whole.trials}
    assert {path.name for path in whole.job_dir.iterdir() if path.is_dir()} == names
    for trial in whole.trials:
        folder = whole.job_dir / trial.name
        planned = json.loads((folder / "config.json").read_text())
        result = json.loads((folder / "result.json").read_text())
        assert planned["trials_dir"] == str(whole.job_dir)
        assert planned["task"]["path"] == str(whole.root / "set" / trial.task)
        assert result["config"] == planned
        assert result["task_id"] == {"path": planned["task"]["path"]}
        assert result["trial_uri"] == folder.as_uri()
        assert result["source"] == "set"
        assert not (folder / "aeo.json").exists()
    lock = json.loads((whole.job_dir / "lock.json").read_text())
    own = [json.loads((whole.job_dir / trial.name / "lock.json").read_text()) for trial in whole.trials]
    assert lock["trials"] == own


def test_summaries(whole: Run) -> None:
    found = {(row.summary.task, row.summary.labels["agent"]): row.summary for row in whole.rows}
    assert found["passing", "oracle"].rewards == {"reward": 1.0}
    assert found["passing", "nop"].rewards == {"reward": 0.0}
    assert found["several", "oracle"].rewards == {"form": 0.5, "sense": 1.0}
    assert found["two-steps", "oracle"].rewards == {"reward": 0.5}
    assert found["separate", "oracle"].rewards == {"reward": 1.0}
    assert found["unrewarded", "oracle"].outcome is Outcome.INVALID
    assert found["unrewarded", "oracle"].error_types == ("RewardFileNotFoundError",)
    assert list(found["two-steps", "oracle"].phases) == ["environment", "agent_setup", "agent", "verifier"]
    assert found["passing", "oracle"].labels["dataset"] == "set"


def test_merging_again_changes_nothing(whole: Run) -> None:
    before = (whole.job_dir / "result.json").read_bytes()
    whole.merge()
    assert (whole.job_dir / "result.json").read_bytes() == before


def test_resume_runs_nothing_and_then_exactly_what_is_missing(whole: Run, tmp_path: Path) -> None:
    before = whole.result()
    folders = set(tasks.tasks_of(whole.job_dir))
    tasks.harbor("job", "resume", "-p", str(whole.job_dir), cwd=tmp_path)
    assert set(tasks.tasks_of(whole.job_dir)) == folders
    assert tasks.comparable(whole.result(), {}) == tasks.comparable(before, {})

    gone = whole.of_task("passing")
    kept = {path.parent.name: path.stat().st_mtime_ns for path in whole.job_dir.glob("*/result.json")}
    for path in sorted((whole.job_dir / gone.name).rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    (whole.job_dir / gone.name).rmdir()
    names = tasks.tasks_of(whole.job_dir)
    tasks.harbor("job", "resume", "-p", str(whole.job_dir), cwd=tmp_path)
    now = tasks.tasks_of(whole.job_dir)
    new = set(now) - set(names)
    assert [now[name] for name in new] == ["passing"]
    assert all((whole.job_dir / name / "result.json").stat().st_mtime_ns == kept[name] for name in names)
    expected = tasks.comparable(before, {**names, gone.name: "passing"})
    assert tasks.comparable(whole.result(), now) == expected


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A task that hangs and one that does not."""
    root = tmp_path_factory.mktemp("hanging")
    tasks.hanging(root / "set" / "hanging")
    tasks.passing(root / "set" / "passing")
    return tasks.start(root, {"environment": dict(HOST), "datasets": [{"path": "set"}]})


def agent_hangs() -> bool:
    """Whether the agent is where it hangs, its stray process included."""
    return tasks.sleepers() == 2


def descendants() -> list[psutil.Process]:
    """What runs below this process, but for the process that drivers are forked from."""
    servers = [child for child in psutil.Process().children() if "aeo_harbor.fork_server" in command_line(child)]
    found = psutil.Process().children(recursive=True)
    return [process for process in found if process not in servers and process.status() != "zombie"]


def test_a_stopped_trial_ends_soon_and_says_cancelled(hanging: Run) -> None:
    trial = hanging.of_task("hanging")
    context = hanging.context(trial)
    others = set(descendants())
    with hanging.session() as session:
        thread, phases, errors = tasks.run_in_thread(session, trial, context)
        eventually(agent_hangs, 30)
        begun = time.monotonic()
        session.stop("cancelled")
        thread.join(120)
        assert not thread.is_alive()
        assert time.monotonic() - begun < 60
        assert not errors
        assert phases[-1] == "cancelling"
        summary = executor.summarise(trial, context.trial_dir)
        assert (summary.outcome, summary.error_type) == (Outcome.CANCELLED, "CancelledError")
        eventually(lambda: not tasks.sleepers())
        run_passing(hanging, session)
    eventually(lambda: set(descendants()) <= others)
    assert not list(hanging.root.glob("batch/harbor/roots/*"))


def run_passing(run: Run, session: HarborSession) -> None:
    trial = run.of_task("passing")
    context = run.context(trial)
    session.run(trial, context, lambda phase: None)
    assert executor.summarise(trial, context.trial_dir).rewards == {"reward": 1.0}


def test_a_killed_driver_takes_all_with_it_and_the_next_trial_runs(hanging: Run) -> None:
    trial = hanging.of_task("hanging")
    context = hanging.context(trial)
    with hanging.session() as session:
        thread, _, errors = tasks.run_in_thread(session, trial, context)
        eventually(agent_hangs, 30)
        assert session._driver is not None
        os.kill(session._driver.pid, signal.SIGKILL)
        thread.join(120)
        assert "killed by signal 9" in str(errors[0])
        eventually(lambda: not tasks.sleepers())
        assert (context.trial_dir / "trial.log").exists()
        executor.fail(hanging.evaluation, trial, context, "TrialProcessDied", str(errors[0]))
        assert executor.summarise(trial, context.trial_dir).outcome is Outcome.INFRA_ERROR
        run_passing(hanging, session)
    assert not list(hanging.root.glob("batch/harbor/roots/*"))


def test_a_driver_that_does_not_stop_is_killed(hanging: Run) -> None:
    trial = hanging.of_task("hanging")
    with hanging.session() as session:
        thread, _, errors = tasks.run_in_thread(session, trial, hanging.context(trial))
        eventually(agent_hangs, 30)
        assert session._driver is not None
        os.kill(session._driver.pid, signal.SIGSTOP)
        session.stop("deadline", 0.5)
        thread.join(120)
        assert "deadline" in str(errors[0])


def test_sweep_removes_what_a_killed_worker_left(hanging: Run, tmp_path: Path) -> None:
    """A process opens a session, is killed while a trial runs; a sweep then finds and ends what is left."""
    trial = hanging.of_task("hanging")
    (tmp_path / "order.json").write_text(codec.dumps([hanging.evaluation, trial, asdict(hanging.context(trial))]))
    worker = subprocess.Popen([sys.executable, "-c", WORKER, str(tmp_path)])
    try:
        eventually(agent_hangs, 30)
        executor.sweep(tmp_path)
        assert agent_hangs(), "a live session was swept"
        # The driver cannot tidy up either.
        (server,) = psutil.Process(worker.pid).children()
        (driver,) = server.children()
        driver.suspend()
    finally:
        worker.kill()
        worker.wait()
    executor.sweep(tmp_path)
    eventually(lambda: not tasks.sleepers())
    eventually(lambda: not driver.is_running() or driver.status() == "zombie")
    assert not list(tmp_path.glob("harbor/roots/*"))


WORKER = """
import json, sys
from pathlib import Path
from aeo import codec
from aeo.core.model import Evaluation, PlannedTrial
from aeo.executors import TrialContext
from aeo.executors.harbor import executor
folder = Path(sys.argv[1])
evaluation, trial, context = json.loads((folder / "order.json").read_text())
context |= {name: Path(context[name]) for name in ("trial_dir", "content_dir")}
session = executor.open(codec.decode(Evaluation, evaluation), folder)
session.run(codec.decode(PlannedTrial, trial), TrialContext(**context), lambda phase: None)
"""


def test_retries_are_harbors_own_and_counted(tmp_path: Path) -> None:
    # Not under /tmp, which is each trial's own.
    with tempfile.NamedTemporaryFile(dir="/var/tmp") as counter:
        verdict = f"test -s {counter.name} && echo 1 > /logs/verifier/reward.txt; echo x >> {counter.name}"
        tasks.task(tmp_path / "set" / "second-time", test=verdict)
        retry = {"max_retries": 2, "exclude_exceptions": [], "min_wait_sec": 0.01}
        run = tasks.start(tmp_path, {"environment": dict(HOST), "datasets": [{"path": "set"}], "retry": retry})
        run.run_all()
    assert run.rows[0].summary.rewards == {"reward": 1.0}
    assert run.merge()["stats"]["n_retries"] == 1


def test_a_trial_harbor_cannot_construct_is_a_result_and_no_dead_driver(tmp_path: Path) -> None:
    tasks.task(tmp_path / "set" / "gpu", toml="[environment]\ngpus = 1\n")
    tasks.passing(tmp_path / "set" / "passing")
    run = tasks.start(tmp_path, {"environment": dict(HOST), "datasets": [{"path": "set"}]})
    run.run_all()
    found = {row.summary.task: row.summary for row in run.rows}
    assert found["gpu"].outcome is Outcome.INFRA_ERROR
    assert "GPU" in found["gpu"].error_message
    assert found["passing"].outcome is Outcome.SCORED
    stats = run.merge()["stats"]
    assert (stats["n_completed_trials"], stats["n_errored_trials"]) == (2, 1)
    assert list(stats["evals"]) == ["oracle__set"]


def test_variables_come_from_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    secret = "value-of-the-worker"
    monkeypatch.setenv("THE_API_KEY", secret)
    check = f'echo "$(( $([ "$THE_API_KEY" = {secret} ] && echo 1 || echo 0) ))" > /logs/verifier/reward.txt'
    tasks.task(tmp_path / "set" / "secretive", test=check)
    environment = {**HOST, "env": {"THE_API_KEY": "${THE_API_KEY}"}}
    run = tasks.start(tmp_path, {"environment": environment, "datasets": [{"path": "set"}]})
    run.run_all()
    assert run.rows[0].summary.rewards == {"reward": 1.0}
    for name in ("config.json", "lock.json", "result.json"):
        assert secret not in (run.job_dir / run.trials[0].name / name).read_text()


def test_files_beside_tasks_travel_with_the_plan(tmp_path: Path) -> None:
    tasks.task(tmp_path / "set" / "task")
    extra = tmp_path / "extra.md"
    extra.write_text("Be brief.\n")
    run = tasks.start(
        tmp_path,
        {"environment": dict(HOST), "datasets": [{"path": "set"}], "extra_instruction_paths": ["extra.md"]},
    )
    extra.unlink()  # a worker does not have it
    run.run_all()
    assert run.rows[0].summary.outcome is Outcome.SCORED
    planned = json.loads((run.job_dir / run.trials[0].name / "config.json").read_text())
    assert planned["extra_instruction_paths"] == [str(extra)]


def test_a_registrys_dataset_by_git_and_its_metric_without_the_registry(tmp_path: Path) -> None:
    tasks.passing(tmp_path / "repository" / "many" / "passing")
    tasks.failing(tmp_path / "repository" / "many" / "failing")
    for arguments in (
        ["init", "-q"],
        ["add", "."],
        ["-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *arguments], cwd=tmp_path / "repository", check=True)
    url = (tmp_path / "repository").as_uri()
    found = [{"name": name, "git_url": url, "path": f"many/{name}"} for name in ("passing", "failing")]
    registry = tmp_path / "registry.json"
    sets = [{"name": "few", "version": "1.0", "description": "", "tasks": found, "metrics": [{"type": "max"}]}]
    registry.write_text(json.dumps(sets))
    dataset = {"name": "few", "version": "1.0", "registry_path": "registry.json"}
    run = tasks.start(tmp_path, {"environment": dict(HOST), "datasets": [dataset]})
    registry.unlink()
    run.run_all()
    groups = run.merge()["stats"]["evals"]
    assert groups["oracle__few"]["metrics"] == [{"max": 1.0}]
    planned = json.loads((run.job_dir / run.of_task("passing").name / "config.json").read_text())["task"]
    assert (planned["git_url"], planned["path"]) == (url, "many/passing")


METRIC = """
# /// script
# requires-python = ">=3.8"
# dependencies = []
# ///
import json, sys
rewards = [json.loads(line) for line in open(sys.argv[2])]
json.dump({"counted": len(rewards)}, open(sys.argv[4], "w"))
"""


def test_a_metrics_script_by_a_relative_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks.passing(tmp_path / "set" / "passing")
    script = tmp_path / "own" / "metric.py"
    script.parent.mkdir()
    script.write_text(METRIC)
    metric = {"type": "uv-script", "kwargs": {"script_path": "own/metric.py"}}
    run = tasks.start(
        tmp_path, {"environment": dict(HOST), "datasets": [{"path": "set"}], "metrics": [metric], "n_attempts": 2}
    )
    config = json.loads((run.job_dir / "config.json").read_text())
    assert config["metrics"] == [{"type": "uv-script", "kwargs": {"script_path": str(script)}}]
    script.unlink()  # what counts is what was there when it was planned
    run.run_all()
    monkeypatch.setenv("UV_OFFLINE", "1")
    assert run.merge()["stats"]["evals"]["oracle__set"]["metrics"] == [{"counted": 2}]


def test_multiplier_and_names(tmp_path: Path) -> None:
    for number in range(3):
        tasks.task(tmp_path / "set" / f"{'long-' * 7}{number}", agent_seconds=10)
    run = tasks.start(tmp_path, {"n_attempts": 3, "datasets": [{"path": "set"}]}, multiplier=3.0)
    assert len({trial.name for trial in run.trials}) == 9
    job = json.loads((run.job_dir / "config.json").read_text())
    assert (job["agent_timeout_multiplier"], job["job_name"], job["jobs_dir"]) == (3.0, "job", str(tmp_path / "jobs"))
    assert {trial.estimated_seconds for trial in run.trials} == {0.25 * (30 + 60)}
    assert all(trial.deadline_seconds > 30 + 60 + 600 for trial in run.trials)
    result = run.result()
    assert (result["n_total_trials"], result["stats"]["n_pending_trials"], result["finished_at"]) == (9, 9, None)


BAD: dict[str, tuple[dict[str, Any], str, str]] = {
    "unknown key": ({"datasets": [{"path": "set"}], "n_atempts": 2}, "job.yaml:3: n_atempts", "no key Harbor knows"),
    "unknown nested key": ({"datasets": [{"path": "set", "n_taks": 1}]}, "job.yaml:3: datasets[0].n_taks", "no key"),
    "no attempts": (
        {"n_attempts": 0, "datasets": [{"path": "set"}]},
        "job.yaml:1: n_attempts",
        "greater than or equal",
    ),
    "too many trials": (
        {"n_attempts": 10**9, "datasets": [{"path": "set"}]},
        "job.yaml:1",
        "200000 is the most",
    ),
    "plugins": ({"datasets": [{"path": "set"}], "plugins": ["a:B"]}, "job.yaml:3: plugins", "one Harbor job"),
    "source jobs": (
        {"datasets": [{"path": "set"}], "source_jobs": [{"action": "regrade", "type": "local", "path": "x"}]},
        "job.yaml:3: source_jobs",
        "another job's folders",
    ),
    "missing dataset": ({"datasets": [{"path": "nowhere"}]}, "job.yaml:2: datasets[0].path", "no folder"),
    "empty dataset": ({"datasets": [{"path": "empty"}]}, "job.yaml:2: datasets[0].path", "no usable task"),
    "all broken": ({"datasets": [{"path": "broken"}]}, "job.yaml:2: datasets[0].path", "no task.toml"),
    "a task as a dataset": ({"datasets": [{"path": "set/one"}]}, "job.yaml:2: datasets[0].path", "is a task"),
    "no task matches": (
        {"datasets": [{"path": "set", "task_names": ["x*"]}]},
        "job.yaml:2: datasets[0]",
        "No tasks match",
    ),
    "broken task asked for": (
        {"datasets": [{"path": "mixed", "task_names": ["two"]}]},
        "job.yaml:3: datasets[0].task_names",
        "broken",
    ),
    "broken task": ({"tasks": [{"path": "broken/two"}]}, "job.yaml:2: tasks[0].path", "no task.toml"),
    "one name twice": (
        {"datasets": [{"path": "set"}, {"path": "twin"}]},
        "job.yaml:3: datasets[1]",
        "Two tasks have the name",
    ),
    "odd task name": ({"datasets": [{"path": "odd"}]}, "job.yaml:2: datasets[0]", "no plain folder name"),
    "no such agent": (
        {"agents": [{"name": "nobody"}], "datasets": [{"path": "set"}]},
        "job.yaml:2: agents[0]",
        "nobody",
    ),
    "nothing to run": ({"n_attempts": 1}, "job.yaml:1: datasets", "datasets or tasks"),
    "missing metric script": (
        {"datasets": [{"path": "set"}], "metrics": [{"type": "uv-script", "kwargs": {"script_path": "no.py"}}]},
        "job.yaml:6: metrics[0].kwargs.script_path",
        "does not exist on the controller",
    ),
    "odd metric": (
        {"datasets": [{"path": "set"}], "metrics": [{"type": "max", "kwargs": {"odd": 1}}]},
        "job.yaml:5: metrics[0].kwargs",
        "No metric 'max'",
    ),
    "no metric script": (
        {"datasets": [{"path": "set"}], "metrics": [{"type": "uv-script", "kwargs": {"script_path": 5}}]},
        "job.yaml:5: metrics[0].kwargs",
        "No metric 'uv-script'",
    ),
    "a circle of links": ({"datasets": [{"path": "circle"}]}, "job.yaml:2: datasets[0]", "recursion"),
    "a skill with a link that leads out": (
        {"datasets": [{"path": "set"}], "agents": [{"name": "oracle", "skills": ["./skill"]}]},
        "job.yaml:6: agents[0].skills[0]",
        "leads out of",
    ),
    "a mount from the task's folder that no task has": (
        {
            "datasets": [{"path": "set"}],
            "environment": {"mounts": [{"type": "bind", "source": "./mnt", "target": "/mnt"}]},
        },
        "job.yaml:6: environment.mounts[0].source",
        "'./mnt' would be read from each task's environment folder, and one has none there",
    ),
    "a secret": (
        {"agents": [{"name": "oracle", "env": {"MY_TOKEN": "abc"}}], "datasets": [{"path": "set"}]},
        "job.yaml:4: agents[0].env.MY_TOKEN",
        "holds a secret",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_names_the_place_and_makes_nothing(case: str, bad_root: Path) -> None:
    config, field, message = BAD[case]
    with pytest.raises(InputError) as caught:
        tasks.start(bad_root, config)
    assert any(problem.field == field and message in problem.message for problem in caught.value.problems), str(
        caught.value
    )
    assert not (bad_root / "jobs").exists()


@pytest.fixture(scope="module")
def bad_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("bad")
    tasks.task(root / "set" / "one")
    tasks.task(root / "mixed" / "one")
    (root / "empty").mkdir()
    for folder in ("broken", "mixed"):
        (root / folder / "two" / "environment").mkdir(parents=True)
    tasks.task(root / "twin" / "one", solve="false")
    tasks.task(root / "odd" / "a name")
    (tasks.task(root / "circle" / "one") / "environment" / "x").symlink_to("..")
    (root / "skill").mkdir()
    (root / "skill" / "SKILL.md").write_text("---\nname: skill\ndescription: x\n---\n")
    (root / "skill" / "x").symlink_to("/etc/hostname")
    return root


def test_skipped_task_folders_are_told(bad_root: Path) -> None:
    plan = tasks.start(bad_root, {"datasets": [{"path": "mixed"}]}).evaluation.plan
    (bad_root / "jobs" / "job").rename(bad_root / "done")
    (bad_root / "jobs").rmdir()
    assert plan.warnings == (f"{bad_root / 'mixed' / 'two'} is skipped: it has no task.toml.",)
    assert [trial.task for trial in plan.trials] == ["one"]


def test_a_target_that_the_machine_lacks_is_told_where_the_host_environment_needs_it(tmp_path: Path) -> None:
    (tasks.task(tmp_path / "set" / "one") / "environment" / "own").mkdir()
    targets = ("/usr/nowhere/x", "/app/x", "/usr", "/fresh/x")
    mounts = [{"type": "bind", "source": "./own", "target": target} for target in targets]
    config = {"datasets": [{"path": "set"}], "environment": {**tasks.HOST, "mounts": mounts}}
    (warning,) = tasks.start(tmp_path, config).evaluation.plan.warnings
    assert warning.startswith("The mount target /usr/nowhere/x does not exist on the controller's machine")
