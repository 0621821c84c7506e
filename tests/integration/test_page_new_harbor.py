"""The form of a new evaluation against the real Harbor: it plans what the form counts, and faults find their fields."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from needs import require

from aeo import checks, drafts, evaluations, records, samples
from aeo.core.errors import Unavailable
from aeo.core.model import Capacity, WorkerInfo
from aeo.executors.forms import AgentRow
from aeo.executors.harbor.python import harbor_python
from aeo.site import Site
from aeo.store import workers
from aeo.submission import Submission


@pytest.fixture(scope="module")
def version() -> str:
    try:
        return harbor_python(create=bool(os.environ.get("CI"))).version
    except Unavailable as error:
        require(False, str(error))
        raise


@pytest.fixture(autouse=True)
def worker(site: Site, version: str) -> None:
    info = WorkerInfo(
        id="w1",
        display_name="w1",
        host="h",
        capacity=Capacity(slots=2, cpus=64.0, memory_mb=64 * 1024),
        boot="b",
        instance="i",
        executors={"harbor": version},
    )
    workers.register(site.db, info)


def test_harbor_plans_what_the_form_counts(site: Site) -> None:
    text = drafts.new()
    draft = drafts.read(text)
    form = drafts.form("harbor")
    assert form
    values = replace(
        draft.values,
        dataset=str(samples.harbor_tasks()),
        include=("*-*s", "slow*"),
        exclude=("always*",),
        agents=(AgentRow(agent="oracle"), AgentRow(agent="nop")),
        attempts="2",
        own={"n_tasks": "3", "max_retries": "1", "timeout_multiplier": "2.0", "verifier_timeout_multiplier": "1.5"},
    )
    made = drafts.write(replace(draft, values=values), text)
    found = checks.check(site, Submission(text=made))
    assert found.problems == ()
    names = form.tasks(values.dataset)
    assert names is not None
    assert found.tasks == len(form.chosen(values, names)) == 3
    assert found.trials == 3 * 2 * 2
    assert [(item.agent, item.trials) for item in found.agents] == [("oracle", 6), ("nop", 6)]


def test_each_fault_finds_its_field(site: Site) -> None:
    text = (
        "executor: harbor\nn_attempts: 0\ntimeout_multiplier: fast\nretry: {max_retries: -1}\nodd: 1\n"
        f"datasets: [{{path: {samples.harbor_tasks()}, n_tasks: many, task_names: 3}}]\n"
        "agents: [{name: oracle}, {name: nop, n_concurrent: x}]\n"
    )
    found = checks.check(site, Submission(text=text))
    assert {drafts.word(item.field, "harbor") for item in found.problems} == {
        *("attempts", "timeout_multiplier", "max_retries", "n_tasks", "include", "agents.1", "")
    }
    (odd,) = (item for item in found.problems if item.field.endswith("odd"))
    assert odd.field == "line 5: odd"
    nowhere = checks.check(site, Submission(text="executor: harbor\ndatasets: [{path: /nowhere}]\n"))
    assert [drafts.word(item.field, "harbor") for item in nowhere.problems] == ["dataset"]


def test_a_clone_runs_wherever_the_first_was_submitted(site: Site, tmp_path: Path) -> None:
    shutil.copytree(samples.harbor_tasks() / "slow-sum", tmp_path / "tasks" / "slow-sum")
    given = "executor: harbor\nname: first\ndatasets: [{path: tasks}]\n"
    made = evaluations.submit(site, Submission(text=given, working_dir=str(tmp_path)))
    evaluation = records.read(site.shared.evaluation(made.evaluation.id)).evaluation
    text = drafts.again(evaluation, taken=lambda name: site.shared.job(name).exists())
    assert yaml.safe_load(text)["datasets"] == [{"path": str(tmp_path / "tasks")}]
    found = checks.check(site, Submission(text=text))
    assert (found.problems, found.name, found.trials) == ((), "first-2", 1)
