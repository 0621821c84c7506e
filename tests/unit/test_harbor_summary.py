"""Reading trial folders that may hold anything."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.errors import InputError
from aeo.core.model import Outcome, PlannedTrial, TrialSummary
from aeo.executors.harbor import executor

TRIAL = PlannedTrial(name="t__1", task="t", labels={"agent": "oracle", "dataset": "d"})


def document(**changes: Any) -> dict[str, Any]:
    return {
        "trial_name": "t__1",
        "task_name": "t",
        "verifier_result": {"rewards": {"reward": 1}},
        "exception_info": None,
        "agent_result": {"n_input_tokens": 10, "n_cache_tokens": 4, "n_output_tokens": 3, "cost_usd": 0.5},
        "started_at": "2026-01-01T00:00:00.000000Z",
        "finished_at": "2026-01-01T00:01:00+00:00",
        "environment_setup": {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:10Z"},
        "agent_execution": {"started_at": "2026-01-01T00:00:10Z", "finished_at": None},
        "step_results": None,
        **changes,
    }


def error(kind: str, **more: Any) -> dict[str, Any]:
    return {"exception_info": {"exception_type": kind, "exception_message": "why", **more}}


def read(tmp_path: Path, content: Any) -> TrialSummary:
    text = content if isinstance(content, bytes) else json.dumps(content).encode()
    (tmp_path / "result.json").write_bytes(text)
    return executor.summarise(TRIAL, tmp_path)


def test_a_whole_result(tmp_path: Path) -> None:
    summary = read(tmp_path, document())
    assert (summary.outcome, summary.rewards, summary.seconds) == (Outcome.SCORED, {"reward": 1.0}, 60)
    assert summary.phases == {"environment": 10.0}
    assert (summary.input_tokens, summary.cache_tokens, summary.output_tokens, summary.cost_usd) == (10, 4, 3, 0.5)
    assert summary.labels == TRIAL.labels


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.SCORED),
        (error("AgentTimeoutError"), Outcome.SCORED),
        (error("SomethingUnknown"), Outcome.SCORED),
        (error("ApiError"), Outcome.INFRA_ERROR),
        (error("ApiError", policy_override={"has_valid_reward": True}), Outcome.SCORED),
        (error("AgentTimeoutError", policy_override={"has_valid_reward": False}), Outcome.INVALID),
        ({**error("CancelledError")}, Outcome.CANCELLED),
        ({"verifier_result": None}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": None}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {"reward": "1"}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {"reward": True}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {"reward": float("nan")}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {"reward": float("inf")}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": {"reward": 10**400}}}, Outcome.INVALID),
        ({"verifier_result": {"rewards": [1]}}, Outcome.INVALID),
        ({"verifier_result": None, **error("AgentTimeoutError")}, Outcome.INVALID),
        ({"verifier_result": None, **error("RewardFileNotFoundError")}, Outcome.INVALID),
        ({"verifier_result": None, **error("RewardFileEmptyError")}, Outcome.INVALID),
        ({"verifier_result": None, **error("VerifierOutputParseError")}, Outcome.INVALID),
        ({"verifier_result": None, **error("VerifierTimeoutError")}, Outcome.INVALID),
        ({"verifier_result": None, **error("EnvironmentStartTimeoutError")}, Outcome.INFRA_ERROR),
        ({"verifier_result": None, **error("AgentSetupTimeoutError")}, Outcome.INFRA_ERROR),
        ({"verifier_result": None, **error("AgentAuthenticationError")}, Outcome.INFRA_ERROR),
        ({"verifier_result": None, **error("TrialProcessDied")}, Outcome.INFRA_ERROR),
        ({"verifier_result": None, **error("SomethingUnknown")}, Outcome.INFRA_ERROR),
        ({"verifier_result": None, "step_results": [{}, error("VerifierTimeoutError")]}, Outcome.INVALID),
        ({"step_results": [{}, error("AgentTimeoutError")]}, Outcome.SCORED),
        ({"step_results": [{}, error("ApiError")]}, Outcome.INFRA_ERROR),
        ({"step_results": [error("VerifierTimeoutError"), error("ApiError")]}, Outcome.INFRA_ERROR),
    ],
)
def test_outcomes(tmp_path: Path, changes: dict[str, Any], outcome: Outcome) -> None:
    summary = read(tmp_path, document(**changes))
    assert summary.outcome is outcome
    assert bool(summary.rewards) == (outcome is Outcome.SCORED)
    assert summary.error_type or outcome is Outcome.SCORED


def test_steps_add_up(tmp_path: Path) -> None:
    used = {"n_input_tokens": 5, "n_output_tokens": 1, "cost_usd": 0.25}
    times = {"started_at": "2026-01-01T00:00:00Z", "finished_at": "2026-01-01T00:00:10Z"}
    step = {"agent_result": used, "agent_execution": times}
    summary = read(tmp_path, document(agent_result=None, agent_execution=None, step_results=[step, {}, step]))
    assert (summary.input_tokens, summary.cache_tokens, summary.cost_usd) == (10, None, 0.5)
    assert summary.phases["agent"] == 20


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe{}",
        b"[]",
        b"null",
        b"[" * 100_000,
        b'{"a": ' * 100_000,
        document(trial_name="another"),
        document(task_name="another"),
        document(exception_info="died"),
        document(exception_info={"exception_type": 1, "exception_message": "x"}),
        document(exception_info={"exception_type": "X"}),
        document(verifier_result=[]),
        document(step_results={}),
        document(step_results=[1]),
        document(step_results=[{}] * 1001),
        document(started_at=5),
        document(started_at="yesterday"),
        document(environment_setup="soon"),
        document(agent_result={"n_input_tokens": -1}),
        document(agent_result={"n_input_tokens": True}),
        document(agent_result={"n_input_tokens": 1.5}),
        document(agent_result={"cost_usd": float("nan")}),
        document(agent_result={"cost_usd": -1}),
    ],
)
def test_what_is_no_result_of_this_trial_is_refused(tmp_path: Path, content: Any) -> None:
    with pytest.raises(InputError):
        read(tmp_path, content)


def test_links_pipes_and_giants_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(document()))
    result = tmp_path / "result.json"
    result.symlink_to(other)
    with pytest.raises(InputError):
        executor.summarise(TRIAL, tmp_path)
    result.unlink()
    os.mkfifo(result)
    with pytest.raises(InputError):
        executor.summarise(TRIAL, tmp_path)
    result.unlink()
    monkeypatch.setattr("aeo.executors.harbor.summary.SIZE_LIMIT", 100)
    with pytest.raises(InputError, match="larger"):
        read(tmp_path, document())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from([*document(), "verifier", "agent_setup"]), JSON)
def test_any_value_anywhere_is_read_or_refused(tmp_path: Path, name: str, value: Any) -> None:
    try:
        summary = read(tmp_path, document(**{name: value}))
    except InputError:
        return
    assert (summary.outcome is Outcome.SCORED) == bool(summary.rewards)


@pytest.mark.parametrize(
    ("kind", "again"),
    [
        ("ApiOverloadedError", True),
        ("TrialProcessDied", True),
        ("AuthenticationError", False),
        ("NotFoundError", False),
    ],
)
def test_what_comes_again_however_often_is_not_run_again(tmp_path: Path, kind: str, again: bool) -> None:
    summary = read(tmp_path, document(verifier_result=None, **error(kind)))
    assert (summary.outcome, summary.retryable) == (Outcome.INFRA_ERROR, again)
