"""Trial folders: what is written is read back, and nothing that is read is trusted."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aeo import codec
from aeo.core.errors import InputError
from aeo.core.model import Evaluation, Outcome, Spec
from aeo.executors import folder, result

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
LATER = NOW + timedelta(seconds=1.5)
PLAN = folder.plan(
    [folder.TaskPlan(name="t1", estimated_seconds=1, deadline_seconds=9, labels={"category": "c"})],
    labels={"agent": "a", "dataset": "d", "model": "m", "provider": "p"},
    attempts=1,
)
ASKED = Evaluation(id="e1", spec=Spec(executor="sleep", name="job"), plan=PLAN, submitted_at=NOW)
TRIAL = PLAN.trials[0]


def write(tmp_path, **ending):
    times = {"started_at": NOW, "finished_at": LATER}
    result.begin(tmp_path, ASKED, TRIAL, f"/jobs/job/{TRIAL.name}")
    result.finish(tmp_path, ASKED, TRIAL, f"/jobs/job/{TRIAL.name}", result.Ending(**times, **ending))
    return result.summarise(TRIAL, tmp_path)


def change(tmp_path, **values):
    path = tmp_path / "result.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return result.summarise(TRIAL, tmp_path)


def test_what_is_written_is_read_back(tmp_path):
    summary = write(tmp_path, rewards={"x": 0.5, "y": 1.0}, phases={"agent": (NOW, LATER)})
    assert summary.outcome is Outcome.SCORED
    assert summary.rewards == {"x": 0.5, "y": 1.0}
    assert (summary.started_at, summary.finished_at, summary.seconds) == (NOW, LATER, 1.5)
    assert summary.phases == {"agent": 1.5}
    assert summary.labels == {"agent": "a", "dataset": "d", "model": "m", "provider": "p", "category": "c"}
    document = json.loads((tmp_path / "result.json").read_text())
    assert document["trial_uri"] == f"file:///jobs/job/{TRIAL.name}"
    assert document["config"]["agent"] == {"name": "a", "model_name": "p/m"}
    codec.dumps(summary)


def test_tokens_and_cost_are_kept_and_unknown_stays_unknown(tmp_path):
    summary = write(tmp_path, rewards={"reward": 1.0}, input_tokens=7, cost_usd=0.25)
    assert (summary.input_tokens, summary.output_tokens, summary.cost_usd) == (7, None, 0.25)


@pytest.mark.parametrize(
    ("rewards", "error", "outcome"),
    [
        ({"reward": 0.0}, "", Outcome.SCORED),
        ({"reward": 0.0}, result.TIMEOUT, Outcome.SCORED),
        (None, result.TIMEOUT, Outcome.INVALID),
        (None, "", Outcome.INVALID),
        ({}, "", Outcome.INVALID),
        (None, result.REWARD_MISSING, Outcome.INVALID),
        ({"reward": 1.0}, "VerifierTimeoutError", Outcome.INVALID),
        (None, "EnvironmentStartTimeoutError", Outcome.INFRA_ERROR),
        ({"reward": 1.0}, "SomethingNew", Outcome.INFRA_ERROR),
        (None, "CancelledError", Outcome.CANCELLED),
        ({"reward": 1.0}, "CancelledError", Outcome.CANCELLED),
    ],
)
def test_outcome(tmp_path, rewards, error, outcome):
    summary = write(tmp_path, rewards=rewards, error_type=error, error_message="why")
    assert summary.outcome is outcome
    assert bool(summary.rewards) == (outcome is Outcome.SCORED)
    assert summary.error_types == ((error,) if error else ())
    assert (tmp_path / "exception.txt").exists() == bool(error)


UNUSABLE = [
    "text",
    [],
    {},
    {"r": "1"},
    {"r": True},
    {"r": None},
    {"r": [1]},
    {"": 1},
    {"r" * 201: 1},
    {"r": 10**400},
    1,
    True,
]


@pytest.mark.parametrize("rewards", [*UNUSABLE, {str(number): 1 for number in range(101)}, {"\ud800": 1}])
def test_a_reward_that_is_no_number_is_invalid(tmp_path, rewards):
    write(tmp_path, rewards={"reward": 1.0})
    assert change(tmp_path, verifier_result={"rewards": rewards}).outcome is Outcome.INVALID


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_a_reward_that_is_not_finite_is_invalid(tmp_path, number):
    write(tmp_path, rewards={"reward": 0.25})
    path = tmp_path / "result.json"
    path.write_text(path.read_text().replace("0.25", number))
    summary = result.summarise(TRIAL, tmp_path)
    assert summary.outcome is Outcome.INVALID
    codec.dumps(summary)


@pytest.mark.parametrize(
    "values",
    [
        {"trial_name": "other"},
        {"task_name": "other"},
        {"id": "00000000-0000-0000-0000-000000000000"},
        {"trial_name": None},
        {"verifier_result": []},
        {"agent_result": "text"},
        {"agent_result": {"n_input_tokens": -1}},
        {"agent_result": {"n_input_tokens": 1.5}},
        {"agent_result": {"n_output_tokens": True}},
        {"agent_result": {"n_cache_tokens": 10**30}},
        {"agent_result": {"cost_usd": float("nan")}},
        {"agent_result": {"cost_usd": "1"}},
        {"exception_info": 7},
        {"exception_info": {"exception_type": 7}},
        {"exception_info": {"exception_type": ""}},
        {"exception_info": {"exception_type": "X", "exception_message": 7}},
        {"started_at": 7},
        {"started_at": "yesterday"},
        {"finished_at": "0001-01-01T00:00:00+23:00"},
        {"agent_execution": {"started_at": []}},
        {"verifier": "text"},
    ],
)
def test_another_trial_or_wrong_types_are_refused(tmp_path, values):
    write(tmp_path, rewards={"reward": 1.0})
    with pytest.raises(InputError):
        change(tmp_path, **values)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"null", b"7", b"\xff\xfe{}", b"[" * 100_000, b'{"trial_name": "x"}', b"9" * 10_000],
)
def test_no_result_is_refused(tmp_path, content):
    (tmp_path / "result.json").write_bytes(content)
    with pytest.raises(InputError):
        result.summarise(TRIAL, tmp_path)


def test_what_is_no_regular_file_of_bounded_size_is_refused(tmp_path):
    path = tmp_path / "result.json"
    with pytest.raises(InputError, match="cannot be read"):
        result.summarise(TRIAL, tmp_path)
    path.symlink_to("/etc/passwd")
    with pytest.raises(InputError, match="cannot be read"):
        result.summarise(TRIAL, tmp_path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(InputError, match="no regular file"):
        result.summarise(TRIAL, tmp_path)
    path.unlink()
    path.mkdir()
    with pytest.raises(InputError):
        result.summarise(TRIAL, tmp_path)
    path.rmdir()
    path.write_bytes(b" " * (result.SIZE_LIMIT + 1))
    with pytest.raises(InputError, match="larger"):
        result.summarise(TRIAL, tmp_path)


def test_texts_that_no_file_can_hold_are_cleaned(tmp_path):
    write(tmp_path, rewards=None, error_type="X", error_message="a\ud800b\0c")
    summary = change(tmp_path, exception_info={"exception_type": "X\ud800", "exception_message": "m\udfff" * 5000})
    assert len(summary.error_message) == result.MESSAGE_LIMIT
    codec.dumps(summary).encode()


def test_times_with_z_and_without_zone_are_utc(tmp_path):
    write(tmp_path, rewards={"reward": 1.0})
    summary = change(tmp_path, started_at="2026-01-02T03:04:05.000000Z", finished_at="2026-01-02T03:04:07")
    assert summary.seconds == 2.0


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
FIELDS = ("verifier_result", "exception_info", "agent_result", "started_at", "agent_execution", "step_results")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
@given(st.sampled_from(FIELDS), JSON)
def test_any_json_gives_a_summary_or_an_input_error(tmp_path, field, value):
    write(tmp_path, rewards={"reward": 1.0})
    try:
        summary = change(tmp_path, **{field: value})
    except InputError:
        return
    codec.dumps(summary).encode()
