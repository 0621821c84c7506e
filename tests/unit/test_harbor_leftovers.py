"""What killed sessions of Harbor leave, where it cannot be removed: that is told, and not taken for removed."""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest
from waiting import eventually

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import leftovers


def died(workdir: Path) -> Path:
    """The scratch folder of a session that was killed while a trial ran."""
    scratch = leftovers.folder(workdir)
    scratch.mkdir(parents=True)
    (scratch / "owner").write_text("1 0")
    leftovers.note_trial(scratch, "task__abc", workdir / "content")
    return scratch


def a_docker(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_an_engine_that_does_not_answer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    a_docker(tmp_path, "echo 'Cannot connect' >&2; exit 1", monkeypatch)
    died(tmp_path / "batch")
    with pytest.raises(ExecutorFailed, match="containers of task__abc, as Docker does not answer"):
        leftovers.sweep(tmp_path / "batch")


def test_a_container_that_stays_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"c1\\ttask__abc__env\\t{tmp_path / 'batch' / 'content'}\\n"
    a_docker(tmp_path, f"case $1 in ps) printf '{line}';; esac", monkeypatch)
    died(tmp_path / "batch")
    with pytest.raises(ExecutorFailed, match="may live on: container c1"):
        leftovers.sweep(tmp_path / "batch")


def test_a_container_that_goes_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    line = f"c1\\ttask__abc__env\\t{tmp_path / 'batch' / 'content'}\\n"
    gone = tmp_path / "gone"
    script = f"case $1 in ps) [ -e {gone} ] || printf '{line}';; rm) echo \"$@\" >> {gone};; esac"
    a_docker(tmp_path, script, monkeypatch)
    scratch = died(tmp_path / "batch")
    leftovers.sweep(tmp_path / "batch")
    assert gone.read_text() == "rm --force --volumes c1\n"
    assert not list((scratch / "trials").iterdir())


def test_only_an_end_that_is_seen_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        assert not leftovers.has_ended(process.pid)
        process.kill()
        # A zombie, until it is waited for.
        eventually(lambda: leftovers.has_ended(process.pid))
    assert leftovers.has_ended(process.pid)

    def full(_: Path) -> str:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(Path, "read_text", full)
    assert not leftovers.has_ended(process.pid)
