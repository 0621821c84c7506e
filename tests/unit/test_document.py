"""Text in, plain JSON values out; everything else is refused with its place."""

from __future__ import annotations

import json
import math
import sys
import time
from datetime import date
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import codec
from aeo.core.errors import InputError
from aeo.executors import document


def faults(text: str) -> list[str]:
    with pytest.raises(InputError) as caught:
        document.read(text, "job.yaml")
    return [f"{problem.field}: {problem.message}" for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("2024-01-01", "is a date"),
        ("2024-02-31", "is a date"),
        ("2024-01-01T10:00:00Z", "is a date"),
        (".nan", "no finite"),
        ("-.inf", "no finite"),
        ("1.0e+999", "no finite"),
        ("!!binary aGVsbG8=", "bytes"),
        ("!!set {a, b}", "set"),
        ("!!omap [a: 1]", "tuple"),
        ("!!pairs [a: 1]", "tuple"),
        ("{1: 2}", "key that is no text"),
        ("{2024: x}", "key that is no text"),
        ("{yes: x}", "key that is no text"),
        ("{null: x}", "key that is no text"),
        ('"\\ud800"', "half of a character"),
        ('{"\\udfff": x}', "half of a character"),
        ('"\\0"', "NUL"),
        ("9" * 5000, "too long a number"),
        ("0x" + "f" * 5000, "too long a number"),
        ("1" + ":20" * 5000 + ".5", "too long a number"),
        ("18446744073709551616", "too large a number"),
        ("&x [*x]", "holds itself"),
        ("&x {a: {b: *x}}", "holds itself"),
        ("[" * 101 + "]" * 101, "nested deeper"),
        ("{a: " * 150 + "1" + "}" * 150, "nested deeper"),
    ],
)
def test_what_json_has_no_word_for_names_its_place(value: str, said: str) -> None:
    (fault,) = faults(f"name: x\nkwargs:\n  inner:\n  - since: {value}\n")
    assert fault.startswith(("job.yaml:4: kwargs.inner[0]", "job.yaml:3: kwargs.inner"))
    assert said in fault


@pytest.mark.parametrize("text", ["[" * 5000, "[" * 5000 + "]" * 5000, "a: " + "{b: " * 3000, "- " * 3000 + "x"])
def test_no_depth_ends_the_interpreter(text: str) -> None:
    assert "nested deeper" in faults(text)[0]


@pytest.mark.parametrize(
    "text",
    ["a: !!int x", "a: !!bool maybe", "a: !!float ''", "a: !!timestamp x", "a: !!int ''", "a: !!null [1]", "a: =",
     "a: !!python/tuple [1]", "a: !mine x", "? [a]\n: 1", "? {a: 1}\n: 1", "a: *b", "<<: 1", "a\0b", "a: \x07",
     "--- 1\n--- 2\n"],
)  # fmt: skip
def test_what_is_no_yaml_is_said_of_the_file(text: str) -> None:
    assert faults(text)[0].startswith("job.yaml")


def test_a_key_given_twice_names_the_line_of_the_second() -> None:
    text = "a: 1\nb:\n  - c: 1\n    'c': 2\na: 3\n"
    assert faults(text) == ["job.yaml:4: b[0].c: stands here twice.", "job.yaml:5: a: stands here twice."]
    assert faults('{"a": 1,\n "a": 1}') == ["job.yaml:2: a: stands here twice."]


def test_merged_keys_may_be_given_again() -> None:
    text = "base: &base {a: 1, b: 2}\nother:\n  <<: *base\n  a: 3\n"
    assert document.read(text, "f")["other"] == {"a": 3, "b": 2}


@pytest.mark.parametrize("kind", ["list", "mapping", "merge", "text"])
def test_a_bomb_of_aliases_costs_nothing(kind: str) -> None:
    lines = [
        "a0: &a0 {k: x}" if kind in ("mapping", "merge") else f"a0: &a0 [{'x' * (50_000 if kind == 'text' else 1)}]"
    ]
    for n in range(1, 40):
        items = ", ".join(f"*a{n - 1}" for _ in range(9))
        whole = {"mapping": "{" + ", ".join(f"k{i}: *a{n - 1}" for i in range(9)) + "}", "merge": f"{{<<: [{items}]}}"}
        lines.append(f"a{n}: &a{n} {whole.get(kind, f'[{items}]')}")
    began = time.monotonic()
    assert "too large with its aliases" in faults("\n".join(lines))[0]
    assert time.monotonic() - began < 5


def test_a_chain_of_aliases_is_as_deep_as_what_it_makes() -> None:
    chain = "\n".join(f"a{n}: &a{n} [{f'*a{n - 1}' if n else 1}]" for n in range(150))
    assert "nested deeper" in faults(chain)[0]


def test_all_faults_of_values_come_at_once() -> None:
    assert [fault.split(": ")[1] for fault in faults("a: .nan\nb: [1, .inf]\nc: {1: x}\n")] == ["a", "b[1]", "c.1"]


def test_aliases_comments_and_json_are_fine() -> None:
    text = "# note\na: &a [1, 2.5, yes, null, 'x', 0x1f, \"2024-01-01\"]\nb: *a\n"
    read = document.read(text, "f")
    assert read["b"] == [1, 2.5, True, None, "x", 31, "2024-01-01"]
    assert document.read('{"a": {"b": [1, "\\u00e9"]}}', "f") == {"a": {"b": [1, "é"]}}
    assert document.read("", "f") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip
ODD = (
    st.floats() | st.integers() | st.text() | st.binary() | st.dates() | st.complex_numbers() | st.just(date)
    | st.sampled_from((2**63, 2**64, -(2**63) - 1)) | st.just("\ud800")
    | st.sets(st.integers()) | st.tuples(st.integers()) | st.just(math.nan)
)  # fmt: skip
ANY = st.recursive(
    ODD,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers() | st.none(), inner, max_size=4)
    ),
)


@given(JSON)
def test_plain_json_passes_and_comes_back_from_its_text(value: Any) -> None:
    document.refuse(value)
    for indent in (None, 2, "\t"):
        assert document.read(json.dumps({"": value}, indent=indent), "f") == {"": value}


@given(ANY)
def test_what_passes_can_be_written(value: Any) -> None:
    try:
        document.refuse(value)
    except InputError:
        return
    assert json.loads(codec.dumps(value)) == value


@given(st.text(st.sampled_from("ab01:-[]{}&*!<,'\"\n .?#|>\\xuD8~=")) | st.text())
def test_any_text_is_read_into_what_can_be_written_or_refused(text: str) -> None:
    try:
        read = document.read(text, "f")
    except InputError:
        return
    codec.dumps(read)


def test_a_number_without_end_is_refused_as_a_value_too() -> None:
    for value in ({"a": 10**6000}, {10**6000: "a"}):
        with pytest.raises(InputError):
            document.refuse(value)


def test_a_structure_that_holds_itself_is_refused_as_a_value_too() -> None:
    value: list[Any] = []
    value.append(value)
    with pytest.raises(InputError, match="nested deeper"):
        document.refuse(value)
    assert sys.getrecursionlimit() > document.DEPTH_LIMIT
