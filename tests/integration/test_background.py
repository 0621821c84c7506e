"""A worker kept by a process of ours: started, seen, started anew when it dies, stopped."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from programs import all_gone
from waiting import eventually

from aeo.cli import main
from aeo.core.errors import Conflict
from aeo.provision import background
from aeo.provision.visit import settings_text


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("HOME", str(tmp_path))
    settings = tmp_path / ".config" / "aeo"
    settings.mkdir(parents=True)
    # Nobody answers there: it waits, as long as it takes.
    told = {"AEO_CONTROLLER_URL": "http://127.0.0.1:1", "AEO_AUTH_TOKEN": "t", "AEO_LOCAL_ROOT": str(tmp_path / "w")}
    (settings / "worker-w.env").write_text(settings_text(told))
    yield tmp_path
    background.stop("w", now=True, seconds=30)


def test_it_is_kept_until_it_is_told_to_stop(home: Path) -> None:
    runner = CliRunner()
    assert runner.invoke(main, ["background", "status", "w"]).exit_code == 1
    assert runner.invoke(main, ["background", "start", "w"]).exit_code == 0
    assert runner.invoke(main, ["background", "status", "w"]).exit_code == 0
    with pytest.raises(Conflict, match="runs already"):
        background.start("w")
    log = background.folder("w") / "log"
    eventually(lambda: "does not answer" in log.read_text(), 60)
    keeper = psutil.Process(int((background.folder("w") / "pid").read_text()))
    (first,) = keeper.children()
    os.kill(first.pid, signal.SIGKILL)

    def again() -> bool:
        return [child for child in keeper.children() if child.pid != first.pid] != []

    eventually(again, 30)
    assert "the worker ended with -9; starting it again" in log.read_text()
    assert runner.invoke(main, ["background", "stop", "w"]).output == "w is stopped.\n"
    eventually(lambda: all_gone([keeper]))
    assert runner.invoke(main, ["background", "stop", "w"]).output == "w does not run.\n"


def test_settings_that_are_wrong_are_told_in_the_log(home: Path) -> None:
    (home / ".config" / "aeo" / "worker-w.env").write_text("AEO_SLOTS=none\n")
    background.start("w")
    log = background.folder("w") / "log"
    eventually(lambda: f"{background.ENDED} 2;" in log.read_text(), 60)
    assert "AEO_SLOTS" in log.read_text()
