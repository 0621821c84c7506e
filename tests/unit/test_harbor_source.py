"""Lines of fields in a submitted text."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.executors.source import dotted, line, place

TEXT = """\
# a comment
agents:
  - name: oracle
    kwargs: &shared
      api_key: x
  - {name: nop, env: {A: 1,
      B: 2}}
datasets:
- path: one
"""


@pytest.mark.parametrize(
    ("path", "number"),
    [
        ([], 2),
        (["agents"], 2),
        (["agents", 0], 3),
        (["agents", 0, "kwargs", "api_key"], 5),
        (["agents", 1, "env", "B"], 7),
        (["datasets", 0, "path"], 9),
        (["datasets", 0, "missing"], 9),
        (["datasets", 7], 8),
        (["agents", "name"], 2),
        (["nothing"], 2),
    ],
)
def test_line(path: list[str | int], number: int) -> None:
    assert line(TEXT, path) == number


def test_json_is_read_as_well() -> None:
    text = json.dumps({"a": {"b": [1, {"c": 2}]}}, indent=2)
    assert text.splitlines()[(line(text, ["a", "b", 1, "c"]) or 0) - 1].strip() == '"c": 2'


def test_a_key_given_twice_counts_where_it_counts() -> None:
    assert line("a: 1\na: 2\n", ["a"]) == 2


@pytest.mark.parametrize("text", ["a: [", "\t- x: :", "a: *nowhere", "[" * 5000, "\0"])
def test_a_text_that_is_no_yaml_has_no_lines(text: str) -> None:
    assert line(text, ["a"]) is None
    assert place("job.yaml", text, ["a", 0]) == "a[0]"


def test_an_alias_that_holds_itself_ends() -> None:
    assert line("a: &x\n  b: *x\n", ["a", "b", "b", "b"]) == 2


def test_place() -> None:
    assert place("job.yaml", TEXT, ["agents", 0, "kwargs", "api_key"]) == "job.yaml:5: agents[0].kwargs.api_key"
    assert place("", TEXT, ["datasets"]) == "line 8: datasets"
    assert place("job.yaml", "", ["datasets", 0]) == "datasets[0]"
    assert place("job.yaml", TEXT, []) == "job.yaml:2"


@given(st.lists(st.one_of(st.integers(0, 99), st.from_regex(r"[a-z]{1,5}", fullmatch=True)), max_size=5), st.text())
def test_any_text_and_path_give_a_place(path: list[str | int], text: str) -> None:
    assert place("f", text, path).endswith(dotted(path))
