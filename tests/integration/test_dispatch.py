"""Chords over real worker processes on a real server."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil
import pytest
from waiting import eventually

from aeo import dispatch
from aeo.config import Config
from aeo.core.errors import Unavailable
from aeo.core.model import Batch
from aeo.embedded import server as embedded
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import evaluations
from aeo.store.connection import connect

CONSUMER = Path(__file__).parent.parent / "dispatch_consumer.py"
SLOTS = {"w1": 2, "w2": 1, "w3": 1}


class Fleet:
    """Three workers and a control process."""

    def __init__(self, root: Path):
        # Not the shared server, which other tests empty.
        self.server = embedded.start(root / "redis")
        url = self.server.url
        self.site = Site(config=Config(broker_url=url), shared=Shared(root, root), db=connect(url))
        self.redis: Any = self.site.db.client
        queues = {**{name: dispatch.queue_of(name) for name in SLOTS}, "control": dispatch.CONTROL}
        self.processes = {
            name: subprocess.Popen(
                [sys.executable, str(CONSUMER), name, queue, str(SLOTS.get(name, 2))],
                env={**os.environ, "AEO_BROKER_URL": url},
                stderr=subprocess.DEVNULL,
            )
            for name, queue in queues.items()
        }

    def trace(self, kind: str) -> list[str]:
        """What happened, without who did it."""
        return [line.split()[1] for line in self.redis.lrange("trace", 0, -1) if line.startswith(kind)]

    def waiting(self, worker: str) -> int:
        return sum(self.redis.llen(name) for name in dispatch.lists_of(dispatch.queue_of(worker)))

    def stop(self) -> None:
        self.redis.delete("hold")
        for process in self.processes.values():
            process.send_signal(signal.SIGTERM)
        for process in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait()
        self.site.db.close()
        embedded.stop(self.server)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    try:
        eventually(lambda: made.redis.scard("ready") == len(made.processes), timeout=30)
        yield made
    finally:
        made.stop()


@pytest.fixture
def clean(fleet: Fleet) -> Iterator[Fleet]:
    """The fleet, idle, with an empty trace."""
    fleet.redis.delete("hold", "trace")
    yield fleet
    fleet.redis.delete("hold")
    eventually(lambda: len(fleet.trace("start")) == len(fleet.trace("end")))


def batches(evaluation: str, *workers: str) -> list[Batch]:
    return [Batch(id=f"{evaluation}-{n}", evaluation=evaluation, worker=w) for n, w in enumerate(workers)]


def messages(fleet: Fleet, worker: str) -> list[dict[str, Any]]:
    """What waits in a worker's queue, decoded, without what differs at each sending."""
    found = []
    for name in dispatch.lists_of(dispatch.queue_of(worker)):
        for raw in fleet.redis.lrange(name, 0, -1):
            message = json.loads(raw)
            message["body"] = json.loads(base64.b64decode(message["body"]))
            message["properties"].pop("delivery_tag")
            found.append(message)
    return found


@pytest.mark.parametrize("workers", [("w1", "w2", "w3", "w1"), ("w2",)])
def test_a_chord_merges_once_after_the_last_batch(clean: Fleet, workers: tuple[str, ...]) -> None:
    id = uuid4().hex
    sent = dispatch.send(clean.site, id, batches(id, *workers))
    eventually(lambda: clean.trace("merge"))
    trace = clean.redis.lrange("trace", 0, -1)
    assert trace[-1] == f"merge {id} control"
    assert sorted(trace[:-1]) == sorted(f"{what} {b.id} {b.worker}" for b in sent for what in ("start", "end"))


def test_a_lost_message_sent_again_elsewhere_completes_the_chord(clean: Fleet) -> None:
    id = uuid4().hex
    # `gone` is a worker that nobody is: its message waits for ever.
    sent = dispatch.send(clean.site, id, batches(id, "w1", "gone"))
    eventually(lambda: len(clean.trace("end")) == 1)
    assert clean.trace("merge") == []
    dispatch.resend(clean.site, sent[1], worker="w2")
    eventually(lambda: clean.trace("merge"))
    assert f"end {sent[1].id} w2" in clean.redis.lrange("trace", 0, -1)
    # And once more, late, as a member that has returned already.
    dispatch.resend(clean.site, sent[1], worker="w3")
    eventually(lambda: len(clean.trace("end")) == 3)
    dispatch.ring(clean.site, "after")
    eventually(lambda: "after" in clean.trace("merge"))
    assert clean.trace("merge") == [id, "after"]


def test_a_batch_that_gives_its_turn_has_not_returned(clean: Fleet) -> None:
    id = uuid4().hex
    batch, other = batches(id, "w2", "w2")
    clean.redis.sadd("again", batch.id)
    dispatch.send(clean.site, id, [batch, other])
    eventually(lambda: clean.trace("merge"))
    # Behind the one that waited, and as the last that the merge waited for.
    assert clean.trace("start") == [batch.id, other.id, batch.id]
    assert clean.redis.lrange("trace", 0, -1)[-2:] == [f"end {batch.id} w2", f"merge {id} control"]
    dispatch.ring(clean.site, "after")
    eventually(lambda: "after" in clean.trace("merge"))
    assert clean.trace("merge") == [id, "after"]


def test_sending_again_makes_the_same_message(clean: Fleet) -> None:
    id = uuid4().hex
    sent = dispatch.send(clean.site, id, batches(id, "nobody", "nobody-else"), priority=5)
    first = messages(clean, "nobody")
    dispatch.resend(clean.site, sent[0])
    assert messages(clean, "nobody") == first * 2
    assert first[0]["headers"]["id"] == sent[0].id
    assert first[0]["body"][2]["chord"]["options"]["queue"] == dispatch.CONTROL


def test_the_message_is_stored_before_it_is_sent(clean: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    stored: list[str] = []

    def fail(db: object, batch: Batch) -> None:
        stored.append(batch.message)
        raise Unavailable("now")

    monkeypatch.setattr(evaluations, "set_message", fail)
    with pytest.raises(Unavailable):
        dispatch.send(clean.site, "e", batches("e", "unheard"))
    assert json.loads(stored[0])["id"] == "e-0"
    assert clean.waiting("unheard") == 0


def test_a_full_workers_message_waits_in_its_queue(clean: Fleet) -> None:
    id = uuid4().hex
    clean.redis.set("hold", 1)
    dispatch.send(clean.site, id, batches(id, "w1", "w1", "w1"))
    eventually(lambda: len(clean.trace("start")) == 2)
    # A worker that took more than it has slots for would have done so by the time another one has taken its own.
    dispatch.send(clean.site, "other", batches("other", "w2"))
    eventually(lambda: len(clean.trace("start")) == 3)
    assert clean.waiting("w1") == 1
    eventually(lambda: clean.redis.hlen("unacked.w1") == 0)
    clean.redis.delete("hold")
    eventually(lambda: sorted(clean.trace("merge")) == sorted([id, "other"]))


def test_a_higher_priority_is_served_first(clean: Fleet) -> None:
    clean.redis.set("hold", 1)
    dispatch.send(clean.site, "running", batches("running", "w2"))
    eventually(lambda: clean.trace("start"))
    for name, priority in (("low", -1), ("usual", 0), ("high", 3)):
        dispatch.send(clean.site, name, batches(name, "w2"), priority=priority)
    clean.redis.delete("hold")
    eventually(lambda: len(clean.trace("merge")) == 4)
    assert clean.trace("start") == ["running-0", "high-0", "usual-0", "low-0"]


def test_nothing_is_subscribed_to(clean: Fleet) -> None:
    dispatch.send(clean.site, "e", batches("e", "w3"))
    eventually(lambda: clean.trace("merge"))
    assert clean.redis.pubsub_channels("celery-task-meta-*") == []


def test_nothing_to_send() -> None:
    assert dispatch.send(None, "e", []) == []  # type: ignore[arg-type]


@pytest.mark.parametrize("act", ["send", "resend", "ring"])
def test_a_broker_that_is_away_is_told_soon(clean: Fleet, act: str) -> None:
    message = json.dumps({"id": "e-0", "group_id": "g", "group_index": 0, "priority": 3, "chord": None})
    batch = Batch(id="e-0", evaluation="e", worker="w", message=message)
    away = Site(config=Config(broker_url="redis://127.0.0.1:1/0"), shared=clean.site.shared, db=clean.site.db)
    acts = {
        "send": lambda: dispatch.send(away, "e", [batch]),
        "resend": lambda: dispatch.resend(away, batch),
        "ring": lambda: dispatch.ring(away, "e"),
    }
    started = time.monotonic()
    with pytest.raises(Unavailable, match="broker"):
        acts[act]()
    assert time.monotonic() - started < 30


def test_a_chord_survives_the_servers_death(clean: Fleet) -> None:
    id = uuid4().hex
    clean.redis.set("hold", 1)
    # Three run, one waits, and w3 has a slot free: the hardest place for a consumer to lose its server.
    sent = dispatch.send(clean.site, id, batches(id, "w1", "w1", "w2", "w1"))
    eventually(lambda: len(clean.trace("start")) == 3)
    psutil.Process(clean.server.pid).kill()
    eventually(lambda: not psutil.pid_exists(clean.server.pid) or _zombie(clean.server.pid))
    clean.server = embedded.start(clean.server.folder)
    clean.redis.delete("hold")
    eventually(lambda: clean.trace("merge"), 30)
    assert sorted(clean.trace("end")) == sorted(batch.id for batch in sent)
    assert all(process.poll() is None for process in clean.processes.values())


def _zombie(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    return True
