"""Finding Harbor's Python, with scripts that play interpreters."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aeo.core.errors import Unavailable
from aeo.executors.harbor import python
from aeo.executors.harbor.python import HARBOR_VERSION, harbor_python


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python: an empty PATH, home and cache."""
    for name in ("AEO_HARBOR_PYTHON", "AEO_CACHE", "PYENV_ROOT", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def interpreter(path: Path, version: str = "3.12", harbor: str = "-") -> Path:
    """A script that answers as a Python of this version with this Harbor would."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{version} {harbor}'\n")
    path.chmod(0o755)
    return path


def made(machine: Path, harbor: str = HARBOR_VERSION) -> Path:
    """An environment made earlier."""
    environment = machine / "cache" / "aeo" / f"harbor-{HARBOR_VERSION}"
    (environment / "lib" / "python3.12" / "site-packages").mkdir(parents=True)
    (environment / "aeo-complete").touch()
    return interpreter(environment / "bin" / "python", harbor=harbor)


def command(machine: Path, interpreter: Path) -> None:
    """The ``harbor`` command, run by this interpreter."""
    script = machine / "bin" / "harbor"
    script.write_text(f"#!{interpreter}\nimport harbor\n")
    script.chmod(0o755)


def test_the_variable_wins_and_may_be_another_version(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made(machine)
    named = interpreter(machine / "named", harbor="0.27.1")
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(named))
    assert (harbor_python().path, harbor_python().version) == (named, "0.27.1")


@pytest.mark.parametrize("harbor", ["", "-"])
def test_a_variable_that_leads_nowhere_is_an_error(machine: Path, monkeypatch: pytest.MonkeyPatch, harbor: str) -> None:
    made(machine)
    named = interpreter(machine / "named") if harbor else machine / "nothing"
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(named))
    with pytest.raises(Unavailable, match="AEO_HARBOR_PYTHON"):
        harbor_python()


def test_the_command_on_path_comes_before_what_was_made(machine: Path) -> None:
    made(machine)
    own = interpreter(machine / "own" / "python", harbor=HARBOR_VERSION)
    command(machine, own)
    assert harbor_python().path == own


def test_a_command_of_another_version_is_passed_over(machine: Path) -> None:
    earlier = made(machine)
    command(machine, interpreter(machine / "own" / "python", harbor="0.25.0"))
    assert harbor_python().path == earlier


def test_an_environment_made_earlier_shows_our_modules(machine: Path) -> None:
    path = made(machine)
    assert harbor_python(create=False).path == path
    pth = path.parent.parent / "lib" / "python3.12" / "site-packages" / "aeo_harbor.pth"
    assert (Path(pth.read_text().strip()) / "aeo_harbor" / "driver.py").is_file()


@pytest.mark.parametrize(
    ("head", "found"),
    [
        ("#!/opt/a/bin/python3\n", "/opt/a/bin/python3"),
        ("#!/opt/a/bin/python3 -I\n", "/opt/a/bin/python3"),
        ("#!/bin/sh\n'''exec' \"/opt/a b/python\" \"$0\" \"$@\"\n' '''\n", "/opt/a b/python"),
        ("#!/usr/bin/env nothing-here\n", None),
        ("import harbor\n", None),
        ("", None),
    ],
)
def test_shebang(machine: Path, head: str, found: str | None) -> None:
    script = machine / "script"
    script.write_text(head)
    assert python.shebang(script) == (Path(found) if found else None)


def test_candidates_are_tried_by_running_them(machine: Path) -> None:
    broken = machine / "bin" / "python3.12"
    broken.write_text("#!/bin/sh\necho 'pyenv: python3.12: command not found' >&2\nexit 127\n")
    broken.chmod(0o755)
    interpreter(machine / "bin" / "python3", version="3.11")
    good = interpreter(machine / "home" / ".pyenv" / "versions" / "3.13.0" / "bin" / "python3", version="3.13")
    assert python.new_enough() == good


def test_none_is_new_enough(machine: Path) -> None:
    interpreter(machine / "bin" / "python3", version="3.11")
    assert python.new_enough() is None


def test_without_leave_nothing_is_made(machine: Path) -> None:
    with pytest.raises(Unavailable, match="AEO_HARBOR_PYTHON"):
        harbor_python(create=False)
    assert not (machine / "cache").exists()


@pytest.fixture
def uv(machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """A uv that makes a fake environment, and what it was asked."""
    asked: list[tuple[str, ...]] = []

    def play(*arguments: str) -> None:
        asked.append(arguments)
        if arguments[0] == "venv":
            interpreter(Path(arguments[-1]) / "bin" / "python", harbor=HARBOR_VERSION)

    monkeypatch.setattr(python, "_uv", play)
    return asked


def test_a_new_environment_is_made_once_from_what_is_there(machine: Path, uv: list[tuple[str, ...]]) -> None:
    base = interpreter(machine / "bin" / "python3.12")
    said: list[str] = []
    first = harbor_python(progress=said.append)
    assert first == harbor_python(progress=said.append)
    assert len(said) == 1
    assert f"getting Harbor {HARBOR_VERSION}" in said[0]
    assert [arguments[0] for arguments in uv] == ["venv", "pip"]
    assert str(base) in uv[0]
    assert f"harbor=={HARBOR_VERSION}" in uv[1]


def test_without_any_python_uv_fetches_one(uv: list[tuple[str, ...]]) -> None:
    harbor_python()
    assert "--managed-python" in uv[0]


def test_two_at_once_make_one(machine: Path, uv: list[tuple[str, ...]]) -> None:
    interpreter(machine / "bin" / "python3.12")
    threads = [threading.Thread(target=harbor_python) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(uv) == 2


def test_a_failed_installation_is_one_line_and_leaves_no_environment(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = machine / "uv"
    fake.write_text("#!/bin/sh\necho 'error: no\nroute to host' >&2\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(fake))
    with pytest.raises(Unavailable) as caught:
        harbor_python()
    assert "no route to host" in str(caught.value)
    assert "\n" not in str(caught.value)
    with pytest.raises(Unavailable):
        harbor_python(create=False)


@pytest.mark.parametrize(
    ("said", "first"),
    [
        ("error: Request failed\n  Caused by: invalid peer certificate: UnknownIssuer", "This machine does not trust"),
        (
            "error: Failed to fetch: `x`\n  Caused by: dns error: no such name",
            "The index of packages cannot be reached",
        ),
        ("error: no interpreter found for 3.12", f"Harbor {HARBOR_VERSION} is not here"),
    ],
)
def test_what_keeps_harbor_from_being_fetched_is_said_first(said: str, first: str) -> None:
    assert python._advice(said).startswith(first)


def test_a_half_made_environment_is_made_anew(machine: Path, uv: list[tuple[str, ...]]) -> None:
    path = made(machine)
    (path.parent.parent / "aeo-complete").unlink()
    stale = path.parent.parent / "stale"
    stale.touch()
    harbor_python()
    assert len(uv) == 2
    assert not stale.exists()


def test_nothing_inside_is_imported_by_us() -> None:
    code = "import sys, aeo.executors.harbor; sys.exit('harbor' in sys.modules or 'aeo_harbor' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_uv_heeds_our_arguments_and_not_the_users_variables(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_PYTHON_PREFERENCE", "only-system")
    # With it, the real uv refuses the flag that asks for a Python of its own.
    python._uv("python", "list", "--only-installed", "--managed-python")
    for name in python._NOT_FOR_UV:
        monkeypatch.setenv(name, "/nowhere")
    fake, seen = machine / "uv", machine / "seen"
    fake.write_text(f"#!/bin/sh\nexport > {seen}\n")
    fake.chmod(0o755)
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(fake))
    python._uv("venv")
    assert "HOME" in seen.read_text()
    assert "/nowhere" not in seen.read_text()
