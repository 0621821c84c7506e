"""The forms of the command and the sleep executor: nothing is lost, what is typed is read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import executors
from aeo.executors import forms
from aeo.executors.forms import AgentRow, Form, Values

json = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = ("tasks", "tasks_file", "attempts", "agent", "model", "dataset", "timeout_sec", "seconds", "reward", "env")
configs = st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, json))
word = st.text(st.characters(categories=["L", "N", "P", "S"]), max_size=8)


def form(name: str) -> Form:
    found = forms.form_of(executors.load(name))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["command", "sleep"])
@given(config=configs, words=st.lists(word, min_size=12, max_size=12))
def test_nothing_is_lost_and_what_is_typed_is_read_back(name: str, config: dict[str, Any], words: list[str]) -> None:
    asked = form(name)
    assert asked.write(asked.read(config), config) == config
    agent, model, attempts, dataset, *others = words
    wanted = Values(
        dataset=dataset if "dataset" in asked.words else "",
        agents=(AgentRow(agent=agent, model=model, origin=0),) if agent or model else (),
        attempts=attempts,
        own={item.name: text for item, text in zip(asked.fields, others, strict=False)},
    )
    read = asked.read(asked.write(wanted, config))
    kinds = {item.name: item.kind for item in asked.fields}
    own = {key: forms.shown(forms.meant(text, kinds[key])) for key, text in wanted.own.items()}
    assert read == replace(wanted, own=own, attempts=forms.shown(forms.meant(attempts, "whole")))


def test_places() -> None:
    command = form("command")
    assert command.word("tasks_file") == "dataset"
    assert command.word("model") == "agents.0"
    assert command.word("tasks[0].command") == ""
    assert command.hidden({"tasks": [], "agent": "a", "env": {}}) == ("tasks", "env")
    assert form("sleep").word("seconds.min") == "seconds"
