"""Asks for Harbor's drivers, and tells which processes they are forked from."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from programs import command_line
from waiting import eventually

from aeo.executors.harbor import drivers
from aeo.executors.harbor.fork_server import Driver

Servers = Callable[[], list[psutil.Process]]


@contextmanager
def own_servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Gives what tells which processes to fork from were started in here and still live; none is left."""
    monkeypatch.setattr(drivers, "_server", None)
    earlier = {child.pid for child in psutil.Process().children()}

    def started() -> list[psutil.Process]:
        children = (child for child in psutil.Process().children() if child.pid not in earlier)
        return [child for child in children if "aeo_harbor.fork_server" in command_line(child)]

    yield started
    monkeypatch.undo()
    gc.collect()  # a caught error may still hold a driver
    eventually(lambda: not started())


def ask(folder: Path) -> object:
    """Ask a driver for the name of the folder's first task."""
    return drivers.call("tasks", {"path": str(folder)})["ok"]["tasks"][0]["name"]


def started(stdout: int | None = None) -> tuple[Driver, int]:
    """A driver that waits for what to do, and our end of its input; it may not have begun yet."""
    reading, writing = os.pipe()
    with open(os.devnull, "r+b") as null:  # noqa: PTH123
        says = null.fileno() if stdout is None else stdout
        driver = drivers.start("run", stdin=reading, stdout=says, stderr=null.fileno(), env={})
    os.close(reading)
    return driver, writing
