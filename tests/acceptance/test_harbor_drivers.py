"""How Harbor's drivers are started: forked from one process that has Harbor loaded, whatever becomes of it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harbor_tasks as tasks
import psutil
import pytest
from harbor_drivers import Servers, ask, own_servers, started
from programs import all_gone
from waiting import eventually

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import drivers, fork_server


@pytest.fixture(scope="module", autouse=True)
def _harbor() -> None:
    tasks.needed_harbor()


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Tells which processes to fork from this test has started that still live; it leaves none."""
    with own_servers(monkeypatch) as started:
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tasks."""
    tasks.passing(tmp_path / "set" / "one")
    return tmp_path / "set"


def test_one_process_serves_all_that_ask_at_once(folder: Path, servers: Servers) -> None:
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(ask, [folder] * 48)) == ["one"] * 48
    (server,) = servers()
    eventually(lambda: not server.children())


def test_nothing_is_left_open(folder: Path, servers: Servers) -> None:
    ask(folder)
    ask(folder)
    (server,) = servers()
    us = psutil.Process()
    ours, its = us.num_fds(), server.num_fds()
    for _ in range(8):
        ask(folder)
    # It may not have seen yet that the last connection was closed.
    eventually(lambda: us.num_fds() <= ours and server.num_fds() <= its)


def test_another_one_is_started_where_it_was_killed(folder: Path, servers: Servers) -> None:
    ask(folder)
    (first,) = servers()
    first.kill()
    assert ask(folder) == "one"
    (second,) = servers()
    assert second.pid != first.pid


def test_it_ends_when_nobody_asks_and_comes_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    monkeypatch.setattr(fork_server, "_IDLE_SECONDS", 0.2)
    ask(folder)
    eventually(lambda: not servers())
    assert ask(folder) == "one"


def test_it_does_not_end_under_a_driver(monkeypatch: pytest.MonkeyPatch, servers: Servers) -> None:
    monkeypatch.setattr(fork_server, "_IDLE_SECONDS", 0.2)
    driver, writing = started()
    with pytest.raises(TimeoutError):
        driver.wait(1.0)
    os.close(writing)
    assert driver.wait(30) == 0
    driver.end(30)
    eventually(lambda: not servers())


def test_a_driver_is_killed_with_it(folder: Path, servers: Servers) -> None:
    driver, writing = started()
    assert driver.begun()
    process = psutil.Process(driver.pid)
    (server,) = servers()
    assert process.ppid() == server.pid
    server.kill()
    assert driver.wait(30) == -signal.SIGKILL
    eventually(lambda: all_gone([process]))
    os.close(writing)
    driver.end(30)
    assert ask(folder) == "one"


def test_it_leaves_an_end_in_order_to_who_asks(servers: Servers) -> None:
    driver, writing = started()
    assert driver.begun()
    (server,) = servers()
    server.terminate()
    with pytest.raises(TimeoutError):
        driver.wait(1.0)
    os.close(writing)
    assert driver.wait(30) == 0
    driver.end(30)


def test_a_driver_that_is_let_go_of_may_end_in_order() -> None:
    reading, writing = os.pipe()
    heard, says = os.pipe()
    driver = drivers.start("run", stdin=reading, stdout=says, stderr=says, env={})
    for end in (reading, says):
        os.close(end)
    with os.fdopen(heard) as lines:
        assert "ready" in lines.readline()
    assert driver.begun()
    process = psutil.Process(driver.pid)
    driver._connection.close()  # as when the asker is killed
    # It is told to stop, and has nothing to stop; it is not killed.
    with pytest.raises(psutil.TimeoutExpired):
        process.wait(0.5)
    os.close(writing)
    eventually(lambda: all_gone([process]))


def test_who_is_told_to_end_before_it_has_begun_never_does(folder: Path, servers: Servers) -> None:
    driver, writing = started()
    driver.signal(signal.SIGTERM)
    driver.end(30)
    os.close(writing)
    assert driver.poll() == -signal.SIGKILL
    assert ask(folder) == "one"
    (server,) = servers()
    eventually(lambda: not server.children())


def test_what_a_driver_ended_with_is_told() -> None:
    for number in (signal.SIGKILL, signal.SIGSEGV):
        driver, writing = started()
        assert driver.begun()
        assert driver.poll() is None
        driver.signal(number)
        assert driver.wait(30) == driver.poll() == -number
        os.close(writing)
        driver.end(30)


def test_a_pid_is_kept_from_others_until_it_is_let_go_of() -> None:
    driver, writing = started()
    assert driver.begun()
    driver.kill()
    driver.wait(30)
    assert psutil.Process(driver.pid).status() == "zombie"
    os.close(writing)
    driver.end(30)
    eventually(lambda: not psutil.pid_exists(driver.pid))


def test_another_harbor_in_its_place_is_not_mixed_with_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, servers: Servers
) -> None:
    place = folder.parent / "packages" / "harbor"
    place.mkdir(parents=True)
    (place / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(place.parent))
    with pytest.raises(ExecutorFailed):  # no Harbor at all, and so it is said
        ask(folder)
    (first,) = servers()
    with pytest.raises(ExecutorFailed):
        ask(folder)
    assert servers() == [first]
    shutil.rmtree(place)
    place.mkdir()
    (place / "__init__.py").touch()
    with pytest.raises(ExecutorFailed):
        ask(folder)
    eventually(lambda: all_gone([first]))
    assert len(servers()) == 1


def test_a_driver_begins_where_this_process_is_now(
    folder: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(folder)
    monkeypatch.chdir(folder.parent)
    assert ask(Path("set")) == "one"
    assert len(servers()) == 1


def test_a_python_that_cannot_run_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = folder.parent / "python"
    broken.write_text("#!/bin/sh\ncase $1 in -I) echo 3.12 0.26.0;; *) echo no such library >&2; exit 3;; esac\n")
    broken.chmod(0o755)
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(broken))
    for _ in range(2):
        with pytest.raises(ExecutorFailed, match="died: no such library"):
            ask(folder)


ASKER = """
import os, sys
from aeo.executors.harbor import drivers, fork_server
reading, writing = os.pipe()
driver = drivers.start("run", stdin=reading, stdout=2, stderr=2, env={})
driver.begun()
print(driver.pid, flush=True)
sys.stdin.read()
"""


def test_nothing_outlives_a_killed_asker() -> None:
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert asker.stdout is not None
        driver = psutil.Process(int(asker.stdout.readline()))
        server = driver.parent()
        assert server is not None
        assert server.ppid() == asker.pid
    finally:
        asker.kill()
        asker.communicate()
    eventually(lambda: all_gone([driver, server]))


def test_where_loading_hangs_a_stop_ends_it_and_the_next_asks_another(
    folder: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = folder.parent / "asked"
    hangs = folder.parent / "python"
    hangs.write_text(f"#!/bin/sh\ncase $1 in -I) echo 3.12 0.26.0;; *) echo x >> {asked}; exec sleep 600;; esac\n")
    hangs.chmod(0o755)
    real = drivers.harbor_python()
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(hangs))
    driver, writing = started()
    began: list[bool] = []
    waits = threading.Thread(target=lambda: began.append(driver.begun()))
    waits.start()
    eventually(asked.exists)
    driver.kill()
    waits.join(60)
    assert began == [False]
    os.close(writing)
    again, writing = started()
    eventually(lambda: asked.read_text() == "x\nx\n")
    again.end(0)
    os.close(writing)
    assert not again.begun()
    eventually(lambda: not [child for child in psutil.Process().children() if child.name() == "sleep"])
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(real.path))
    assert ask(folder) == "one"


def test_a_number_that_is_anothers_by_now_is_not_killed(servers: Servers) -> None:
    driver, writing = started()
    assert driver.begun()
    (server,) = servers()
    server.kill()
    driver.wait(30)
    os.close(writing)
    with subprocess.Popen(["sleep", "600"], process_group=0) as other:  # the number, given to somebody else
        driver.pid = other.pid
        driver.kill()
        with pytest.raises(subprocess.TimeoutExpired):
            other.wait(0.5)
        other.kill()
    driver.end(0)
