"""``aeo tunnel`` against a real sshd: what it forwards, how it fails, and how it ends."""

from __future__ import annotations

import http.server
import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import psutil
import pytest
from needs import require
from programs import Program, free_port
from rsync_hosts import SshServer, missing, ssh_server
from waiting import eventually

SECRET = "broker-password"


class Home(http.server.BaseHTTPRequestHandler):
    """Stands for the controller."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"home")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def home() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Home)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SshServer]:
    require(not missing("ssh", "sshd"), missing("ssh", "sshd"))
    with ssh_server(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@contextmanager
def tunnel(folder: Path, server: SshServer, home: int, port: int = 0, *more: str) -> Iterator[tuple[Program, int]]:
    """A tunnel to this machine, where the broker's own port would be taken: its broker is elsewhere."""
    port = port or free_port()
    options = ["--ssh-port", str(server.port), "--port", f"{port}:{home}", *more]
    environment = {
        "PATH": f"{server.programs}{os.pathsep}{os.environ['PATH']}",
        "AEO_BROKER_URL": f"redis://:{SECRET}@10.255.255.1:6379/0",
    }
    with ExitStack() as stack:
        program = Program(["tunnel", "127.0.0.1", *options], folder, environment)
        stack.callback(program.destroy)
        yield program, port


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/", trust_env=False, timeout=5).text == "home"
    except httpx.HTTPError:
        return False


def clients(program: Program) -> list[psutil.Process]:
    return [process for process in program.family() if process.name() == "ssh"]


def test_the_controller_comes_out_there(tmp_path: Path, sshd: SshServer, home: int) -> None:
    with tunnel(tmp_path, sshd, home) as (program, port):
        eventually(lambda: "aeo worker" in program.output, 30)
        assert f"aeo worker --controller-url http://127.0.0.1:{port} --auth-token @token" in program.output
        assert answers(port)
        (client,) = clients(program)
        assert SECRET not in " ".join(client.cmdline()) + program.output
        assert "AEO_BROKER_URL" not in client.environ()
        assert program.terminate() == 0
        assert not client.is_running()
        eventually(lambda: not answers(port))


def test_a_connection_that_ends_is_made_again(tmp_path: Path, sshd: SshServer, home: int) -> None:
    with tunnel(tmp_path, sshd, home) as (program, port):
        eventually(lambda: answers(port), 30, pause=0.1)
        for count in (1, 2):
            eventually(lambda: clients(program), 30)[0].kill()
            eventually(lambda count=count: program.output.count("is up again") == count, 30, pause=0.1)
            eventually(lambda: answers(port), 30, pause=0.1)
        assert program.output.count("is down") == 2
        assert program.output.count("aeo worker") == 1


def test_a_host_that_is_away_is_waited_for(tmp_path: Path, sshd: SshServer, home: int) -> None:
    away = SshServer(port=free_port(), programs=sshd.programs)
    with tunnel(tmp_path, away, home) as (program, port):
        eventually(lambda: "Connection refused" in program.output, 30)
        with ssh_server(tmp_path / "late", port=away.port) as late:
            # The keys of its fixture are another server's.
            (tmp_path / "late" / "authorized_keys").write_text((sshd.programs.parent / "user_key.pub").read_text())
            assert late.port == away.port
            eventually(lambda: answers(port), 60, pause=0.1)
        assert program.terminate() == 0


def test_a_taken_port_is_told(tmp_path: Path, sshd: SshServer, home: int) -> None:
    with tunnel(tmp_path, sshd, home, home) as (program, _):
        assert program.ends() == 2
        assert f"port {home} of 127.0.0.1" in program.output
        assert "--port" in program.output
    with tunnel(tmp_path, sshd, home, 0, "--transfer-url", f"rsync://a@127.0.0.1:{home}/m") as (program, _):
        assert program.ends() == 2
        assert "the way of results" in program.output


def test_no_entry_is_told(tmp_path: Path, sshd: SshServer, home: int) -> None:
    with ssh_server(tmp_path / "other") as other:
        with tunnel(tmp_path, SshServer(port=other.port, programs=sshd.programs), home) as (program, _):
            assert program.ends() == 2
            assert "Permission denied" in program.output
            assert "ssh -o BatchMode=yes" in program.output


def test_ssh_dies_with_a_tunnel_that_is_killed(tmp_path: Path, sshd: SshServer, home: int) -> None:
    with tunnel(tmp_path, sshd, home) as (program, port):
        eventually(lambda: answers(port), 30, pause=0.1)
        (client,) = clients(program)
        program.process.kill()
        eventually(lambda: not client.is_running() or client.status() == psutil.STATUS_ZOMBIE)
        eventually(lambda: not answers(port), 10)


def test_the_embedded_broker_is_found(tmp_path: Path, sshd: SshServer, home: int) -> None:
    broker = free_port()
    (tmp_path / "shared" / "redis").mkdir(parents=True)
    (tmp_path / "shared" / "redis" / "password").write_text(SECRET)
    (tmp_path / "shared" / "redis" / "port").write_text(str(broker))
    with tunnel(tmp_path, sshd, home) as (program, _):
        program.destroy()
        environment = {"PATH": f"{sshd.programs}{os.pathsep}{os.environ['PATH']}"}
        options = ["--ssh-port", str(sshd.port), "--port", f"{free_port()}:{home}", "--shared-root", "shared"]
        program = Program(["tunnel", "127.0.0.1", *options], tmp_path, environment)
        try:
            eventually(lambda: f"{broker} (its broker)" in program.output, 30)
            assert SECRET not in program.output
            assert program.terminate() == 0
        finally:
            program.destroy()
