from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest
import yaml
from waiting import eventually

from aeo import samples
from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Outcome, PlannedTrial, Spec, TrialSummary
from aeo.executors import JobProgress, SubmittedFile, TrialContext
from aeo.executors.command import executor, rating, session
from aeo.submission import HEADER


def planned(config: dict, *, folder: str = "", text: str = "", multiplier: float | None = None) -> Evaluation:
    spec = Spec(executor="command", name="job", config=config, agent_timeout_multiplier=multiplier)
    plan = executor.plan(spec, SubmittedFile(name="plan.yaml", text=text, folder=folder))
    return Evaluation(id="e1", spec=spec, plan=plan, submitted_at=datetime.now(timezone.utc))


def context(tmp_path: Path, trial: PlannedTrial) -> TrialContext:
    trial_dir = tmp_path / "trials" / trial.name
    trial_dir.mkdir(parents=True)
    return TrialContext(trial_dir=trial_dir, content_dir=None, final_dir=f"/jobs/job/{trial.name}", attempt=2)


def run(tmp_path: Path, **task) -> tuple[TrialSummary, Path]:
    """Run a single task; returns its summary and its trial folder."""
    evaluation = planned({"tasks": [{"name": "t", **task}]})
    trial = evaluation.plan.trials[0]
    place = context(tmp_path, trial)
    opened = executor.open(evaluation, tmp_path / "scratch")
    try:
        opened.run(trial, place, lambda _: None)
    finally:
        opened.close()
    assert list((tmp_path / "scratch").iterdir()) == []
    return executor.summarise(trial, place.trial_dir), place.trial_dir


def out(trial_dir: Path) -> str:
    return (trial_dir / "agent/command-0/stdout.txt").read_text()


@pytest.mark.parametrize(
    ("task", "reward"),
    [
        ({"command": "exit 0"}, 1),
        ({"command": "exit 3"}, 0),
        ({"command": "exit 3", "expect": {"exit": 3}}, 1),
        ({"command": "kill -ABRT $$"}, 0),
        ({"command": ["echo", "a b; c"], "expect": {"output": "a b; c"}}, 1),
        ({"command": "echo x", "expect": {"output": "y"}}, 0),
        ({"command": "echo x; exit 1", "expect": {"output": "x"}}, 0),
        ({"command": "echo x; exit 1", "expect": {"output": "x", "exit": 1}}, 1),
        ({"command": "echo '  x  '", "expect": {"output": "x"}}, 1),
        ({"command": "printf 'one\\ntwo\\n'", "expect": {"output_regex": "^t.o$"}}, 1),
        ({"command": "echo one", "expect": {"output_regex": "two"}}, 0),
        ({"command": "printf '\\377\\376'", "expect": {"output_regex": "."}}, 1),
        ({"command": "true; no-such-program"}, 0),
        ({"command": "echo 1 > reward.txt", "reward_file": "reward.txt"}, 1),
        ({"command": "mkdir -p a; echo 0.25 > a/r.txt; exit 9", "reward_file": "a/r.txt"}, 0.25),
    ],
)
def test_rewards(tmp_path, task, reward):
    summary, trial_dir = run(tmp_path, **task)
    assert (summary.outcome, summary.rewards) == (Outcome.SCORED, {"reward": reward})
    assert summary.error_types == ()
    assert json.loads((trial_dir / "verifier/reward.json").read_text()) == {"reward": reward}
    assert (trial_dir / "verifier/test-stdout.txt").read_text()


def test_a_reward_file_may_hold_several_numbers(tmp_path):
    summary, _ = run(tmp_path, command="""echo '{"a": 1, "b": 0.5}' > r.json""", reward_file="r.json")
    assert summary.rewards == {"a": 1.0, "b": 0.5}


@pytest.mark.parametrize(
    "command",
    [
        "true",
        "echo x > r.json",
        "echo '[1]' > r.json",
        "echo '{}' > r.json",
        """echo '{"a": "1"}' > r.json""",
        """echo '{"a": NaN}' > r.json""",
        """echo '{"a": {"b": 1}}' > r.json""",
        "printf '\\377' > r.json",
        "mkfifo r.json",
        "mkdir r.json",
        "ln -s /etc/passwd r.json",
        "head -c 70000 /dev/zero | tr '\\0' ' ' > r.json",
    ],
)
def test_an_unusable_reward_file_is_invalid(tmp_path, command):
    summary, _ = run(tmp_path, command=command, reward_file="r.json")
    assert summary.outcome is Outcome.INVALID
    assert "r.json" in summary.error_message


def test_a_reward_file_outside_is_not_read(tmp_path):
    (tmp_path / "r.json").write_text('{"reward": 1}')
    summary, _ = run(tmp_path, command=f"ln -s {tmp_path} sub", reward_file="sub/r.json")
    assert summary.outcome is Outcome.INVALID


def test_time_out_is_a_score_of_zero(tmp_path):
    began = time.monotonic()
    summary, trial_dir = run(tmp_path, command="echo begun; sleep 60", timeout_sec=0.3)
    assert time.monotonic() - began < 5
    assert (summary.outcome, summary.rewards) == (Outcome.SCORED, {"reward": 0.0})
    assert summary.error_types == ("AgentTimeoutError",)
    assert out(trial_dir) == "begun\n"


def test_the_factor_stretches_the_time_out(tmp_path):
    evaluation = planned({"tasks": [{"name": "t", "command": "sleep 0.5", "timeout_sec": 0.1}]}, multiplier=100.0)
    trial = evaluation.plan.trials[0]
    assert trial.deadline_seconds > 10
    place = context(tmp_path, trial)
    executor.open(evaluation, tmp_path / "scratch").run(trial, place, lambda _: None)
    assert executor.summarise(trial, place.trial_dir).rewards == {"reward": 1.0}


@pytest.mark.parametrize(
    ("task", "error"),
    [
        ({"command": ["no-such-program"]}, rating.NOT_FOUND),
        ({"command": "no-such-program --flag"}, rating.NOT_FOUND),
        ({"command": "X=1 no-such-program"}, rating.NOT_FOUND),
        ({"command": ["/etc/passwd"]}, "CommandStartError"),
        ({"command": "true", "cwd": "/no/such/folder"}, "FolderMissingError"),
        ({"command": "true", "env": {"A": "${NO_SUCH_VARIABLE}"}}, "VariableMissingError"),
        ({"command": "kill -KILL $$"}, rating.KILLED),
        ({"command": "echo 1 > r.txt; kill -KILL $$", "reward_file": "r.txt"}, rating.KILLED),
    ],
)
def test_what_cannot_start_here_or_is_killed_is_the_infrastructures_fault(tmp_path, task, error):
    summary, _ = run(tmp_path, **task)
    assert (summary.outcome, summary.error_type) == (Outcome.INFRA_ERROR, error)


def test_a_regular_expression_without_end_does_not_hold_the_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(rating, "_SEARCH_SECONDS", 0.3)
    summary, _ = run(tmp_path, command=f"echo {'a' * 40}b", expect={"output_regex": "^(a+)+$"})
    assert (summary.outcome, summary.error_type) == (Outcome.INVALID, "VerifierTimeoutError")


def test_surroundings(tmp_path, monkeypatch):
    monkeypatch.setenv("AEO_AUTH_TOKEN", "hidden-token")
    monkeypatch.setenv("UNRELATED", "hidden")
    summary, trial_dir = run(tmp_path, command="env; pwd; ls -A; id -u", env={"MINE": "yes", "N": 5}, cwd="sub/dir")
    lines = out(trial_dir).splitlines()
    assert {f"AEO_TRIAL={summary.trial}", "AEO_TASK=t", "AEO_ATTEMPT=2", "MINE=yes", "N=5"} <= set(lines)
    assert not any("hidden" in line for line in lines)
    assert lines[-2].endswith("/sub/dir")


def test_secrets_come_from_the_worker_and_stay_there(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "very-secret-value")
    summary, trial_dir = run(
        tmp_path,
        command='echo "key $API_KEY"; echo "$HEADER" >&2; echo "{\\"$API_KEY\\": 1}" > r.json',
        env={"API_KEY": "${API_KEY}", "HEADER": "Bearer ${API_KEY}"},
        reward_file="r.json",
    )
    assert out(trial_dir) == "key ${API_KEY}\n"
    assert summary.outcome is Outcome.SCORED
    assert summary.rewards == {"${API_KEY}": 1.0}
    kept = [path for path in trial_dir.rglob("*") if path.is_file()]
    assert [path for path in kept if b"very-secret-value" in path.read_bytes()] == []


def test_secrets_stay_out_of_error_messages(tmp_path, monkeypatch):
    monkeypatch.setenv("API_KEY", "very-secret-value")
    summary, _ = run(tmp_path, command="echo $K > r.txt", env={"K": "${API_KEY}"}, reward_file="r.txt")
    assert summary.outcome is Outcome.INVALID
    assert "secret" not in summary.error_message


def test_stop_ends_the_command_and_says_cancelled(tmp_path):
    evaluation = planned({"tasks": [{"name": "t", "command": "sleep 60 & sleep 60"}]})
    trial = evaluation.plan.trials[0]
    place = context(tmp_path, trial)
    opened = executor.open(evaluation, tmp_path / "scratch")
    opened.stop("nothing runs yet")
    began = time.monotonic()

    def stop(phase: str) -> None:
        if phase == "agent":
            threading.Timer(0.2, opened.stop, ["by request"]).start()

    opened.run(trial, place, stop)
    assert time.monotonic() - began < 5
    summary = executor.summarise(trial, place.trial_dir)
    assert (summary.outcome, summary.error_message) == (Outcome.CANCELLED, "by request")


def test_processes_that_left_their_group_do_not_outlive_the_trial(tmp_path):
    script = (
        "setsid sh -c 'echo $$ > $0/pid; exec sleep 60' $AEO_OUT & while [ ! -s $AEO_OUT/pid ]; do sleep 0.01; done"
    )
    run(tmp_path, command=script.replace("$AEO_OUT", str(tmp_path)))
    pid = int((tmp_path / "pid").read_text())
    eventually(lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)


def test_a_folder_without_rights_is_removed(tmp_path):
    run(tmp_path, command="mkdir -p a/b; touch a/b/c; chmod 000 a/b a")


def test_sweep_kills_what_a_dead_session_left_and_spares_the_living(tmp_path):
    living = executor.open(planned({"tasks": [{"name": "t", "command": "true"}]}), tmp_path / "living")
    dead = tmp_path / "dead"
    dead.mkdir()
    (dead / session.LOCK).write_text("mark-of-the-dead")
    sleeps = [
        subprocess.Popen(["sleep", "60"], env={"PATH": os.environ["PATH"], session.MARK: mark})
        for mark in ("mark-of-the-dead", (tmp_path / "living" / session.LOCK).read_text())
    ]
    try:
        executor.sweep(tmp_path)
        assert sleeps[0].wait(5) == -9
        assert sleeps[1].poll() is None
        assert not (dead / session.LOCK).exists()
        assert (tmp_path / "living" / session.LOCK).exists()
    finally:
        for process in sleeps:
            process.kill()
            process.wait()
        living.close()
    executor.sweep(tmp_path)


def test_a_killed_worker_leaves_its_lock_free(tmp_path):
    program = (
        "import sys, time, pathlib\n"
        "from aeo.core.model import *\n"
        "from aeo.executors.command.session import CommandSession\n"
        "now = datetime.fromtimestamp(0)\n"
        "asked = Evaluation(id='e', spec=Spec(executor='command', name='n'), plan=Plan(trials=()), submitted_at=now)\n"
        "opened = CommandSession(asked, pathlib.Path(sys.argv[1]))\n"
        "print('open', flush=True)\n"
        "time.sleep(60)\n"
    )
    worker = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "open\n"
        with (tmp_path / session.LOCK).open() as file:
            with pytest.raises(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            worker.kill()
            worker.wait()
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        worker.kill()
        worker.communicate()


TASK = {"name": "t", "command": "true"}


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({}, "tasks"),
        ({"tasks": []}, "tasks"),
        ({"tasks": {}}, "tasks"),
        ({"tasks": [TASK], "tasks_file": "x"}, "tasks"),
        ({"tasks": [7]}, "tasks[0]"),
        ({"tasks": [TASK, TASK]}, "tasks"),
        ({"tasks": [TASK], "attempts": 0}, "attempts"),
        ({"tasks": [TASK], "attempts": 1001}, "attempts"),
        ({"tasks": [TASK], "agent": "a__b"}, "agent"),
        ({"tasks": [TASK], "model": "a b"}, "model"),
        ({"tasks": [TASK], "taks": 1}, "taks"),
        ({"tasks": [TASK], "env": {"TOKEN": "abc"}}, "env.TOKEN"),
        ({"tasks": [{**TASK, "name": "../x"}]}, "tasks[0].name"),
        ({"tasks": [{**TASK, "name": "/x"}]}, "tasks[0].name"),
        ({"tasks": [{"command": "true"}]}, "tasks[0].name"),
        ({"tasks": [{"name": "t"}]}, "tasks[0].command"),
        ({"tasks": [{**TASK, "command": ""}]}, "tasks[0].command"),
        ({"tasks": [{**TASK, "command": [1]}]}, "tasks[0].command"),
        ({"tasks": [{**TASK, "command": "a\0b"}]}, "tasks[0].command"),
        ({"tasks": [{**TASK, "command": "curl -H 'x: sk-abcdefghijklmnop1234'"}]}, "tasks[0].command"),
        ({"tasks": [{**TASK, "timeout_sec": 0}]}, "tasks[0].timeout_sec"),
        ({"tasks": [{**TASK, "timeout_sec": float("inf")}]}, "tasks[0].timeout_sec"),
        ({"tasks": [{**TASK, "cwd": "../x"}]}, "tasks[0].cwd"),
        ({"tasks": [{**TASK, "reward_file": "/r.json"}]}, "tasks[0].reward_file"),
        ({"tasks": [{**TASK, "reward_file": "r.xml"}]}, "tasks[0].reward_file"),
        ({"tasks": [{**TASK, "reward_file": "r.txt", "expect": {"exit": 1}}]}, "tasks[0].expect"),
        ({"tasks": [{**TASK, "expect": {"exit": -1}}]}, "tasks[0].expect.exit"),
        ({"tasks": [{**TASK, "expect": {"output_regex": "("}}]}, "tasks[0].expect.output_regex"),
        ({"tasks": [{**TASK, "expect": {"stdout": "x"}}]}, "tasks[0].expect.stdout"),
        ({"tasks": [{**TASK, "env": {"API_KEY": "abc"}}]}, "tasks[0].env.API_KEY"),
        ({"tasks": [{**TASK, "env": {"API_KEY": "${API_KEY:-abc}"}}]}, "tasks[0].env.API_KEY"),
        ({"tasks": [{**TASK, "env": {"API_KEY": "${API_KEY:-}"}}]}, "tasks[0].env.API_KEY"),
        ({"tasks": [{**TASK, "env": {"REGION": "${REGION:-eu}"}}]}, "tasks[0].env.REGION"),
        ({"tasks": [{**TASK, "env": {"AUTH": "Bearer abc ${TOKEN}"}}]}, "tasks[0].env.AUTH"),
        ({"tasks": [{**TASK, "env": {"X": "Bearer sk-abcdefghijklmnop1234"}}]}, "tasks[0].env.X"),
        ({"tasks": [{**TASK, "env": {"AEO_TRIAL": "x"}}]}, "tasks[0].env.AEO_TRIAL"),
        ({"tasks": [{**TASK, "env": {"A=B": "x"}}]}, "tasks[0].env.A=B"),
        ({"tasks": [{**TASK, "env": {"A": True}}]}, "tasks[0].env.A"),
        ({"tasks": [{**TASK, "labels": {"agent": "x"}}]}, "tasks[0].labels.agent"),
        ({"tasks": [{**TASK, "cpus": -1}]}, "tasks[0].cpus"),
        ({"tasks_file": "no/such/file.yaml"}, "tasks_file"),
        ({"tasks_file": "/no/such/file.yaml"}, "tasks_file"),
    ],
)
def test_a_fault_names_its_place(config, place):
    with pytest.raises(InputError) as raised:
        planned(config)
    assert place in [problem.field for problem in raised.value.problems]


@pytest.mark.parametrize(
    "env",
    [
        {"API_KEY": "${API_KEY}"},
        {"AUTHORIZATION": "Bearer ${TOKEN}"},
        {"USE_AUTH": 1},
        {"MAX_TOKENS": 5},
        {"KEYBOARD": "us"},
        {"AUTHOR": "me"},
        {"API_KEY": ""},
    ],
)
def test_what_is_no_secret_is_no_fault(env):
    planned({"tasks": [{**TASK, "env": env}]})


def test_a_fault_names_its_line_and_no_value():
    text = "tasks:\n- name: t\n  command: 'true'\n  env:\n    API_KEY: hush-hush\n"
    with pytest.raises(InputError, match=r"plan.yaml:5: tasks\[0\].env.API_KEY") as raised:
        planned(yaml.safe_load(text), text=text)
    assert "hush" not in str(raised.value)
    assert "${API_KEY}" in str(raised.value)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("t.yaml", "- name: a\n  command: x\n  command: y\n", r"t.yaml:3: \[0\].command: stands here twice"),
        ("t.yaml", "- name: a\n  command: x\n  labels: {d: 2024-01-01}\n", r"t.yaml:3: \[0\].labels.d: is a date"),
        ("t.jsonl", '{"name": "a", "command": "\\ud800"}\n', "t.jsonl, line 1, .*half of a character"),
        ("t.jsonl", '{"name": "a", "command": "x", "cpus": NaN}\n', "t.jsonl, line 1, .*no finite"),
    ],
)
def test_a_tasks_file_holds_plain_json_values(tmp_path, name, text, said):
    (tmp_path / name).write_text(text)
    with pytest.raises(InputError, match=said):
        planned({"tasks_file": str(tmp_path / name)})


def test_tasks_from_a_file(tmp_path):
    (tmp_path / "t.yaml").write_text("tasks:\n- {name: a, command: 'true'}\n")
    (tmp_path / "l.yaml").write_text("- {name: a, command: 'true'}\n- {name: b, command: 'true', timeout_sec: 5}\n")
    (tmp_path / "t.jsonl").write_text('{"name": "a", "command": "true"}\n\n{"name": "b", "command": ["x"]}\n')
    tasks = {
        name: [trial.task for trial in planned({"tasks_file": name}, folder=str(tmp_path)).plan.trials]
        for name in ("t.yaml", "l.yaml", "t.jsonl")
    }
    assert tasks == {"t.yaml": ["a"], "l.yaml": ["a", "b"], "t.jsonl": ["a", "b"]}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.jsonl", b'{"name": "a", "command": "x"}\n{"name": "b"', "line 2, is not valid JSON"),
        ("t.jsonl", b"\n", "has no task"),
        (
            "t.jsonl",
            b'{"name": "a", "command": "x"}\n{"name": "b", "kommand": "x"}\n',
            r"t.jsonl:2.kommand: unknown key",
        ),
        ("t.yaml", b"- name: a\n  command: x\n- name: b\n  cpus: x\n", r"t.yaml:4: \[1\].cpus"),
        ("t.yaml", b"a: [", "not valid YAML"),
        ("t.yaml", b"a: 1", "must be a list"),
        ("t.yaml", b"\xff\xfe\xff", "not UTF-8"),
    ],
)
def test_a_fault_in_a_tasks_file_names_its_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        planned({"tasks_file": name}, folder=str(tmp_path))


def test_the_bundled_sample_ends_as_it_says(tmp_path):
    document = yaml.safe_load(samples.command_config().read_text())
    config = {key: value for key, value in document.items() if key not in HEADER}
    evaluation = planned({**config, "attempts": 1})
    assert len(evaluation.plan.trials) >= 6
    opened = executor.open(evaluation, tmp_path / "scratch")
    summaries = {}
    for trial in evaluation.plan.trials:
        place = context(tmp_path, trial)
        opened.run(trial, place, lambda _: None)
        summaries[trial.task] = executor.summarise(trial, place.trial_dir)
    opened.close()
    invalid = [task for task, summary in summaries.items() if summary.outcome is not Outcome.SCORED]
    assert invalid == ["no-reward"]
    assert summaries["several-scores"].rewards == {"complete": 0.0, "topic": 1.0, "form": 0.75}
    failed = [task for task, summary in summaries.items() if summary.rewards == {"reward": 0.0}]
    assert failed == ["always-fails", "too-slow"]


def test_job_folder(tmp_path):
    evaluation = planned({"tasks": [TASK], "agent": "bash", "model": "p/m", "dataset": "d", "attempts": 2})
    executor.start_job(evaluation, tmp_path)
    executor.refresh_job(evaluation, tmp_path, JobProgress())
    executor.merge(evaluation, tmp_path, JobProgress())
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["agents"] == [{"name": "bash", "model_name": "p/m"}]
    assert (config["n_attempts"], config["job_name"]) == (2, tmp_path.name)
    assert "closed" in (tmp_path / "job.log").read_text()
