"""The process that drivers are forked from, where it cannot fork. The rest: acceptance/test_harbor_drivers."""

from __future__ import annotations

import errno
import importlib
import os
import socket
import sys
from typing import Any

import pytest

from aeo.executors.harbor.python import plugin_path


def test_a_driver_that_cannot_be_forked_is_told_and_harms_no_other(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(plugin_path())])
    fork_server: Any = importlib.import_module("aeo_harbor.fork_server")
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    server = fork_server._Server(theirs)

    def fail() -> int:
        raise OSError(errno.EAGAIN, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "fork", fail)
    told, connection = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    server.take({}, [os.dup(connection.fileno()), *(os.dup(null) for _ in range(4))])
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208
    connection.close()
    os.close(null)
    assert told.recv(100) == b"exit 1\n"
    assert told.recv(100) == b""
    assert "no driver can be started: [Errno 11] Resource temporarily unavailable" in capsys.readouterr().err
    for end in (ours, theirs, told):
        end.close()
