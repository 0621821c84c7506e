"""The lock of a root folder, beside those who only look whether it is held."""

from __future__ import annotations

import fcntl
import threading
from pathlib import Path

import pytest

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
