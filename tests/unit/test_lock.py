"""The lock of a root folder, beside those who only look whether it is held."""

from __future__ import annotations

import fcntl
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from waiting import eventually

from aeo import lock
from aeo.core.errors import Conflict


def test_who_only_looks_does_not_keep_anybody_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "lock"
    with path.open("w") as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        gone = threading.Event()

        def wait(_seconds: float) -> None:
            fcntl.flock(looking, fcntl.LOCK_UN)
            gone.set()

        monkeypatch.setattr(lock.time, "sleep", wait)
        with lock.hold(path, "worker", field="--root"):
            assert gone.is_set()


def test_who_holds_it_does(tmp_path: Path) -> None:
    with lock.hold(tmp_path / "lock", "worker", field="--root"):
        with pytest.raises(Conflict, match="another worker runs"), lock.hold(tmp_path / "lock", "worker", field="--r"):
            pass


#: Takes the lock, forks as a pool of processes does, and is killed; what it forked ends with its standard input.
_POOL = """
import os, signal, sys
from pathlib import Path
from aeo import lock
with lock.hold(Path(sys.argv[1]), "worker", field="--root"):
    if os.fork():
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


def test_what_a_killed_process_has_forked_holds_it_on(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", _POOL, str(path)], stdin=subprocess.PIPE) as pool:
        assert pool.wait(60) == -signal.SIGKILL
        with pytest.raises(Conflict), lock.hold(path, "worker", field="--root"):
            pass
    # Its standard input is closed.
    eventually(lambda: not lock.is_held(path))
