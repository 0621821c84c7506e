"""Pausing, resuming, draining, removing on the command line, against a controller of canned answers."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

from typing import Any

import pytest
from cli_fake import ID, ONE, TRIALS, FakeController, aeo, as_json, detail, ended, fake, problem, status, trial, worker

PAUSED = status("paused", reason="quota used up")


def test_pause_sends_the_reason_and_tells_how_to_resume(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", f"{ONE}/pause", {"evaluation": PAUSED})
    result = aeo("pause", ID, "--reason", "quota used up")
    assert result.exit_code == 0, result.output
    assert fake.requests[0].body == {"reason": "quota used up"}
    assert f"nightly ({ID}) is paused (quota used up)" in result.stdout
    assert f"aeo resume {ID}" in result.stdout
    assert as_json(aeo("pause", ID, "--json"))["evaluation"]["state"] == "paused"
    assert fake.requests[1].body == {"reason": ""}


def test_resume_tells_the_state(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", f"{ONE}/resume", {"evaluation": status()})
    result = aeo("resume", ID)
    assert result.exit_code == 0, result.output
    assert "is running" in result.stdout
    assert as_json(aeo("resume", ID, "--json"))["evaluation"]["state"] == "running"


@pytest.mark.parametrize("command", ["pause", "resume"])
def test_a_conflict_is_wrong_input(aeo: Any, fake: FakeController, command: str) -> None:
    fake.answer("POST", f"{ONE}/{command}", problem(409, "evaluation nightly is failed.", "id"))
    result = aeo(command, ID)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: id: evaluation nightly is failed.\n"


def test_a_wait_says_that_it_is_paused_and_goes_on_waiting(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", ONE, detail(status()), detail(PAUSED), detail(PAUSED), detail(status()), detail(ended()))
    fake.answer("GET", TRIALS, {"trials": [trial(reward=1)], "total": 1})
    result = aeo("watch", ID)
    assert result.exit_code == 0, result.output
    said = [line for line in result.stderr.splitlines() if "aeo resume" in line]
    assert said == [
        f"nightly ({ID}) is paused (quota used up). Waiting until somebody resumes it: aeo resume {ID}",
    ]
    assert "nightly goes on." in result.stderr


def test_a_wait_says_what_is_waited_for(aeo: Any, fake: FakeController) -> None:
    waiting = status(reason="waiting: no worker is online (none has registered).")
    fake.answer("GET", ONE, detail(waiting), detail(waiting), detail(ended()))
    fake.answer("GET", TRIALS, {"trials": [], "total": 0})
    assert aeo("watch", ID).stderr.count("no worker is online") == 1


def test_status_shows_reasons(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", ONE, detail(PAUSED))
    shown = aeo("status", ID).stdout
    assert "paused (quota used up)" in shown
    assert f"aeo resume {ID}" in shown
    failed = ended("failed", reason="merge failed: no space")
    fake.answer("GET", "/api/evaluations", {"evaluations": [PAUSED, failed, status(reason="resumed")], "total": 3})
    head, first, second, third = aeo("status").stdout.splitlines()
    assert head.split()[-1] == "reason"
    assert first.rstrip().endswith("quota used up")
    assert second.rstrip().endswith("merge failed: no space")
    assert "resumed" not in third
    fake.answer("GET", "/api/evaluations", {"evaluations": [status()], "total": 1})
    assert "reason" not in aeo("status").stdout


@pytest.mark.parametrize(
    ("command", "state", "body"),
    [
        (("pause", "w1", "--note", "new driver"), "paused", {"note": "new driver"}),
        (("pause", "w1"), "paused", {"note": ""}),
        (("resume", "w1"), "online", None),
        (("drain", "w1"), "draining", None),
    ],
)
def test_what_is_wanted_of_a_worker(
    aeo: Any, fake: FakeController, command: tuple[str, ...], state: str, body: Any
) -> None:
    fake.answer("POST", f"/api/workers/w1/{command[0]}", {"worker": worker(state=state, note="why")})
    result = aeo("workers", *command)
    assert result.exit_code == 0, result.output
    assert fake.requests[0].body == body
    assert f"w1 is {state} (why), running trials: 2." in result.stdout
    assert as_json(aeo("workers", *command, "--json"))["worker"]["state"] == state


@pytest.mark.parametrize("force", [False, True])
def test_remove(aeo: Any, fake: FakeController, force: bool) -> None:
    fake.answer("DELETE", "/api/workers/w1", {"removed": {"id": "w1", "given_back": 2, "alive": force}})
    flags = ["--force"] if force else []
    result = aeo("workers", "remove", "w1", *flags)
    assert result.exit_code == 0, result.output
    assert fake.requests[0].query == ({"force": ["true"]} if force else {})
    assert "given back: 2" in result.stdout
    assert ("stays out" in result.stderr) is force
    assert as_json(aeo("workers", "remove", "w1", "--json"))["removed"]["given_back"] == 2


def test_a_busy_worker_is_not_removed(aeo: Any, fake: FakeController) -> None:
    fake.answer("DELETE", "/api/workers/w1", problem(409, "worker w1 is alive and runs trials: 2.", "id", "Drain it."))
    result = aeo("workers", "remove", "w1")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "alive" in result.stderr


@pytest.mark.parametrize("command", ["pause", "resume", "drain", "remove"])
def test_help_of_each_has_examples_and_odd_names_are_never_sent(aeo: Any, fake: FakeController, command: str) -> None:
    assert f"aeo workers {command} gpu-1" in aeo("workers", command, "--help").stdout
    assert aeo("workers", command, "..").exit_code == 2
    assert fake.requests == []


def test_allow(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/workers/w1/allow", {"removed": []})
    assert "w1 may come back" in aeo("workers", "allow", "w1").stdout
    assert as_json(aeo("workers", "allow", "w1", "--json")) == {"removed": []}


ALERT = {
    "kind": "worker_lost",
    "level": "critical",
    "text": "Worker w1 is lost: \x1b[31m",
    "worker": "w1",
    "evaluation": "",
    "trial": "",
    "since": "2026-03-01T12:00:00+00:00",
}


@pytest.mark.parametrize("check", [False, True])
@pytest.mark.parametrize("level", ["critical", "warning"])
def test_alerts(aeo: Any, fake: FakeController, level: str, check: bool) -> None:
    fake.answer("GET", "/api/alerts", {"alerts": [{**ALERT, "level": level}]})
    result = aeo("alerts", *(["--check"] if check else []))
    assert result.exit_code == int(check and level == "critical"), result.output
    assert f"{level:8}  Worker w1 is lost: \\x1b[31m (since 2026-03-01T12:00:00Z)" in result.stdout
    assert as_json(aeo("alerts", "--json"))["alerts"][0]["worker"] == "w1"


def test_no_alerts(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", "/api/alerts", {"alerts": []})
    result = aeo("alerts", "--check")
    assert (result.exit_code, result.stdout) == (0, "Nothing to look at.\n")


def test_what_waits_for_workers_is_said_with_the_status(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", "/api/evaluations", {"evaluations": [status()], "total": 1})
    said = "No worker takes work, and evaluations wait (1): w1 is revoked (aeo workers allow w1)."
    fake.answer("GET", "/api/alerts", {"alerts": [{"kind": "no_worker", "level": "critical", "text": said}]})
    assert said in aeo("status").stderr
    fake.answer("GET", "/api/alerts", problem(503, "away"))
    assert aeo("status").exit_code == 0


def test_who_is_kept_out_is_named(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", "/api/workers", {"workers": [], "out": {"w1": "revoked"}})
    result = aeo("workers")
    assert result.exit_code == 0
    assert "w1 is revoked. Let it in again: aeo workers allow w1" in result.stderr
