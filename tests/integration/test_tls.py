"""``rediss://``: the store and Celery through TLS, with a certificate of one's own. The embedded server has no TLS, so
something that ends it stands before the server, as in front of many managed ones."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from needs import require
from rsync_hosts import missing

from aeo import credentials
from aeo.celery import make_app
from aeo.core.errors import Unavailable
from aeo.site import Site
from aeo.store.connection import connect


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with an authority's certificate and a server's for 127.0.0.1, signed by it."""
    require(not missing("openssl"), missing("openssl"))

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, cwd=tmp_path, capture_output=True)

    new = ("req", "-newkey", "rsa:2048", "-nodes", "-subj")
    openssl(*new, "/CN=ours", "-x509", "-keyout", "ca.key", "-out", "ca.pem")
    openssl(*new, "/CN=127.0.0.1", "-keyout", "server.key", "-out", "server.csr")
    (tmp_path / "names").write_text("subjectAltName=IP:127.0.0.1\n")
    signed = ("-in", "server.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-out", "server.pem")
    openssl("x509", "-req", *signed, "-extfile", "names")
    openssl(*new, "/CN=theirs", "-x509", "-keyout", "other.key", "-out", "other.pem")
    return tmp_path


@contextlib.contextmanager
def ending_tls(folder: Path, port: int) -> Iterator[int]:
    """Listen with that certificate; hand on what is said to ``port``. Gives the port it listens on."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                plain, _ = listener.accept()
            except OSError:
                return
            try:
                line = context.wrap_socket(plain, server_side=True)
                behind = socket.create_connection(("127.0.0.1", port))
            except OSError:
                continue
            for ends in ((line, behind), (behind, line)):
                threading.Thread(target=carry, args=ends, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield int(listener.getsockname()[1])
    finally:
        listener.close()


def test_store_and_messages_go_through_tls(site: Site, authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = urlsplit(site.config.broker_url)
    with ending_tls(authority, inside.port or 0) as port:
        url = f"rediss://:{inside.password}@127.0.0.1:{port}/0"
        # Nobody knows who signed it.
        with pytest.raises(Unavailable, match="certificate"):
            connect(url)
        with pytest.raises(Unavailable, match="certificate"):
            connect(f"{url}?ssl_ca_certs={authority / 'other.pem'}")
        # Told by the address, or as a machine is told for all of its programs.
        ways = [f"{url}?ssl_ca_certs={authority / 'ca.pem'}", url]
        for number, way in enumerate(ways):
            if number:
                monkeypatch.setenv("SSL_CERT_FILE", str(authority / "ca.pem"))
            db = connect(way)
            assert db.client.ping()
            db.close()
            app = make_app(way, worker="w")
            with app.connection_for_write() as connection:
                connection.ensure_connection(max_retries=1)
                connection.default_channel.client.ping()
            assert app.backend.client.ping()
            app.close()


def test_a_workers_own_address_stays_one_with_tls() -> None:
    told = credentials.own_url("rediss://:of-all@broker.example:6390/1", "worker-a", "its/own")
    assert told == "rediss://worker-a:its%2Fown@broker.example:6390/1"
