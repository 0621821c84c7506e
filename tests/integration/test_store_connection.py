from __future__ import annotations

import socket
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from store_samples import a_row, stored
from waiting import eventually

from aeo.core.errors import AeoError, InputError, Unavailable
from aeo.embedded import server as embedded
from aeo.store import evaluations, health, inbox, trials
from aeo.store.connection import Db, connect
from aeo.store.keys import TEMPLATES, key

SECRET = "s3cret-p4ss"


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_keys_begin_alike_and_differ() -> None:
    assert all(template.startswith("aeo:") for template in TEMPLATES.values())
    assert len(set(TEMPLATES.values())) == len(TEMPLATES)
    assert key("share", "e1", "b1") == "aeo:e:e1:share:b1"


@pytest.mark.parametrize(
    "url",
    ["", "host:6379", "http://host", f"redis://:{SECRET}/x@host:1", "unix:///tmp/x", f"redis://:{SECRET}@h:99999999"],
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="redis://") as caught:
        connect(url)
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_server_that_is_away_is_named_without_its_password() -> None:
    port = closed_port()
    with pytest.raises(Unavailable, match=f"127.0.0.1:{port}") as caught:
        connect(f"redis://:{SECRET}@127.0.0.1:{port}/0")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_wrong_password_is_told_without_it(redis_url: str) -> None:
    password = redis_url.split("@")[0].rpartition(":")[2]
    with pytest.raises(Unavailable) as caught:
        connect(redis_url.replace(password, SECRET))
    text = "".join(traceback.format_exception(caught.value))
    assert SECRET not in text
    assert password not in text


def test_a_server_that_quotes_the_password_is_not_quoted() -> None:
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        with suppress(OSError):
            while True:
                with listener.accept()[0] as client:
                    while data := client.recv(65536):
                        said = data.decode().replace("\r\n", " ")
                        client.sendall(f"-ERR unknown command, with args beginning with: {said}\r\n".encode())

    threading.Thread(target=answer, daemon=True).start()
    try:
        with pytest.raises(Unavailable, match="args beginning with") as caught:
            connect(f"redis://:{SECRET}@127.0.0.1:{listener.getsockname()[1]}/0")
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_connection_does_not_show_its_password(real_db: Db, redis_url: str) -> None:
    password = redis_url.split("@")[0].rpartition(":")[2]
    assert password in real_db.url
    for text in (repr(real_db), str(real_db), repr(real_db.client), repr(real_db.scripts)):
        assert password not in text


def test_faults_of_the_server_are_ours_everywhere(db: Db) -> None:
    db.client.set(key("evaluations"), "no sorted set")
    for call in (
        lambda: evaluations.page(db, offset=0, limit=1),
        lambda: stored(db, {"b": ["t"]}),
        lambda: db.client.pipeline().zcard(key("evaluations")).execute(),
    ):
        with pytest.raises(Unavailable, match="WRONGTYPE"):
            call()


def test_scripts_outlive_the_servers_memory_of_them(db: Db) -> None:
    batch = stored(db, {"b": ["t1", "t2"]})["b"]
    assert trials.claim(db, batch, token="k1", lease_seconds=60)
    db.client.script_flush()
    assert trials.claim(db, batch, token="k2", lease_seconds=60)
    db.client.script_flush()
    assert trials.commit(db, "e1", a_row("t1"), "k1")


def test_the_same_connection_works_after_a_restart(tmp_path: Path) -> None:
    first = embedded.start(tmp_path)
    db = connect(first.url)
    batch = stored(db, {"b": ["t1", "t2"]})["b"]
    one = trials.claim(db, batch, token="k1", lease_seconds=60)
    assert one is not None
    embedded.stop(first)
    assert not health.ping(db)
    with pytest.raises(Unavailable):
        inbox.take(db, 0.1)
    second = embedded.start(tmp_path)
    try:
        assert second.url == first.url
        assert trials.renew(db, one, lease_seconds=60) is trials.Standing.HELD
        assert trials.claim(db, batch, token="k2", lease_seconds=60)
    finally:
        db.close()
        embedded.stop(second)


def test_a_broken_connection_is_made_anew(real_db: Db) -> None:
    batch = stored(real_db, {"b": [f"t{n}" for n in range(20)]})["b"]
    for n in range(20):
        real_db.client.client_kill_filter(_type="normal", skipme=False)
        assert trials.claim(real_db, batch, token=f"k{n}", lease_seconds=60)
    assert evaluations.get(real_db, "e1").running == 20


@contextmanager
def losing_answers(port: int) -> Iterator[tuple[int, threading.Event]]:
    """A way to the server that, once the event is set, passes the next script's call on and drops its answer."""
    drop = threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source: socket.socket, sink: socket.socket, *, requests: bool, losing: threading.Event) -> None:
        try:
            while data := source.recv(65536):
                if requests and drop.is_set() and b"EVALSHA" in data:
                    losing.set()
                elif losing.is_set():
                    drop.clear()
                    break
                sink.sendall(data)
        except OSError:
            pass
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                client = listener.accept()[0]
                upstream, losing = socket.create_connection(("127.0.0.1", port)), threading.Event()
                for ends, requests in (((client, upstream), True), ((upstream, client), False)):
                    settings = {"requests": requests, "losing": losing}
                    threading.Thread(target=carry, args=ends, kwargs=settings, daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    try:
        yield listener.getsockname()[1], drop
    finally:
        # A blocked accept notices a shutdown, not a close.
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()


def test_an_answer_lost_on_the_way_changes_nothing_twice(redis_url: str, server: embedded.Server) -> None:
    with losing_answers(server.port) as (port, drop):
        db = connect(redis_url.replace(f":{server.port}/", f":{port}/"))
        batch = stored(db, {"b": ["t1", "t2"]})["b"]
        for script in db.scripts.values():  # else the answer lost would be that the server does not know it
            db.client.script_load(script.script)
        drop.set()
        claim = trials.claim(db, batch, token="k", lease_seconds=60)
        assert claim is not None
        assert not drop.is_set(), "the answer was not lost, so the test showed nothing"
        assert evaluations.get(db, "e1").running == 1

        drop.set()
        assert trials.commit(db, "e1", a_row("t2"), "k2"), "it was first, whatever happened to the answer"
        assert not drop.is_set()

        trials.pushed(db, claim)
        drop.set()
        taken = inbox.take(db, 1)
        assert taken is not None
        assert not drop.is_set()
        inbox.done(db, taken)
        assert inbox.restore(db) == 0
        db.close()


def test_every_error_is_one_of_ours_under_reconnects(real_db: Db) -> None:
    """Whatever a fault in the middle does, callers see nothing but `AeoError`."""
    batch = stored(real_db, {"b": [f"t{n}" for n in range(200)]})["b"]
    stop = threading.Event()

    def kill() -> None:
        with_own = connect(real_db.url)
        last = 0
        while not stop.wait(0.005):
            # However slow the machine: some come through between two kills.
            if done >= last + 2:
                last = done
                with_own.client.client_kill_filter(_type="normal", skipme=True)
        with_own.close()

    done = 0
    killer = threading.Thread(target=kill)
    killer.start()
    try:
        for n in range(200):
            try:
                if trials.claim(real_db, batch, token=f"k{n}", lease_seconds=60):
                    done += 1
            except AeoError:
                continue
    finally:
        stop.set()
        killer.join()
    eventually(lambda: health.ping(real_db))
    assert done <= evaluations.get(real_db, "e1").running <= 200
    assert done > 100
