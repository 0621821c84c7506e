"""Reruns on the command line, against a controller of canned answers."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_fake import ID, ONE, FakeController, aeo, as_json, detail, fake, problem, status

OLD = "0123456789ab"
MADE = {"evaluation": status(parent=OLD, name="nightly-2"), "warnings": ["3 of 4 trials keep the result."]}


def test_what_was_chosen_is_sent(aeo: Any, fake: FakeController, tmp_path: Path) -> None:
    fake.answer("POST", f"/api/evaluations/{OLD}/rerun", MADE)
    result = aeo(
        "rerun", OLD, "--error", "A", "--error", "B", "--outcome", "invalid", "--infra", "--outcome", "invalid"
    )
    assert result.exit_code == 0, result.output
    assert fake.requests[0].body == {
        "errors": ["A", "B"],
        "outcomes": ["invalid", "infra_error"],
        "text": "",
        "file_name": "",
        "working_dir": str(tmp_path),
        "options": {},
    }
    assert f"Submitted nightly-2 (id {ID}): 4 trials, 1 of them with the earlier result." in result.stdout
    assert "Warning: 3 of 4 trials keep the result." in result.stderr
    assert as_json(aeo("rerun", OLD, "--infra", "--json")) == MADE


def test_an_edited_configuration_and_a_name_are_sent_along(aeo: Any, fake: FakeController, tmp_path: Path) -> None:
    (tmp_path / "edited.yaml").write_text("tasks: 1\n")
    fake.answer("POST", f"/api/evaluations/{OLD}/rerun", MADE)
    result = aeo("rerun", OLD, "--config", "edited.yaml", "--name", "repaired")
    assert result.exit_code == 0, result.output
    body = fake.requests[0].body
    assert (body["text"], body["file_name"], body["options"]) == ("tasks: 1\n", "edited.yaml", {"name": "repaired"})
    assert aeo("rerun", OLD, "--config", "missing.yaml").exit_code == 2


def test_a_check_starts_nothing(aeo: Any, fake: FakeController) -> None:
    plan = {"trials": 4, "carried": 3, "tasks": 2, "executor": "sleep", "problems": [], "warnings": ["3 of 4"]}
    fake.answer("POST", f"/api/evaluations/{OLD}/rerun/plan", plan)
    result = aeo("rerun", OLD, "--infra", "--check")
    assert result.exit_code == 0, result.output
    assert "4 trials of 2 tasks, 3 with the earlier result, sleep" in result.stdout
    assert "Nothing was started." in result.stdout
    assert aeo("rerun", OLD, "--check", "--wait").exit_code == 2


@pytest.mark.parametrize("code", [404, 409, 422])
def test_a_refusal_is_wrong_input(aeo: Any, fake: FakeController, code: int) -> None:
    fake.answer("POST", f"/api/evaluations/{OLD}/rerun", problem(code, "it is running.", "id"))
    result = aeo("rerun", OLD, "--infra")
    assert (result.exit_code, result.stdout) == (2, "")


def test_the_status_names_parent_and_reruns(aeo: Any, fake: FakeController) -> None:
    reruns = [
        {"id": "ab", "name": "nightly-3", "state": "running"},
        {"id": "cd", "name": "nightly-4", "state": "failed"},
    ]
    parent = {"id": OLD, "name": "nightly", "state": "failed"}
    fake.answer("GET", ONE, detail(status(parent=OLD), parent=parent, reruns=reruns), detail(status(parent=OLD)))
    shown = aeo("status", ID).stdout
    assert f"rerun of    nightly ({OLD})" in shown
    assert "rerun by    nightly-3 (ab), running, nightly-4 (cd), failed" in shown
    # A controller of an earlier release tells the id alone.
    assert f"rerun of    {OLD}\n" in aeo("status", ID).stdout
