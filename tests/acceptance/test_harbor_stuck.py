"""The process that Harbor's drivers are forked from is stuck: another one takes its place, and it does not stay."""

from __future__ import annotations

import json
import logging
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import harbor_tasks as tasks
import psutil
import pytest
from harbor_drivers import Servers, ask, own_servers, started
from harbor_tasks import HOST
from needs import require
from programs import all_gone
from waiting import eventually

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import drivers, fork_server, program
from aeo.executors.harbor.fork_server import Driver


@pytest.fixture(scope="module", autouse=True)
def _harbor() -> None:
    tasks.needed_harbor()


@pytest.fixture(autouse=True)
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Servers]:
    """Tells which processes to fork from this test has started that still live; it leaves none."""
    with own_servers(monkeypatch) as started:
        monkeypatch.setattr(fork_server, "_ANSWER_SECONDS", 3.0)
        yield started


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of tasks."""
    tasks.passing(tmp_path / "set" / "one")
    return tmp_path / "set"


def stuck(servers: Servers) -> psutil.Process:
    """The one process there is, stopped in the middle of what it does."""
    (server,) = servers()
    server.suspend()
    eventually(lambda: server.status() == psutil.STATUS_STOPPED)
    return server


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records if record.levelno == logging.WARNING]


def ends(driver: Driver, writing: int) -> None:
    """Let a driver end that waits for what to do."""
    os.close(writing)
    driver.wait(30)
    driver.end(30)


def test_another_one_is_started_and_the_stuck_one_is_killed(
    folder: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    ask(folder)
    first = stuck(servers)
    assert ask(folder) == "one"
    (said,) = warnings(caplog)
    assert re.search(rf"forked from \(pid {first.pid}\) has not answered in \d+ s; another one is started", said)
    eventually(lambda: all_gone([first]))
    assert len(servers()) == 1
    assert ask(folder) == "one"
    assert len(warnings(caplog)) == 1


def test_all_that_ask_it_at_once_turn_to_one_other(
    folder: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    ask(folder)
    first = stuck(servers)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, [folder] * 16)) == ["one"] * 16
    assert len(warnings(caplog)) == 1
    eventually(lambda: all_gone([first]))
    assert len(servers()) == 1


def test_a_driver_of_it_lives_on_and_it_ends_with_the_last(folder: Path, servers: Servers) -> None:
    both = [started(), started()]
    assert all(driver.begun() for driver, _writing in both)
    processes = [psutil.Process(driver.pid) for driver, _writing in both]
    first = stuck(servers)
    assert ask(folder) == "one"
    ends(*both[0])
    eventually(lambda: all_gone(processes[:1]))
    assert first.status() == psutil.STATUS_STOPPED
    assert both[1][0].poll() is None
    assert not all_gone(processes[1:])
    ends(*both[1])
    eventually(lambda: all_gone([first, *processes]))
    assert len(servers()) == 1


def test_what_it_was_asked_for_does_not_begin_when_it_goes_on(folder: Path, servers: Servers) -> None:
    driver, writing = started()
    assert driver.begun()
    first = stuck(servers)
    heard, says = os.pipe()
    late, late_writing = started(says)
    os.close(says)
    assert not late.begun()
    late.end(0)
    first.resume()
    # That it has let go of the other end shows that it has come to what it was asked.
    with os.fdopen(heard, "rb") as lines:
        assert lines.read() == b""
    eventually(lambda: [child.pid for child in first.children()] == [driver.pid])
    os.close(late_writing)
    ends(driver, writing)
    eventually(lambda: all_gone([first]))


@pytest.mark.parametrize("why", ["the asker has taken the permit", "the asker is gone"])
def test_a_driver_that_was_forked_for_nobody_does_not_begin(why: str) -> None:
    """As where the process was stopped after it had forked it, or had looked at who asks."""
    control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    told, connection = socket.socketpair()
    heard, says = os.pipe()
    permit = os.eventfd(0 if "permit" in why else 1, os.EFD_NONBLOCK)
    request = json.dumps({"verb": "run", "cwd": "/", "env": {}}).encode()
    if "gone" in why:
        told.close()
    socket.send_fds(control, [request], [connection.fileno(), permit, *[says] * 3])
    connection.close()
    os.close(says)
    os.close(permit)
    command = [str(drivers.harbor_python().path), "-m", "aeo_harbor.fork_server", str(theirs.fileno()), "60"]
    # The socket's end ends the process, also where this fails.
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], env=program.environment()) as server, control:
        theirs.close()
        with os.fdopen(heard, "rb") as lines:
            assert lines.read() == b""
        if "permit" in why:
            with told.makefile("rb") as lines:
                assert lines.readline().startswith(b"pid ")
                assert lines.readline() == b"exit 0\n"
    assert server.returncode == 0
    told.close()


def test_who_gives_up_when_it_has_begun_meanwhile_has_it(servers: Servers, monkeypatch: pytest.MonkeyPatch) -> None:
    heard, says = os.pipe()
    driver, writing = started(says)
    os.close(says)
    with os.fdopen(heard) as lines:
        assert "ready" in lines.readline()
    with monkeypatch.context() as patch:
        patch.setattr(fork_server, "_LOAD_SECONDS", 0.0)
        patch.setattr(Driver, "_read", lambda *_: None)
        assert driver.begun()
    assert servers()
    assert driver.pid in [child.pid for child in servers()[0].children()]
    ends(driver, writing)


def test_an_end_that_it_does_not_tell_is_noticed(
    folder: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    driver, writing = started()
    assert driver.begun()
    first = stuck(servers)
    os.close(writing)
    driver.wait(30)
    assert f"(pid {first.pid}) has not told in " in warnings(caplog)[0]
    driver.end(0)
    eventually(lambda: all_gone([first]))
    assert ask(folder) == "one"


def test_who_is_told_to_end_while_it_is_stuck_waits_no_more_and_asks_no_other(
    folder: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    ask(folder)
    first = stuck(servers)
    driver, writing = started()
    driver.kill()
    assert not driver.begun()
    assert not driver.is_to_be_asked_again()
    os.close(writing)
    assert not warnings(caplog)
    assert ask(folder) == "one"
    driver.end(0)
    eventually(lambda: all_gone([first]))


def test_where_loading_hangs_it_is_killed_and_that_is_logged(
    folder: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hangs = folder.parent / "python"
    hangs.write_text("#!/bin/sh\ncase $1 in -I) echo 3.12 0.26.0;; *) exec sleep 600;; esac\n")
    hangs.chmod(0o755)
    monkeypatch.setenv("AEO_HARBOR_PYTHON", str(hangs))
    monkeypatch.setattr(fork_server, "_LOAD_SECONDS", 0.5)
    with pytest.raises(ExecutorFailed, match=r"What it is forked from has not loaded Harbor in \d+ s"):
        ask(folder)
    (said,) = warnings(caplog)
    assert said.endswith("; another one is started, and it is killed")
    eventually(lambda: not [child for child in psutil.Process().children() if child.name() == "sleep"])


def test_a_trial_that_meets_it_goes_on_in_the_same_run(
    tmp_path: Path, servers: Servers, caplog: pytest.LogCaptureFixture
) -> None:
    require(tasks.namespaces_work(), "user namespaces")
    tasks.passing(tmp_path / "set" / "passing")
    tasks.hanging(tmp_path / "set" / "hanging")
    run = tasks.start(tmp_path, {"environment": dict(HOST), "datasets": [{"path": "set"}]})
    driver, writing = started()
    assert driver.begun()
    first = stuck(servers)
    with run.session() as session:
        trial = run.of_task("passing")
        session.warm()  # does not wait for it
        context = run.context(trial)
        session.run(trial, context, lambda _phase: None)
        assert run.deliver(trial, context).summary.rewards == {"reward": 1.0}
        assert len(warnings(caplog)) == 1
        # What is stuck holds no pipe of the one that runs, whose death would else not be seen.
        assert first.status() == psutil.STATUS_STOPPED
        hanging = run.of_task("hanging")
        thread, phases, errors = tasks.run_in_thread(session, hanging, run.context(hanging))
        eventually(lambda: "agent" in phases, 30)
        assert session._driver is not None
        os.kill(session._driver.pid, signal.SIGKILL)
        thread.join(60)
        assert "was killed by signal 9" in str(errors[0])
    eventually(lambda: not tasks.sleepers())
    ends(driver, writing)
    eventually(lambda: all_gone([first]))
