"""``aeo submit --check``: what would come of it, and exit codes a script can go by."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

from typing import Any

import pytest
from cli_fake import FakeController, aeo, as_json, fake

PLAN = {
    "executor": "harbor",
    "version": "0.26.0",
    "name": "nightly",
    "trials": 12,
    "tasks": 3,
    "agents": [{"agent": "oracle", "model": "", "trials": 6}, {"agent": "nop", "model": "m", "trials": 6}],
    "shares": [{"worker": "w1", "trials": 12, "slots": 2, "busy": 1, "estimated_seconds": 90.0}],
    "estimated_seconds": 90.0,
    "known": 8,
    "unfit": [{"worker": "w2", "reason": "has no harbor", "trials": 12}],
    "problems": [],
    "warnings": ["/data/x is skipped: it has no task.toml."],
}
WRONG = {"field": "<stdin>:2: n_attempts", "message": "must be at least 1.", "fix": ""}


def test_it_shows_shares_and_starts_nothing(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/plan", PLAN)
    result = aeo("submit", "-", "--check", "--priority", "3", input="x: 1")
    assert result.exit_code == 0, result.output
    assert fake.made("POST", "/api/plan")[0].body["options"] == {"priority": 3}
    assert fake.made("POST", "/api/evaluations") == []
    out = " ".join(result.stdout.split())
    assert "nightly: 12 trials of 3 tasks, harbor 0.26.0" in out
    assert "Estimated time: 1m 30s when all its slots are free, from past runs of 8 of 12 trials" in out
    assert "w1 12 2 1 1m 30s" in out
    assert "w2 has no harbor" in out
    assert "It can be run. Nothing was started." in out
    assert "is skipped" in result.stderr


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        (["openai"], "free, under the limit of openai, from past runs"),
        (["openai", "p/m"], "free, under the limits of openai and p/m, from past runs"),
        (["a", "b", "c"], "free, under the limits of a, b and c, from past runs"),
    ],
)
def test_limits_that_hold_are_named(aeo: Any, fake: FakeController, limits: list[str], said: str) -> None:
    fake.answer("POST", "/api/plan", {**PLAN, "limits": limits})
    assert said in " ".join(aeo("submit", "-", "--check", input="x: 1").stdout.split())


def test_an_unknown_time_is_called_so(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/plan", {**PLAN, "estimated_seconds": None, "shares": []})
    assert "Estimated time: unknown (too few" in aeo("submit", "-", "--check", input="x: 1").stdout


def test_problems_end_with_2(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/plan", {**PLAN, "trials": 0, "shares": [], "problems": [WRONG]})
    result = aeo("submit", "-", "--check", input="x: 1")
    assert result.exit_code == 2
    assert "<stdin>:2: n_attempts: must be at least 1." in result.stderr
    assert "can be run" not in result.stdout


def test_as_json(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/plan", PLAN, {**PLAN, "problems": [WRONG]})
    first = aeo("submit", "-", "--check", "--json", input="x: 1")
    assert (first.exit_code, as_json(first)) == (0, PLAN)
    second = aeo("submit", "-", "--check", "--json", input="x: 1")
    assert second.exit_code == 2
    assert as_json(second)["problems"] == [WRONG]


def test_what_comes_from_outside_is_safe_on_a_terminal(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/plan", {"trials": 1, "name": "\x1b[2J", "shares": "?", "unfit": [3]})
    result = aeo("submit", "-", "--check", input="x: 1")
    assert result.exit_code == 0
    assert "\x1b" not in result.stdout


def test_nothing_to_wait_for(aeo: Any, fake: FakeController) -> None:
    assert aeo("submit", "-", "--check", "--wait", input="x: 1").exit_code == 2
    assert fake.requests == []
