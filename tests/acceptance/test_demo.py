"""``aeo demo`` as a new user runs it."""

from __future__ import annotations

import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from needs import require
from programs import Program, all_gone
from waiting import eventually

from aeo.core.errors import Unavailable
from aeo.executors.harbor.python import harbor_python


def own_temporary_folder(tmp_path: Path) -> dict[str, str]:
    """So that the test sees what the demo leaves in it."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return {"TMPDIR": str(folder), "AEO_AUTH_TOKEN": ""}


def check(program: Program, tmp_path: Path) -> list[Any]:
    """What every good demo shows; returns its trials."""
    result = json.loads(program.output[program.output.index("\n{") :])
    assert result["status"]["state"] == "succeeded"
    assert result["status"]["done"] == result["status"]["total"] >= 12
    trials: list[Any] = result["trials"]
    assert len({trial["task"] for trial in trials}) * 2 == len(trials)
    outcomes = {trial["row"]["summary"]["outcome"] for trial in trials}
    assert outcomes == {"scored", "invalid"}
    assert {trial["worker"] for trial in trials} == {"worker-1", "worker-2"}
    job = Path(result["job_dir"])
    assert job.is_relative_to(tmp_path / "aeo-demo" / "jobs")
    assert json.loads((job / "result.json").read_text())["finished_at"]
    for trial in trials:
        assert (job / trial["trial"] / "result.json").is_file()
    return trials


def test_demo_without_harbor(tmp_path: Path) -> None:
    program = Program(["demo", "--executor", "command", "--json"], tmp_path, own_temporary_folder(tmp_path))
    try:
        family: set[psutil.Process] = set()

        def over() -> bool:
            family.update(program.family())
            return program.process.poll() is not None

        eventually(over, 60, pause=0.2)
        assert program.process.returncode == 0, program.output
        assert len(family) >= 4
        eventually(lambda: all_gone(list(family)))
        check(program, tmp_path)
        # Nothing is left but the job.
        assert list((tmp_path / "tmp").iterdir()) == []
        assert [path.name for path in (tmp_path / "aeo-demo").iterdir()] == ["jobs"]
    finally:
        program.destroy()


def without_new_python(tmp_path: Path) -> dict[str, str]:
    """A machine with every program of this one but Pythons, uv and Harbor, where nothing can be fetched."""
    bin = tmp_path / "bin"
    bin.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).iterdir() if Path(folder).is_dir() else ():
            if not re.match(r"python|pypy|pyenv|uv|harbor", program.name) and not (bin / program.name).is_symlink():
                (bin / program.name).symlink_to(program)
    home = tmp_path / "home"
    nowhere = ("HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "PYENV_ROOT", "UV_CACHE_DIR", "UV_PYTHON_INSTALL_DIR")
    return {
        **dict.fromkeys(nowhere, str(home)),
        "PATH": str(bin),
        "UV_OFFLINE": "1",
        "UV_PYTHON_DOWNLOADS": "never",
        "AEO_HARBOR_PYTHON": "",
    }


def test_demo_without_a_python_for_harbor(tmp_path: Path) -> None:
    machine = {**own_temporary_folder(tmp_path), **without_new_python(tmp_path)}
    program = Program(["demo", "--json"], tmp_path, machine)
    try:
        assert program.ends(100) == 0, program.output
        said = [line for line in program.output.splitlines() if "cannot be installed" in line]
        assert len(said) == 1
        assert re.match(
            r"Harbor [\d.]+ is not here and cannot be installed \(.*3\.12.*\): install Python >= 3\.12", said[0]
        )
        assert said[0].endswith("The demo runs its command sample instead.")
        assert "Traceback" not in program.output
        check(program, tmp_path)
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        program.destroy()


@pytest.mark.parametrize("asked", [["--executor", "harbor"], ["--environment", "docker"]])
def test_harbor_asked_for_is_not_replaced(tmp_path: Path, asked: list[str]) -> None:
    program = Program(["demo", *asked], tmp_path, {**own_temporary_folder(tmp_path), **without_new_python(tmp_path)})
    try:
        assert program.ends(60) == 1
        assert "install Python >= 3.12" in program.output
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        program.destroy()


def test_demo_with_harbor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    try:
        monkeypatch.setenv("AEO_HARBOR_PYTHON", str(harbor_python().path))
    except Unavailable as error:
        require(False, str(error))
    program = Program(["demo", "--json"], tmp_path, own_temporary_folder(tmp_path))
    try:
        assert program.ends(110) == 0, program.output
        trials = check(program, tmp_path)
        tasks = {trial["task"]: trial["row"]["summary"] for trial in trials}
        assert tasks["no-reward"]["outcome"] == "invalid"
        assert tasks["always-fails"]["rewards"] == {"reward": 0.0}
        assert len(tasks["several-scores"]["rewards"]) > 1
    finally:
        program.destroy()


def test_demo_says_it_in_a_table(tmp_path: Path) -> None:
    root = tmp_path / "root"
    program = Program(["demo", "--executor", "command", "--root", str(root)], tmp_path)
    try:
        assert program.ends(60) == 0, program.output
        for word in ("task", "outcome", "reward", "worker", "seconds"):
            assert word in program.output
        assert re.search(r"14 of 16 scored", program.output)
        assert f"Job folder: {tmp_path / 'aeo-demo' / 'jobs'}" in program.output
        assert (root / "logs" / "control.log").is_file()
    finally:
        program.destroy()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_demo_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    program = Program(["demo", "--executor", "command"], tmp_path, own_temporary_folder(tmp_path))
    try:
        eventually(lambda: " done" in program.output, 60)
        family = program.family()
        assert len(family) >= 5
        program.process.send_signal(number)
        assert program.ends(30) == 130, program.output
        eventually(lambda: all_gone(family))
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        program.destroy()


def test_a_place_that_cannot_be_used_is_said(tmp_path: Path) -> None:
    (tmp_path / "aeo-demo").write_text("in the way")
    program = Program(["demo", "--executor", "command"], tmp_path, own_temporary_folder(tmp_path))
    try:
        assert program.ends() == 2
        assert "aeo-demo" in program.output
        assert list((tmp_path / "tmp").iterdir()) == []
    finally:
        program.destroy()
