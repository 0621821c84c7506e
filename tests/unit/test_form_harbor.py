"""Harbor's configuration in the words of a form: what nobody changed stays, what somebody typed is read back."""

from __future__ import annotations

import copy
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import executors
from aeo.core.model import Evaluation, Plan, Spec
from aeo.executors import forms
from aeo.executors.forms import AgentRow, Values
from aeo.executors.harbor.form import form

JOB: dict[str, Any] = {
    "job_name": "nightly",
    "n_attempts": 3,
    "timeout_multiplier": 1.5,
    "retry": {"max_retries": 2, "wait_multiplier": 2.0},
    "environment": {"type": "docker", "env": {"A": "${A}"}},
    "datasets": [
        {"name": "terminal-bench/terminal-bench-2", "ref": "latest", "task_names": ["a*"], "overwrite": True},
        {"path": "/data/more"},
    ],
    "agents": [
        {"name": "terminus-2", "model_name": "openai/gpt-5", "kwargs": {"max_turns": 9}},
        {"import_path": "my.agents:Mine"},
    ],
}

json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**6), 10**6)
    | st.floats(allow_nan=False, width=32)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
source = st.fixed_dictionaries(
    {},
    optional={
        "path": json | st.sampled_from(["/data/x", "tasks", "~/t"]),
        "name": json | st.sampled_from(["a@b", "org/name"]),
        "version": json,
        "ref": json,
        "repo": json,
        "task_names": json | st.lists(st.text(max_size=5), max_size=3),
        "exclude_task_names": json,
        "n_tasks": json,
        "other": json,
    },
)
agent = st.fixed_dictionaries({}, optional={"name": json, "import_path": json, "model_name": json, "kwargs": json})
configs = st.fixed_dictionaries(
    {},
    optional={
        "datasets": json | st.lists(source | json, max_size=3),
        "agents": json | st.lists(agent, max_size=3),
        "n_attempts": json,
        "timeout_multiplier": json,
        "verifier_timeout_multiplier": json,
        "retry": json | st.fixed_dictionaries({}, optional={"max_retries": json, "min_wait_sec": json}),
        "environment": json,
        "job_name": json,
    },
)
#: What people type: no white space at the ends, no line breaks.
word = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=12)
globs = st.lists(word.filter(bool), max_size=3).map(tuple)
number = st.integers(0, 10**6).map(str) | word
rows = st.lists(st.builds(AgentRow, agent=word, model=word, origin=st.none() | st.integers(0, 4)), max_size=3).map(
    tuple
)
values = st.builds(
    Values,
    dataset=word | st.sampled_from(["/data/t", "./t", "~", "org/name@sha256:1", "swe@1.0", "a@", "@a", "a@b@c"]),
    include=globs,
    exclude=globs,
    agents=rows,
    attempts=number,
    own=st.fixed_dictionaries({item.name: number for item in form.fields}),
)


def typed(wanted: Values) -> Values:
    """As they are read back: agents are counted anew, numbers lose what does not matter."""
    agents = tuple(replace(row, origin=index) for index, row in enumerate(wanted.agents))
    kinds = {item.name: item.kind for item in form.fields}
    own = {name: forms.shown(forms.meant(text, kinds[name])) for name, text in wanted.own.items()}
    attempts = forms.shown(forms.meant(wanted.attempts, "whole"))
    return replace(wanted, agents=agents, own=own, attempts=attempts)


@given(configs)
def test_what_nobody_changed_stays_as_it_was(config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    assert form.write(form.read(config), config) == before
    assert config == before


@given(values, configs)
def test_what_was_typed_is_read_back(wanted: Values, config: dict[str, Any]) -> None:
    before = copy.deepcopy(config)
    assert form.read(form.write(wanted, config)) == typed(wanted)
    assert config == before


@given(values, configs)
def test_writing_twice_changes_nothing_more(wanted: Values, config: dict[str, Any]) -> None:
    once = form.write(wanted, config)
    again = replace(wanted, agents=form.read(once).agents)
    assert form.write(again, once) == once


def changed(**words: Any) -> dict[str, Any]:
    return form.write(replace(form.read(JOB), **words), JOB)


def test_it_reads_a_usual_job() -> None:
    read = form.read(JOB)
    assert read.dataset == "terminal-bench/terminal-bench-2@latest"
    assert (read.include, read.exclude, read.attempts) == (("a*",), (), "3")
    assert read.agents == (
        AgentRow(agent="terminus-2", model="openai/gpt-5", origin=0),
        AgentRow(agent="my.agents:Mine", origin=1),
    )
    assert read.own["timeout_multiplier"] == "1.5"
    assert read.own["max_retries"] == "2"
    assert read.own["verifier_timeout_multiplier"] == ""


def test_a_change_leaves_the_rest() -> None:
    assert changed(attempts="5") == {**JOB, "n_attempts": 5}
    own = {**form.read(JOB).own, "max_retries": "", "verifier_timeout_multiplier": "2.5"}
    made = changed(own=own)
    assert made == {**JOB, "retry": {"wait_multiplier": 2.0}, "verifier_timeout_multiplier": 2.5}


def test_another_dataset_keeps_its_filters_and_the_other_datasets() -> None:
    assert changed(dataset="/data/mine")["datasets"] == [
        {"path": "/data/mine", "task_names": ["a*"], "overwrite": True},
        {"path": "/data/more"},
    ]
    assert changed(dataset="swe-bench@1.0")["datasets"][0] == {
        "name": "swe-bench",
        "version": "1.0",
        "task_names": ["a*"],
        "overwrite": True,
    }


def test_a_removed_row_takes_only_its_own_settings_along() -> None:
    first, second = form.read(JOB).agents
    assert changed(agents=(second,))["agents"] == [{"import_path": "my.agents:Mine"}]
    swapped = changed(agents=(second, replace(first, model="openai/gpt-5-mini"), AgentRow(agent="oracle")))
    assert swapped["agents"] == [
        {"import_path": "my.agents:Mine"},
        {"name": "terminus-2", "model_name": "openai/gpt-5-mini", "kwargs": {"max_turns": 9}},
        {"name": "oracle"},
    ]
    assert changed(agents=(replace(first, agent="a.b:C"),))["agents"] == [
        {"import_path": "a.b:C", "model_name": "openai/gpt-5", "kwargs": {"max_turns": 9}}
    ]


def test_it_tells_what_it_does_not_show() -> None:
    assert set(form.hidden(JOB)) == {
        *(
            "job_name",
            "environment",
            "datasets[0].overwrite",
            "datasets[1]",
            "agents[0].kwargs",
            "retry.wait_multiplier",
        )
    }
    assert form.hidden({"datasets": [{"repo": "org/x"}], "tasks": [1]}) == ("tasks", "datasets")


@given(configs)
def test_it_tells_what_it_does_not_show_of_anything(config: dict[str, Any]) -> None:
    assert all(isinstance(place, str) for place in form.hidden(config))


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("agents[1].model_name", "agents.1"),
        ("agents", "agents"),
        ("datasets[0].path", "dataset"),
        ("datasets[0].task_names[1]", "include"),
        ("datasets[0].exclude_task_names", "exclude"),
        ("datasets[0].n_tasks", "n_tasks"),
        ("datasets[1].path", ""),
        ("datasets", "dataset"),
        ("n_attempts", "attempts"),
        ("retry.max_retries", "max_retries"),
        ("retry.min_wait_sec", ""),
        ("timeout_multiplier", "timeout_multiplier"),
        ("job_name", "name"),
        ("environment.type", ""),
    ],
)
def test_a_place_has_its_field(path: str, word: str) -> None:
    assert form.word(path) == word


def test_tasks_of_a_path(tmp_path) -> None:
    for name in ("b", "a", "broken"):
        (tmp_path / name).mkdir()
    for name in ("a", "b"):
        (tmp_path / name / "task.toml").touch()
    assert form.tasks(str(tmp_path)) == ("a", "b")
    assert form.tasks(str(tmp_path / "none")) is None
    assert form.tasks("org/name") is None
    assert form.tasks("./here") is None
    assert form.tasks("/\0") is None


def test_the_filters_are_harbors() -> None:
    names = ("a1", "a2", "a3", "b1")
    assert form.chosen(Values(include=("a*",), exclude=("*2",)), names) == ("a1", "a3")
    assert form.chosen(Values(own={"n_tasks": "2"}), names) == ("a1", "a2")
    assert form.chosen(Values(own={"n_tasks": "x"}), names) == names


def test_an_evaluation_can_be_asked_again_from_anywhere() -> None:
    config = {
        "job_name": "x",
        "datasets": [{"path": "tasks"}, {"path": "."}, {"name": "n"}],
        "agents": [{"name": "oracle", "kwargs": {"prompt_template_path": "../t.j2"}}],
        "env_file": "my.env",
    }
    resolved = {
        "job_name": "x",
        "datasets": [{"path": "/home/me/tasks"}, {"path": "/home/me"}, {"name": "n", "ref": None}],
        "agents": [{"name": "oracle", "kwargs": {"prompt_template_path": "/home/me/../t.j2"}}],
    }
    evaluation = Evaluation(
        id="e1",
        spec=Spec(executor="harbor", name="x", config=config),
        plan=Plan(trials=(), header={"config": resolved, "env_file": "/home/me/my.env"}),
        submitted_at=datetime.now(timezone.utc),
    )
    assert form.again(evaluation) == {
        "datasets": [{"path": "/home/me/tasks"}, {"path": "/home/me"}, {"name": "n"}],
        "agents": [{"name": "oracle", "kwargs": {"prompt_template_path": "/home/me/../t.j2"}}],
        "env_file": "/home/me/my.env",
    }
    assert form.again(replace(evaluation, plan=Plan(trials=())))["datasets"][0] == {"path": "tasks"}


def test_the_executor_has_it() -> None:
    found = forms.form_of(executors.load("harbor"))
    assert found is not None
    assert found.words == set(forms.WORDS)
