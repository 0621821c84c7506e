"""``aeo run`` with a Harbor of a few lines in a process of its own: what is passed on, and what is refused."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cli_fake import ID, ONE, TRIALS, FakeController, Reply, aeo, as_json, detail, ended, fake, status

#: Stands for Harbor's command line; prints what it was given as a configuration.
HARBOR = """
import json, os, sys

def app():
    args = sys.argv[1:]
    if "--bad" in args:
        print("Usage: harbor run [OPTIONS]", file=sys.stderr)
        print("╭─ Error ─╮\\n│ No such option: --bad │\\n╰─────────╯", file=sys.stderr)
        return 2
    if "--trace" in args:
        print("╭── Traceback ──╮\\n│ frames │\\n╰───────╯\\nValidationError: n_attempts", file=sys.stderr)
        return 1
    if "--silly" in args:
        print("[1, 2]")
        return 0
    if "--dry-run" in args:
        print("Dry run OK")
        return 0
    print("a remark on standard output")
    print("a remark on standard error", file=sys.stderr)
    agent = {"name": "oracle", "env": dict(a.split("=") for a in args if a.startswith("KEY="))}
    config = {
        "agent_timeout_multiplier": None, "agents": [agent], "args": args, "prog": sys.argv[0],
        "cwd": os.getcwd(), "telemetry": os.environ["HARBOR_TELEMETRY"], "text": "käse",
    }
    print(json.dumps(config, indent=2, ensure_ascii=False))
"""


@dataclass(frozen=True)
class FakePython:
    path: Path
    version: str = "0.26.0"


@pytest.fixture
def harbor(fake: FakeController, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aeo.cli import drop_in

    package = tmp_path / "plugin" / "harbor" / "cli"
    package.mkdir(parents=True)
    (package / "main.py").write_text(HARBOR)
    monkeypatch.setattr(drop_in, "harbor_python", lambda **_: FakePython(Path(sys.executable)))
    monkeypatch.setattr(drop_in, "plugin_path", lambda: tmp_path / "plugin")
    monkeypatch.setenv("PYTHONUTF8", "1")
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": []}, 201))
    fake.answer("GET", ONE, detail(ended()))
    fake.answer("GET", TRIALS, {"trials": [], "total": 0})


@pytest.mark.usefixtures("harbor")
def test_run_submits_what_harbor_resolves_and_waits(aeo: Any, fake: FakeController, tmp_path: Path) -> None:
    result = aeo("run", "-p", "tasks", "-a", "oracle", "-k", "2", "--ak", "x=1", "--job-name=j", "--workers", "w1")
    assert result.exit_code == 0, result.output
    body = fake.requests[0].body
    assert body["config"]["args"] == [
        *("run", "--print-config", "-p", "tasks", "-a", "oracle", "-k", "2", "--ak", "x=1", "--job-name=j")
    ]
    assert body["config"]["prog"] == "harbor"
    assert body["config"]["telemetry"] == "0"
    assert body["config"]["text"] == "käse"
    assert body["config"]["agent_timeout_multiplier"] is None
    assert body["working_dir"] == str(tmp_path)
    # No multiplier of ours: a drop-in must not change what is measured.
    assert body["options"] == {"executor": "harbor", "workers": ["w1"]}
    assert "nightly succeeded" in result.stdout
    assert "a remark on standard output" in result.stderr
    assert "a remark on standard error" in result.stderr


@pytest.mark.usefixtures("harbor")
@pytest.mark.parametrize(("state", "code"), [("failed", 1), ("cancelled", 3)])
def test_run_exits_by_the_end(aeo: Any, fake: FakeController, state: str, code: int) -> None:
    fake.answer("GET", ONE, detail(ended(state)))
    assert aeo("run").exit_code == code


@pytest.mark.usefixtures("harbor")
def test_run_json_without_waiting(aeo: Any, fake: FakeController) -> None:
    result = aeo("run", "--no-wait", "--json")
    assert as_json(result)["evaluation"]["id"] == ID
    assert len(fake.requests) == 1


@pytest.mark.usefixtures("harbor")
@pytest.mark.parametrize(
    ("flag", "said", "unsaid"),
    [
        ("--bad", "No such option: --bad", "Traceback"),
        ("--trace", "ValidationError: n_attempts", "frames"),
    ],
)
def test_run_passes_harbors_refusal_on(aeo: Any, fake: FakeController, flag: str, said: str, unsaid: str) -> None:
    result = aeo("run", flag, "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert unsaid not in result.stderr
    assert fake.requests == []


@pytest.mark.usefixtures("harbor")
def test_run_refuses_a_masked_secret(aeo: Any, fake: FakeController) -> None:
    # As Harbor prints `--ae KEY=sk-abcdefghi`: submitted like that, the agent would run with asterisks for a key.
    result = aeo("run", "--ae", "KEY=sk-a****ghi")
    assert result.exit_code == 2
    assert "agents[0].env.KEY" in result.stderr
    assert "KEY=${KEY}" in result.stderr
    assert fake.requests == []


@pytest.mark.usefixtures("harbor")
@pytest.mark.parametrize("flag", ["--upload", "--launch", "--diff=x", "--plugin", "--server", "--export-push"])
def test_run_refuses_flags_that_would_be_lost(aeo: Any, fake: FakeController, flag: str) -> None:
    result = aeo("run", "-p", "tasks", flag)
    assert result.exit_code == 2
    assert f"Error: {flag.partition('=')[0]}: is not for `aeo run`." in result.stderr
    assert fake.requests == []


@pytest.mark.usefixtures("harbor")
def test_run_notes_flags_that_mean_less(aeo: Any) -> None:
    result = aeo("run", "-o", "there", "-n4")
    for flag in ("--jobs-dir", "--n-concurrent"):
        assert f"Warning: {flag}: " in result.stderr


@pytest.mark.usefixtures("harbor")
@pytest.mark.parametrize(
    "flags", [("--env-file", "my.env"), ("--env-file=my.env",), ("--env-file=x", "--env-file", "my.env")]
)
def test_run_hands_the_path_of_an_env_file_on(aeo: Any, fake: FakeController, flags: tuple[str, ...]) -> None:
    aeo("run", *flags, "--no-wait")
    assert fake.requests[0].body["config"]["env_file"] == str(Path.cwd() / "my.env")


@pytest.mark.usefixtures("harbor")
def test_run_leaves_dry_run_and_print_config_to_harbor(aeo: Any, fake: FakeController) -> None:
    assert aeo("run", "--dry-run").stdout == "Dry run OK\n"
    printed = aeo("run", "--print-config", "-p", "x")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout.partition("\n")[2])["args"] == ["run", "--print-config", "-p", "x"]
    assert aeo("run", "--print-config", "--bad").exit_code == 2
    assert fake.requests == []


@pytest.mark.usefixtures("harbor")
def test_run_says_when_harbor_prints_something_else(aeo: Any, fake: FakeController) -> None:
    result = aeo("run", "--silly")
    assert result.exit_code == 1
    assert "printed no JSON object" in result.stderr
    assert fake.requests == []


@pytest.mark.usefixtures("harbor")
def test_run_is_not_fooled_by_the_folder_one_stands_in(aeo: Any, tmp_path: Path) -> None:
    if sys.version_info < (3, 11):
        pytest.skip("Harbor runs on Python >= 3.12; this stands in for it")
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')")
    assert aeo("run").exit_code == 0
