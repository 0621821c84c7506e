"""Trajectories, test reports and runs, from files that may be as large or as wrong as they like."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.artifacts import report, runs, trajectory
from aeo.artifacts.folder import Folder
from aeo.config import Config
from aeo.core.errors import InputError, NotFound
from aeo.layout import Shared
from aeo.redaction import Redactor
from aeo.site import Site
from aeo.store.connection import Db

KEY = "sk-0123456789abcdef"


def steps_of(count: int, size: int = 10) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = [{"step_id": 1, "source": "user", "message": "Bitte übersetze 漢字 🙂"}]
    for number in range(2, count + 1):
        tool = "bash" if number % 3 else "edit"
        made.append(
            {
                "step_id": number,
                "source": "agent",
                "timestamp": f"2025-01-01T00:00:{number % 60:02}Z",
                "message": f"step {number} " + "x" * size,
                "reasoning_content": "because",
                "tool_calls": [
                    {"tool_call_id": f"c{number}", "function_name": tool, "arguments": {"command": f"ls {number}"}}
                ],
                "observation": {"results": [{"source_call_id": f"c{number}", "content": f"out {number}"}]},
                "metrics": {"prompt_tokens": 100, "completion_tokens": 5, "cost_usd": 0.01},
            }
        )
    return made


def write(folder: Path, document: Any, name: str = "agent/trajectory.json") -> Folder:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document, ensure_ascii=False, indent=1))
    return Folder(folder, Redactor({"API_KEY": KEY}))


NAME = "agent/trajectory.json"
ATIF = {"schema_version": "ATIF-v1.8", "agent": {"name": "ägent", "version": "1", "model_name": "m\u00e9"}}


def test_a_page_of_steps_with_calls_and_what_came_back(tmp_path: Path) -> None:
    place = write(tmp_path, {**ATIF, "steps": steps_of(7), "final_metrics": {"total_prompt_tokens": 600}})
    seen = trajectory.overview(place, NAME)
    assert (seen.agent, seen.model, seen.steps, seen.complete) == ("ägent", "mé", 7, True)
    assert (seen.input_tokens, seen.cost_usd) == (600, None)
    assert list(seen.tools.items()) == [("bash", 4), ("edit", 2)]
    found, total = trajectory.steps(place, NAME, offset=1, limit=2)
    assert total == 7
    assert [step.number for step in found] == [2, 3]
    (call,) = found[1].calls
    assert (call.tool, call.arguments.text, call.results[0].text) == ("edit", "ls 3", "out 3")
    assert found[1].reasoning is not None
    assert (found[1].input_tokens, found[1].cache_tokens, found[1].cost_usd) == (100, None, 0.01)
    assert trajectory.steps(place, NAME, limit=1)[0][0].message[0].text == "Bitte übersetze 漢字 🙂"
    edits, total = trajectory.steps(place, NAME, tool="edit")
    assert ([step.number for step in edits], total) == ([3, 6], 2)


def test_long_texts_are_cut_unless_asked_for(tmp_path: Path) -> None:
    place = write(tmp_path, {**ATIF, "steps": steps_of(2, size=trajectory.TEXT)})
    cut = trajectory.steps(place, NAME, offset=1)[0][0].message[0]
    assert len(cut.text) == trajectory.TEXT
    assert cut.left_out == len("step 2 ")
    assert trajectory.steps(place, NAME, offset=1, whole=True)[0][0].message[0].left_out == 0


def test_pictures_only_of_the_trial(tmp_path: Path) -> None:
    def part(path: str) -> dict[str, Any]:
        return {"type": "image", "source": {"media_type": "image/png", "path": path}}

    paths = ["images/a.png", "../shot.png", "../../x.png", "/etc/x.png", "https://example.com/x.png"]
    steps = [{"step_id": 1, "source": "user", "message": [{"type": "text", "text": "see"}, *map(part, paths)]}]
    (step,), _ = trajectory.steps(write(tmp_path, {**ATIF, "steps": steps}), NAME)
    assert [content.picture for content in step.message] == ["", "agent/images/a.png", "shot.png", "", "", ""]


def test_agents_that_were_called_are_trajectories_of_their_own(tmp_path: Path) -> None:
    called = {**ATIF, "trajectory_id": "t2", "steps": steps_of(3)}
    step = {
        "step_id": 1,
        "source": "agent",
        "message": "",
        "observation": {"results": [{"subagent_trajectory_ref": [{"trajectory_id": "t2"}]}]},
    }
    place = write(tmp_path, {**ATIF, "subagent_trajectories": [called], "steps": [step]})
    assert trajectory.overview(place, NAME).agents == ("t2",)
    assert trajectory.steps(place, NAME)[0][0].agents == ("t2",)
    assert trajectory.overview(place, NAME, agent="t2").steps == 3
    assert trajectory.steps(place, NAME, agent="t2", offset=2)[0][0].calls[0].tool == "edit"
    with pytest.raises(NotFound):
        trajectory.overview(place, NAME, agent="t3")


def test_secrets_are_taken_out(tmp_path: Path) -> None:
    steps = steps_of(3)
    steps[1]["message"] = f"the key is {KEY}"
    steps[1]["tool_calls"][0]["function_name"] = KEY
    place = write(tmp_path, {**ATIF, "steps": steps, "notes": KEY})
    assert trajectory.overview(place, NAME).notes == "${API_KEY}"
    assert "${API_KEY}" in trajectory.overview(place, NAME).tools
    (step,), _ = trajectory.steps(place, NAME, tool="${API_KEY}")
    assert step.message[0].text == "the key is ${API_KEY}"


def test_a_file_that_is_still_being_written_shows_its_steps_so_far(tmp_path: Path) -> None:
    text = json.dumps({**ATIF, "steps": steps_of(20)})
    place = write(tmp_path, text[: len(text) // 2])
    seen = trajectory.overview(place, NAME)
    assert not seen.complete
    assert 5 < seen.steps < 15
    assert len(trajectory.steps(place, NAME)[0]) == seen.steps


def test_a_changed_file_is_looked_through_again(tmp_path: Path) -> None:
    assert trajectory.overview(write(tmp_path, {**ATIF, "steps": steps_of(2)}), NAME).steps == 2
    assert trajectory.overview(write(tmp_path, {**ATIF, "steps": steps_of(5)}), NAME).steps == 5


def test_two_thousand_large_steps_are_paged_quickly(tmp_path: Path) -> None:
    place = write(tmp_path, {**ATIF, "steps": steps_of(2000, size=10_000)})
    assert trajectory.overview(place, NAME).steps == 2000
    began = time.monotonic()
    for offset in (0, 1000, 1950):
        found, _ = trajectory.steps(place, NAME, offset=offset, limit=50)
        assert [step.number for step in found] == list(range(offset + 1, offset + 51))
    assert time.monotonic() - began < 1


@pytest.mark.parametrize("text", ["", "null", "[]", "{", "no", '"x"', "[" * 100_000, "\ufeff{}", "{}"])
def test_what_is_no_trajectory_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        trajectory.overview(write(tmp_path, text), NAME)


KEYS = (
    *("agent", "steps", "name", "message", "tool_calls", "function_name", "arguments", "observation", "results"),
    *("content", "metrics", "timestamp", "source", "text", "type", "path", "subagent_trajectories", "prompt_tokens"),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=True) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([*KEYS, "x"]), inner, max_size=5),
    max_leaves=20,
)


@given(json_values, json_values)
def test_no_content_is_too_odd(tmp_path_factory: pytest.TempPathFactory, first: Any, second: Any) -> None:
    folder = tmp_path_factory.mktemp("t")
    place = write(folder, {"agent": first, "steps": [first, second, {"message": second, "tool_calls": [first]}]})
    assert trajectory.overview(place, NAME).steps == 3
    trajectory.steps(place, NAME)
    place = write(folder, {"results": {"tests": [first, second], "tool": first, "summary": second}}, "ctrf.json")
    report.read(place, "ctrf.json")


def test_a_report_lists_failed_tests_first(tmp_path: Path) -> None:
    tests = [
        {"name": "a", "status": "passed", "duration": 1500},
        {"name": "b", "status": "failed", "message": f"leaks {KEY}", "trace": "line"},
        {"name": "c", "status": "strange"},
    ]
    place = write(
        tmp_path, {"results": {"tool": {"name": "pytest"}, "summary": {"tests": 3}, "tests": tests}}, "r.json"
    )
    read = report.read(place, "r.json")
    assert [(test.name, test.status) for test in read.tests] == [("b", "failed"), ("a", "passed"), ("c", "other")]
    assert read.tests[0].message == "leaks ${API_KEY}"
    assert read.tests[1].seconds == 1.5
    assert (read.tool, read.counts) == ("pytest", {"failed": 1, "passed": 1, "other": 1})


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"results": 3}', "[" * 100_000])
def test_what_is_no_report_is_said(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError):
        report.read(write(tmp_path, text, "r.json"), "r.json")


def test_runs_are_told_with_their_reasons(tmp_path: Path, fake_db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_KEY", KEY)
    site = Site(config=Config(secret_names=("API_KEY",)), shared=Shared(tmp_path, tmp_path / "jobs"), db=fake_db)
    folder = tmp_path / "evaluations" / "e1"
    (folder / "superseded" / "t__1.first").mkdir(parents=True)
    events = [
        {"kind": "claimed", "trial": "t__1", "token": "first", "worker": "a", "attempt": "1"},
        {"kind": "claimed", "trial": "t__10", "token": "other", "worker": "a", "attempt": "1"},
        {
            "kind": "requeued",
            "trial": "t__1",
            "token": "first",
            "worker": "a",
            "attempt": "1",
            "reason": f"died: {KEY}",
        },
        {"kind": "claimed", "trial": "t__1", "token": "second", "worker": "b", "attempt": "2"},
        {"kind": "superseded", "trial": "t__1", "token": "first", "worker": "a", "attempt": "1"},
        {"kind": "committed", "trial": "t__1", "token": "second", "worker": "b", "attempt": "2", "row": {"a": 1}},
    ]
    lines = [json.dumps({"at": f"2025-01-01T00:00:0{i}+00:00", **event}) for i, event in enumerate(events)]
    compact = [json.dumps(json.loads(line), separators=(",", ":")) for line in lines]
    (folder / "events.jsonl").write_text("\n".join([*compact, '{"trial":"t__1","torn']) + "\n")
    first, second = runs.of(site, "e1", "t__1")
    assert (first.worker, first.end, first.reason, first.has_files) == ("a", "requeued", "died: ${API_KEY}", True)
    assert (second.number, second.end, second.has_files) == (2, "committed", False)
    assert second.began_at is not None
    assert runs.of(site, "e1", "none") == ()
    assert runs.of(site, "e2", "t__1") == ()
