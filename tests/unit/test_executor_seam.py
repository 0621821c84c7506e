"""What the kernel may rely on, of every bundled executor."""

from __future__ import annotations

import inspect
from datetime import datetime, timezone

import pytest

from aeo import codec, executors
from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Plan, Spec
from aeo.executors import Executor, Session, SubmittedFile

CONFIGS = {
    "sleep": {"tasks": 2, "attempts": 2, "seconds": 0.5, "cpus": 1, "fail": {"task-1": ["die"]}},
    "command": {"tasks": [{"name": "t", "command": "true", "env": {"K": "${K}"}, "labels": {"category": "c"}}]},
}


def test_the_bundled_executors_are_found():
    assert {"sleep", "command", "harbor"} <= set(executors.installed())
    for name in CONFIGS:
        assert executors.load(name).name == name


def test_an_unknown_one_gives_the_list():
    with pytest.raises(InputError, match=r"No executor 'ray'.*Installed: .*command.*sleep"):
        executors.load("ray")


def members(protocol: type) -> dict[str, list[str]]:
    found = inspect.getmembers(protocol, inspect.isfunction)
    return {name: list(inspect.signature(member).parameters) for name, member in found if not name.startswith("_")}


@pytest.mark.parametrize("name", CONFIGS)
def test_every_member_takes_what_the_protocol_says(name, tmp_path):
    executor = executors.load(name)
    offered = {
        member: ["self", *inspect.signature(getattr(executor, member)).parameters] for member in members(Executor)
    }
    assert offered == members(Executor)
    spec = Spec(executor=name, name="job", config=CONFIGS[name])
    assert executor.config_name(spec.config) == ""
    assert executor.version() == ""
    plan = executor.plan(spec, SubmittedFile())
    evaluation = Evaluation(id="e1", spec=spec, plan=plan, submitted_at=datetime.now(timezone.utc))
    session = executor.open(evaluation, tmp_path / "scratch")
    session.stop("nothing runs")
    session.close()
    taken = {member: list(inspect.signature(getattr(type(session), member)).parameters) for member in members(Session)}
    assert taken == members(Session)
    executor.sweep(tmp_path)


@pytest.mark.parametrize("name", CONFIGS)
def test_a_plan_survives_the_codec(name):
    plan = executors.load(name).plan(Spec(executor=name, name="job", config=CONFIGS[name]), SubmittedFile())
    assert codec.loads(Plan, codec.dumps(plan)) == plan


@pytest.mark.parametrize("name", CONFIGS)
def test_planning_twice_gives_other_names(name):
    spec = Spec(executor=name, name="job", config=CONFIGS[name])
    first, second = (executors.load(name).plan(spec, SubmittedFile()) for _ in range(2))
    assert not {trial.name for trial in first.trials} & {trial.name for trial in second.trials}
