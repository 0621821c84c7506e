from __future__ import annotations

import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.codec import decode, dumps, encode, loads
from aeo.core.errors import InputError
from aeo.core.model import (
    Batch,
    Capacity,
    Claim,
    ContentFolder,
    Evaluation,
    Heartbeat,
    Needs,
    Outcome,
    Plan,
    PlannedTrial,
    Spec,
    TrialRow,
    TrialSummary,
    WorkerInfo,
)

AT = datetime(2026, 3, 1, 12, 30, 15, 250000, tzinfo=timezone(timedelta(hours=8)))

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
numbers = st.floats(allow_nan=False, allow_infinity=False)
EPOCH = datetime.fromtimestamp(0, tz=timezone.utc)
times = st.integers(0, 10**16).map(lambda micros: EPOCH + timedelta(microseconds=micros))
maybe = st.none() | st.integers(0, 10**12)
summaries = st.builds(
    TrialSummary,
    trial=text,
    task=text,
    outcome=st.sampled_from(Outcome),
    rewards=st.dictionaries(text, numbers, max_size=3),
    started_at=st.none() | times,
    finished_at=st.none() | times,
    phases=st.dictionaries(text, numbers, max_size=3),
    input_tokens=maybe,
    cache_tokens=maybe,
    output_tokens=maybe,
    cost_usd=st.none() | numbers,
    error_type=text,
    error_message=text,
    error_types=st.lists(text, max_size=3).map(tuple),
    labels=st.dictionaries(text, text, max_size=3),
)
rows = st.builds(
    TrialRow,
    summary=summaries,
    worker=text,
    attempt=st.integers(0, 9),
    committed_at=times,
    notes=st.lists(text, max_size=2).map(tuple),
)

EVALUATION = Evaluation(
    id="e1",
    spec=Spec(
        executor="sleep", name="job", workers=("a", "b"), per_worker_concurrency=None, config={"x": [1, {"y": 0.5}]}
    ),
    plan=Plan(
        trials=(PlannedTrial(name="t", task="任务", needs=Needs(cpus=1.5), payload={"k": None}),),
        contents=(ContentFolder(digest="d", source="/s", name="n"),),
        header={"a": True},
        warnings=("careful",),
    ),
    submitted_at=AT,
)
OBJECTS: list[Any] = [
    EVALUATION,
    Batch(id="b", evaluation="e", worker="w", message="{}"),
    Claim(evaluation="e", trial="t", batch="b", worker="w", token="k", attempt=2),
    WorkerInfo(
        id="w",
        display_name="W",
        host="h",
        capacity=Capacity(slots=1, cpus=2.0, memory_mb=3),
        boot="b",
        instance="i",
        executors={"sleep": ""},
    ),
    Heartbeat(boot="b", at=AT, busy=1, cpu_percent=0.5, disk_free=10**13, draining="disk nearly full"),
]


@pytest.mark.parametrize("value", OBJECTS, ids=lambda value: type(value).__name__)
def test_every_object_comes_back(value: Any) -> None:
    assert loads(type(value), dumps(value)) == value


@given(rows)
def test_any_row_comes_back(row: TrialRow) -> None:
    assert loads(TrialRow, dumps(row)) == row


def test_times_are_written_in_utc() -> None:
    assert encode(AT) == "2026-03-01T04:30:15.250000+00:00"


def test_text_stays_readable() -> None:
    assert "任务" in dumps(EVALUATION)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_json_has_not_is_not_written(bad: float) -> None:
    with pytest.raises(ValueError):
        dumps({"x": bad})


def test_half_characters_do_not_reach_disk_or_socket() -> None:
    broken = b"name-\xff".decode("utf-8", "surrogateescape")
    assert json.loads(dumps({"x": broken}).encode("utf-8")) == {"x": "name-?"}


SPEC = {"executor": "sleep", "name": "job"}


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (Spec, {"executor": "sleep"}, "name"),
        (Spec, {**SPEC, "colour": 1}, "colour"),
        (Spec, {**SPEC, "priority": "high"}, "high"),
        (Spec, {**SPEC, "priority": True}, "True"),
        (Spec, {**SPEC, "workers": "abc"}, "abc"),
        (Spec, {**SPEC, "workers": {"a": 1}}, "list"),
        (Spec, {**SPEC, "config": []}, "Spec"),
        (Spec, {**SPEC, "agent_timeout_multiplier": 10**400}, "too large"),
        (Spec, [], "Spec"),
        (Spec, None, "Spec"),
        (TrialSummary, {"trial": "t", "task": "t", "outcome": "great"}, "great"),
        (TrialSummary, {"trial": "t", "task": "t", "outcome": "scored", "started_at": "soon"}, "soon"),
        (TrialSummary, {"trial": "t", "task": "t", "outcome": "scored", "started_at": 5}, "TrialSummary"),
        (Heartbeat, {"boot": "b", "at": "2026-01-01T00:00:00"}, "time zone"),
    ],
)
def test_what_does_not_fit_is_refused(kind: type[Any], value: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        decode(kind, value)


@pytest.mark.parametrize(
    "bad",
    ["", "{", "nope", b"\xff\xfe\xfa", '{"executor": NaN, "name": ""}', "[" * 100_000],
    ids=["empty", "open", "word", "bytes", "nan", "deep"],
)
def test_what_is_not_json_is_refused(bad: str | bytes) -> None:
    with pytest.raises(InputError):
        loads(Spec, bad)


def test_an_error_does_not_repeat_a_large_value() -> None:
    with pytest.raises(InputError) as caught:
        decode(Spec, {**SPEC, "priority": "x" * 100_000})
    assert len(str(caught.value)) < 1000


def test_a_whole_number_is_a_valid_fraction() -> None:
    assert decode(Needs, {"cpus": 2}) == Needs(cpus=2.0)
