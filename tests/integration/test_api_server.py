"""The web process as it runs: gunicorn, real sockets, signals."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from programs import free_port
from waiting import eventually

from aeo.config import Config
from aeo.core.errors import InputError
from webapp.server import listen

TOKEN = "s3cret-token-of-this-test"
PROGRAM = """
import logging
logging.basicConfig(level=logging.DEBUG)
from aeo.config import from_environment
from aeo.site import open_site
from webapp.server import serve
serve(open_site(from_environment()))
print("served", flush=True)
"""


class Web:
    """A running web process and its log."""

    def __init__(self, root: Path, broker_url: str, port: int):
        self.url = f"http://127.0.0.1:{port}"
        self.log = root / "web.log"
        environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("AEO_")},
            "AEO_PORT": str(port),
            "AEO_SHARED_ROOT": str(root / "shared"),
            "AEO_BROKER_URL": broker_url,
            "AEO_AUTH_TOKEN": TOKEN,
        }
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", PROGRAM], env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
            )

    def answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/api/health", timeout=60).status_code == 200
        except httpx.TransportError:
            return False

    def memory(self) -> int:
        parent = psutil.Process(self.process.pid)
        return sum(one.memory_info().rss for one in (parent, *parent.children(recursive=True)))

    def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


@pytest.fixture
def web(tmp_path: Path, redis_url: str) -> Iterator[Web]:
    running = Web(tmp_path, redis_url, free_port())
    try:
        eventually(running.answers, 30)
        yield running
    finally:
        if running.process.poll() is None:
            running.process.send_signal(signal.SIGTERM)
            try:
                running.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                running.process.kill()
                running.process.wait()


def test_it_answers_hides_the_token_and_stops_at_sigterm(web: Web) -> None:
    with httpx.Client(base_url=web.url, timeout=60) as client:
        answer = client.get("/api/workers", headers={"Authorization": f"Bearer {TOKEN}"})
        assert (answer.status_code, answer.json()) == (200, {"workers": [], "out": {}})
        assert "gunicorn" not in str(answer.headers).lower()
        assert client.get("/api/workers").status_code == 401
        signed_in = client.get("/", params={"token": TOKEN, "offset": "0"})
        assert (signed_in.status_code, signed_in.headers["Location"]) == (303, "/?offset=0")
        assert client.get("/").status_code == 200
        client.get(f"/nothing?token={TOKEN}")
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), timeout=60) as raw:
        raw.sendall(f"GET /?token={TOKEN} HTTP/9.9\r\nBad Header {TOKEN}\r\n\r\n".encode())
        assert b"400" in raw.recv(1000)
    children = psutil.Process(web.process.pid).children(recursive=True)
    assert children
    assert web.stop() == 0
    assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
    log = web.log.read_text()
    assert log.endswith("served\n"), log
    assert TOKEN not in log


def test_a_large_body_is_refused_without_keeping_it(web: Web) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    before, size = web.memory(), 100 * 1024 * 1024

    def chunks() -> Iterator[bytes]:
        for _ in range(size // 65536):
            yield b" " * 65536

    told = httpx.post(
        f"{web.url}/api/evaluations",
        content=chunks(),
        headers={**headers, "Content-Length": str(size)},
        timeout=120,
    )
    assert told.status_code == 413
    assert told.json()["problems"][0]["field"] == "body"
    assert web.memory() - before < 12 * 1024 * 1024
    # Without a length, it is read up to the limit of 16 MiB and no further.
    untold = httpx.post(f"{web.url}/api/evaluations", content=chunks(), headers=headers, timeout=120)
    assert untold.status_code == 413
    assert web.answers()


def test_a_request_that_runs_is_answered_before_it_stops(web: Web) -> None:
    body = b'{"text": ""}'
    head = (
        f"POST /api/evaluations HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", int(web.url.rpartition(":")[2])), timeout=60) as raw:
        raw.sendall(head.encode() + body[:4])
        # Another answer shows that the first request has been taken up meanwhile.
        assert web.answers()
        web.process.send_signal(signal.SIGTERM)
        eventually(lambda: _refuses(web.url), 10)
        raw.sendall(body[4:])
        answer = b""
        while chunk := raw.recv(65536):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 422")
    assert web.process.wait(timeout=60) == 0


def _refuses(url: str) -> bool:
    try:
        httpx.get(f"{url}/api/health", timeout=1)
    except httpx.TransportError:
        return True
    return False


def test_an_address_that_cannot_be_had_names_the_flag() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"--port: port {port} on 127.0.0.1 is in use"):
            listen(Config(port=port))
    with pytest.raises(InputError, match="--host"):
        listen(Config(host="192.0.2.1", port=0))
    with pytest.raises(InputError, match="--host: 'no such host' is no address"):
        listen(Config(host="no such host", port=0))


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_it_listens_on_both_families(host: str) -> None:
    if host == "::1" and not Path("/proc/net/if_inet6").exists():
        pytest.skip("this machine has no IPv6")
    with listen(Config(host=host, port=0)) as listener:
        with socket.create_connection(listener.getsockname()[:2], timeout=5):
            assert listener.accept()
