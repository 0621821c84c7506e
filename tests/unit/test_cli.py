"""The command line against a controller of canned answers: tables, JSON, exit codes."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cli_fake import (
    ID,
    ONE,
    TRIALS,
    FakeController,
    Reply,
    aeo,
    as_json,
    detail,
    ended,
    fake,
    problem,
    status,
    trial,
    worker,
)

from aeo.cli import follow

# --- submit


def test_submit_sends_text_name_folder_and_options(aeo: Any, fake: FakeController, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("executor: sleep\n# käse\n")
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": ["odd"]}, 201))
    result = aeo(
        *("submit", "job.yaml", "--executor", "sleep", "--name", "n", "--workers", "a, b", "--priority", "-3"),
        *("--per-worker-concurrency", "all", "--agent-timeout-multiplier", "1.5", "--max-requeues", "0"),
    )
    assert result.exit_code == 0, result.output
    (request,) = fake.requests
    assert request.body == {
        "text": "executor: sleep\n# käse\n",
        "file_name": "job.yaml",
        "working_dir": str(tmp_path),
        "options": {
            "executor": "sleep",
            "name": "n",
            "workers": ["a", "b"],
            "per_worker_concurrency": "all",
            "priority": -3,
            "agent_timeout_multiplier": 1.5,
            "max_requeues": 0,
        },
    }
    assert request.headers["Authorization"] == "Bearer s3cret"
    assert "nightly" in result.stdout
    assert ID in result.stdout
    assert "4 trials" in result.stdout
    assert f"aeo watch {ID}" in result.stdout
    assert "Warning: odd" in result.stderr


def test_submit_reads_standard_input_and_leaves_unsaid_options_out(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": []}, 201))
    result = aeo("submit", "-", "--json", input="executor: sleep")
    assert as_json(result)["evaluation"]["id"] == ID
    assert fake.requests[0].body["text"] == "executor: sleep"
    assert fake.requests[0].body["options"] == {}


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 3)])
def test_submit_wait_prints_the_result_and_exits_by_it(aeo: Any, fake: FakeController, state: str, code: int) -> None:
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": []}, 201))
    fake.answer("GET", ONE, detail(status()), detail(status("merging")), detail(ended(state, reason="why")))
    fake.answer(
        "GET",
        TRIALS,
        {"trials": [trial(reward=1.0), trial("a__2", "infra_error"), trial("a__3", x=1, y=0.5)], "total": 7},
    )
    result = aeo("submit", "-", "--wait", input="x: 1")
    assert result.exit_code == code, result.output
    lines = result.stdout.splitlines()
    assert any(line.split() == ["a", "a__1", "scored", "1", "w1", "2.5"] for line in lines)
    assert any("infra_error" in line and "EnvironmentStartTimeoutError" in line for line in lines)
    assert "x=1 y=0.5" in result.stdout
    assert "4 more trials" in result.stdout
    assert any("oracle" in line and "0.667" in line and "3 of 4 scored (75 %)" in line for line in lines)
    assert f"nightly {state} (why)" in lines
    assert "Job folder: /data/jobs/nightly" in lines
    progress = result.stderr.splitlines()
    assert progress[0] == "nightly: 1/4 done (scored 1), 2 running, ETA 1m 15s"
    assert "merging" in progress[1]
    assert state in progress[-1]


def test_wait_json_is_the_final_detail_alone(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": ["odd"]}, 201))
    fake.answer("GET", ONE, detail(status()), detail(ended()))
    result = aeo("submit", "-", "--wait", "--json", input="x: 1")
    assert result.exit_code == 0
    assert as_json(result)["status"]["state"] == "succeeded"
    assert ID in result.stderr
    assert "Warning: odd" in result.stderr


def test_submit_shows_each_problem_with_field_and_fix(aeo: Any, fake: FakeController) -> None:
    reply = problem(422, "is 0.", "n_attempts", "Use at least 1.")
    reply.body["problems"].append({"message": "matches no task.", "field": "datasets[0]", "fix": ""})
    fake.answer("POST", "/api/evaluations", reply)
    result = aeo("submit", "-", "--json", input="x: 1")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.splitlines() == [
        "Error: n_attempts: is 0. Use at least 1.",
        "Error: datasets[0]: matches no task.",
    ]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: None, "cannot be read: No such file"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: path.write_bytes(b"a: 1\nb: \xff\n"), "f:2: is no UTF-8 text"),
        (lambda path: path.write_bytes(b"x" * 3000), "is larger than 2000 bytes"),
    ],
)
def test_submit_refuses_a_file_it_cannot_send(
    aeo: Any, fake: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Any, said: str
) -> None:
    monkeypatch.setenv("AEO_MAX_BODY", "2000")
    make(tmp_path / "f")
    result = aeo("submit", "f")
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stderr.startswith("Error: f")
    assert fake.requests == []


@pytest.mark.parametrize(
    "option",
    [
        ("--per-worker-concurrency", "0"),
        ("--per-worker-concurrency", "many"),
        ("--agent-timeout-multiplier", "nan"),
        ("--agent-timeout-multiplier", "0"),
        ("--max-requeues", "-1"),
        ("--priority", "high"),
    ],
)
def test_submit_refuses_wrong_options_before_sending(aeo: Any, fake: FakeController, option: tuple[str, str]) -> None:
    result = aeo("submit", "-", *option, input="x: 1")
    assert result.exit_code == 2
    assert option[0] in result.stderr
    assert fake.requests == []


def test_submit_cut_says_that_it_may_have_been_accepted(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status()}, 201, cut=True))
    result = aeo("submit", "-", input="x: 1")
    assert result.exit_code == 1
    assert "may have been accepted" in result.stderr


# --- status, watch, cancel


def test_status_lists_with_coverage_and_local_times(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", "/api/evaluations", {"evaluations": [status(), ended("failed", name="b")], "total": 9})
    result = aeo("status", "--state", "failed", "--limit", "2", "--offset", "1")
    assert fake.requests[0].query == {"state": ["failed"], "limit": ["2"], "offset": ["1"]}
    assert result.exit_code == 0
    _, first, second = result.stdout.splitlines()
    assert ID in first
    assert "1/4" in first
    assert "1 of 4 scored (25 %)" in first
    assert "2026-11-29 19:00:00" in first
    assert "scored 3, infra_error 1" in second
    assert "3 of 4 scored (75 %)" in second
    assert "6 older ones: aeo status --offset 3" in result.stderr


def test_status_of_one_shows_scores_shares_runs_and_warnings(aeo: Any, fake: FakeController) -> None:
    run = {
        "claim": {"trial": "a__9", "worker": "w2", "attempt": 2},
        "started_at": "2026-11-29T10:00:00+00:00",
        "phase": "agent",
    }
    fake.answer("GET", "/api/evaluations/nightly", detail(status(requeues=1), running=[run]))
    result = aeo("status", "nightly")
    assert result.exit_code == 0
    for text in ("1/4 done (scored 1), 2 running, 1 waiting", "1 of 4 scored (25 %)", "/data/jobs/nightly", "1m 15s"):
        assert text in result.stdout
    rows = [line.split() for line in result.stdout.splitlines()]
    assert ["oracle", "m", "0.667", "1", "of", "4", "scored", "(25", "%)"] in rows
    assert ["w1", "1", "1", "1"] in rows
    assert ["a__9", "w2", "2", "agent"] in [row[:4] for row in rows]
    assert "Warning: 2 task folders were skipped." in result.stderr


def test_json_is_the_answer_unchanged(aeo: Any, fake: FakeController) -> None:
    listing = {"evaluations": [status()], "total": 1, "more": "later"}
    fake.answer("GET", "/api/evaluations", listing)
    fake.answer("GET", ONE, detail(status()))
    fake.answer("GET", "/api/workers", {"workers": [worker()]})
    fake.answer("PUT", "/api/workers/w1/weight", {"worker": {}})
    fake.answer("POST", f"{ONE}/cancel", {"evaluation": status("cancelling")})
    assert as_json(aeo("status", "--json")) == listing
    assert as_json(aeo("status", ID, "--json"))["status"]["submitted_at"] == "2026-11-29T10:00:00+00:00"
    assert as_json(aeo("workers", "--json")) == {"workers": [worker()]}
    assert as_json(aeo("workers", "weight", "w1", "2", "--json")) == {"worker": {}}
    assert as_json(aeo("cancel", ID, "--json"))["evaluation"]["state"] == "cancelling"


def test_watch_outlives_a_controller_that_goes_away(aeo: Any, fake: FakeController) -> None:
    fake.answer(
        *("GET", ONE, detail(status()), Reply(detail(status()), cut=True), problem(503, "The store is away.")),
        *(Reply(raw=b"<h1>502</h1>", status=502, content_type="text/html"), detail(ended())),
    )
    fake.answer("GET", TRIALS, {"trials": [trial(reward=1)], "total": 1})
    result = aeo("watch", ID)
    assert result.exit_code == 0, result.output
    assert result.stderr.count("Trying again") == 1
    assert "The controller answers again." in result.stderr


def test_watch_gives_up_in_the_end_and_says_so(aeo: Any, fake: FakeController, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(follow, "PATIENCE_SECONDS", 0.1)
    fake.answer("GET", ONE, detail(status()), problem(503, "The store is away."))
    result = aeo("watch", ID)
    assert result.exit_code == 1
    assert "The store is away." in result.stderr.splitlines()[-1]
    assert f"later: aeo watch {ID}" in result.stderr
    assert len(fake.made("GET", ONE)) > 3


def test_watch_does_not_wait_for_what_is_not_there(aeo: Any) -> None:
    result = aeo("watch", "nothing")
    assert result.exit_code == 2
    assert result.stderr.startswith("Error: ")


def test_progress_lines_come_only_with_news(aeo: Any, fake: FakeController) -> None:
    same = [detail(status(), eta_seconds=float(second)) for second in range(9)]
    fake.answer("GET", ONE, *same, detail(ended()))
    fake.answer("GET", TRIALS, {"trials": [], "total": 0})
    assert len(aeo("watch", ID).stderr.splitlines()) == 2


def test_cancel_tells_the_state(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", "/api/evaluations/nightly/cancel", {"evaluation": status("cancelling")})
    result = aeo("cancel", "nightly")
    assert result.exit_code == 0
    assert "nightly" in result.stdout
    assert "cancelling" in result.stdout
    assert "1/4 done" in result.stdout


def test_cancel_of_an_ended_one_is_a_conflict(aeo: Any, fake: FakeController) -> None:
    fake.answer("POST", f"{ONE}/cancel", problem(409, "evaluation nightly is failed.", "id"))
    result = aeo("cancel", ID)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: id: evaluation nightly is failed.\n"


@pytest.mark.parametrize("name", ["..", "a/b", "a b", ""])
@pytest.mark.parametrize("command", ["status", "watch", "cancel"])
def test_odd_names_are_never_sent(aeo: Any, fake: FakeController, command: str, name: str) -> None:
    assert aeo(command, name).exit_code == 2
    assert fake.requests == []


# --- workers


def test_workers_table(aeo: Any, fake: FakeController) -> None:
    other = worker(
        info={"id": "w2", "capacity": {"slots": 1, "cpus": 2, "memory_mb": 512}},
        heartbeat=None,
        heartbeat_age=None,
        weight=2.5,
        weight_override=2.5,
        state="lost",
        note="gone home",
    )
    fake.answer("GET", "/api/workers", {"workers": [worker(), other]})
    result = aeo("workers")
    _, first, second = result.stdout.splitlines()
    for text in ("2/4", "4 (auto)", "8 (12 %)", "16.0 GiB (50 %)", "2s ago", "harbor 0.26.0, sleep"):
        assert text in first
    assert "lost" in second
    assert "2.5 (set)" in second
    assert "gone home" in second


@pytest.mark.parametrize(("text", "sent"), [("2.5", 2.5), ("0", 0.0), ("auto", None)])
def test_weight(aeo: Any, fake: FakeController, text: str, sent: float | None) -> None:
    fake.answer("PUT", "/api/workers/w1/weight", {"worker": {}})
    result = aeo("workers", "weight", "w1", text)
    assert result.exit_code == 0
    assert fake.requests[0].body == {"weight": sent}
    assert "w1" in result.stdout


@pytest.mark.parametrize("text", ["much", "nan", "inf", "-1"])
def test_weight_must_be_a_number(aeo: Any, fake: FakeController, text: str) -> None:
    assert aeo("workers", "weight", "w1", "--", text).exit_code == 2
    assert fake.requests == []


def test_a_mean_over_fewer_trials_than_were_scored_says_so(aeo: Any, fake: FakeController) -> None:
    body = detail(status(outcomes={"scored": 3}))
    body["scores"][0] |= {"means": {"reward": 0.5, "style": 0.25}, "counts": {"reward": 3, "style": 1}}
    fake.answer("GET", "/api/evaluations/nightly", body)
    assert "reward=0.5 style=0.25 (of 1)" in aeo("status", "nightly").stdout
