"""A process that drivers are forked from and that reads nothing: whoever asks it is not held for ever."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from waiting import eventually

from aeo.executors.harbor import fork_server
from aeo.executors.harbor.fork_server import ForkServer
from aeo.executors.harbor.python import HarborPython


def test_who_asks_one_whose_queue_is_full_gives_it_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deaf = tmp_path / "python"
    deaf.write_text("#!/bin/sh\nexec sleep 600\n")
    deaf.chmod(0o755)
    monkeypatch.setattr(fork_server, "_LOAD_SECONDS", 0.3)
    server = ForkServer(HarborPython(path=deaf, version="0"))
    drivers = []
    with open(os.devnull, "r+b") as null:  # noqa: PTH123
        while not server.given_up:
            drivers.append(server.fork(b"x" * 4096, (null.fileno(),) * 3))
            assert len(drivers) < 10_000
    assert "taken what it was asked" in server.given_up
    last = drivers[-1]
    assert not last.begun()
    for driver in drivers:
        driver.end(0)
    eventually(lambda: server._process.poll() is not None)
