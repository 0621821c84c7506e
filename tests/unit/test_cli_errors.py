"""The command line when things are wrong: nobody there, broken answers, hostile text, interrupts; and its help."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cli_fake import ID, ONE, TRIALS, FakeController, Reply, aeo, detail, ended, fake, problem, status, worker
from waiting import eventually

from aeo.cli import COMMANDS

CALLS = [("status",), ("status", ID), ("watch", ID), ("cancel", ID), ("workers",), ("workers", "weight", "w1", "1")]


@pytest.mark.parametrize("call", CALLS)
def test_nobody_there_names_the_address_and_what_to_start(
    aeo: Any, monkeypatch: pytest.MonkeyPatch, call: tuple[str, ...]
) -> None:
    monkeypatch.setenv("AEO_URL", "http://127.0.0.1:1")
    result = aeo(*call)
    assert (result.exit_code, result.stdout) == (1, "")
    assert "http://127.0.0.1:1" in result.stderr
    assert "aeo up" in result.stderr
    assert "aeo controller" in result.stderr


@pytest.mark.parametrize(
    ("reply", "code", "said"),
    [
        (Reply(raw=b"<h1>hello</h1>", content_type="text/html"), 1, "text/html"),
        (Reply(raw=b"<h1>no</h1>", status=404, content_type="text/html"), 1, "AEO_URL"),
        (Reply(raw=b"<h1>500</h1>", status=500, content_type="text/html"), 1, "500"),
        (Reply(raw=b"", status=302, headers={"Location": "/login"}), 1, "302"),
        (Reply([1, 2]), 1, "instead of the API's JSON"),
        (Reply({"evaluations": []}, cut=True), 1, "was cut"),
        (problem(500, "Something went wrong."), 1, "Something went wrong."),
        (problem(401, "The token is wrong."), 2, "AEO_TOKEN"),
        (problem(422, "is bad.", "state"), 2, "Error: state: is bad."),
        (Reply({"detail": "no\x1b[31m"}, 400), 2, "no\\x1b[31m"),
    ],
)
def test_broken_answers(aeo: Any, fake: FakeController, reply: Reply, code: int, said: str) -> None:
    fake.answer("GET", "/api/evaluations", reply)
    result = aeo("status", "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert result.stderr.startswith("Error: ")
    assert "\x1b" not in result.stderr


@pytest.mark.parametrize("url", ["nonsense", "ftp://x", "http://", "http://x:y"])
def test_an_address_that_is_none(aeo: Any, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("AEO_URL", url)
    result = aeo("status")
    assert result.exit_code == 2
    assert "AEO_URL" in result.stderr


def test_escapes_from_the_server_stay_harmless(aeo: Any, fake: FakeController) -> None:
    evil = "x\x1b]0;owned\x07\x9b31m\u202e[red]"
    fake.answer("GET", "/api/evaluations", {"evaluations": [status(name=evil, state=evil)], "total": 1})
    fake.answer("GET", ONE, detail(status(name=evil, reason=evil), warnings=[evil], job_dir=evil, shares={evil: {}}))
    fake.answer("GET", "/api/workers", {"workers": [worker(note=evil)]})
    for call in (("status",), ("status", ID), ("workers",), ("status", "--json")):
        result = aeo(*call)
        assert result.exit_code == 0
        assert not set(result.output) & set("\x1b\x07\x9b\u202e")
        assert "[red]" in result.output


def test_answers_of_another_version_do_not_break_the_tables(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", "/api/evaluations", {"evaluations": [{"id": "x", "new": 1, "outcomes": None}], "total": "?"})
    fake.answer("GET", "/api/workers", {"workers": [{"info": {"id": "w"}}, 7]})
    assert aeo("status").exit_code == 0
    assert aeo("workers").exit_code == 0
    fake.answer("GET", ONE, {"unexpected": True})
    assert aeo("status", ID).exit_code == 1


def test_the_token_is_found_where_the_controller_keeps_it(
    aeo: Any, fake: FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("AEO_TOKEN")
    (tmp_path / "aeo-data").mkdir()
    (tmp_path / "aeo-data" / "token").write_text("kept\n")
    fake.answer("GET", "/api/workers", {"workers": []})
    assert aeo("workers").exit_code == 0
    assert fake.requests[0].headers["Authorization"] == "Bearer kept"


@pytest.mark.parametrize("what", ["link", "folder", "pipe", "nothing"])
def test_only_a_file_is_a_kept_token(
    aeo: Any, fake: FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str
) -> None:
    monkeypatch.delenv("AEO_TOKEN")
    (tmp_path / "aeo-data").mkdir()
    (tmp_path / "secret").write_text("another one\n")
    token = tmp_path / "aeo-data" / "token"
    {
        "link": lambda: token.symlink_to("../secret"),
        "folder": token.mkdir,
        "pipe": lambda: os.mkfifo(token),
        "nothing": lambda: None,
    }[what]()
    fake.answer("GET", "/api/workers", {"workers": []})
    assert aeo("workers").exit_code == 0
    assert "Authorization" not in fake.requests[0].headers


@pytest.mark.parametrize("name", ["AEO_TOKEN", "AEO_AUTH_TOKEN"])
def test_the_token_may_stand_in_a_file(
    aeo: Any, fake: FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    """Found by use: `aeo worker` read the file that AEO_AUTH_TOKEN named, and `aeo status` sent the name."""
    monkeypatch.delenv("AEO_TOKEN")
    monkeypatch.setenv(name, "@mine")
    fake.answer("GET", "/api/workers", {"workers": []})
    refused = aeo("workers")
    assert refused.exit_code == 2
    assert f"{name}: mine cannot be read" in refused.stderr
    (tmp_path / "mine").write_text("of-alice\n")
    assert aeo("workers").exit_code == 0
    assert fake.requests[0].headers["Authorization"] == "Bearer of-alice"


# --- the program


@pytest.mark.parametrize(
    "command", [[], *([name] for name in COMMANDS if "processes" not in COMMANDS[name][0]), ["workers", "weight"]]
)
def test_help_has_examples(aeo: Any, command: list[str]) -> None:
    result = aeo(*command, "--help")
    assert result.exit_code == 0
    assert "Examples:\n    aeo " in result.stdout.replace("  Examples:", "Examples:")


def test_help_of_the_program_imports_no_command() -> None:
    code = (
        "import sys\nfrom aeo.cli import main\ntry: main(['--help'])\nexcept SystemExit: pass\n"
        "print({name.split('.')[0] for name in sys.modules} & {'httpx', 'rich', 'celery', 'flask', 'redis', 'yaml'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_unknown_command(aeo: Any) -> None:
    assert aeo("sumbit").exit_code == 2


def test_interrupted_while_waiting_it_runs_on(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", ONE, detail(status()))
    process = subprocess.Popen(
        [sys.executable, "-c", "from aeo.cli import main; main()", "watch", ID],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A test run started in the background ignores the signal, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    eventually(lambda: len(fake.made("GET", ONE)) >= 2, timeout=30)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, err
    assert out == ""
    assert "runs on" in err
    assert f"aeo cancel {ID}" in err
    assert "Traceback" not in err
    assert fake.made("POST", f"{ONE}/cancel") == []


def test_live_bar_on_a_terminal(aeo: Any, fake: FakeController) -> None:
    fake.answer("GET", ONE, *[detail(status(name="n\x1b[5m"))] * 2, detail(ended()))
    fake.answer("GET", TRIALS, {"trials": [], "total": 0})
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from aeo.cli import main; main()", "watch", ID],
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "120", "NO_COLOR": "1"},
    )
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # how Linux says that the other end is closed
        while chunk := os.read(ours, 65536):
            shown += chunk
    os.close(ours)
    assert process.wait(timeout=30) == 0
    text = shown.decode()
    assert "1/4" in text
    assert "2 running, ETA 1m 15s" in text
    assert "4/4" in text
    assert "\x1b[5m" not in text
