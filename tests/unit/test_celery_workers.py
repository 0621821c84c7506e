"""What a worker says of itself, and how it is seen."""

from __future__ import annotations

import os
import re
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest

from aeo import lock, processes, workers
from aeo.config import Config
from aeo.core.errors import Conflict, InputError
from aeo.core.model import Capacity, Heartbeat, WorkerInfo, WorkerState
from aeo.layout import Local
from aeo.site import Site
from aeo.stay import Stay
from aeo.store import workers as store
from aeo.store.connection import Db


def info(id: str, slots: int = 2) -> WorkerInfo:
    return WorkerInfo(
        id=id, display_name=id, host="h", capacity=Capacity(slots=slots, cpus=4, memory_mb=100), boot="b", instance="i"
    )


def test_info_describes_this_machine() -> None:
    found = workers.info(Config(worker_id="w", slots=3, host="here"), boot="b1", instance="i1")
    assert (found.id, found.display_name, found.host) == ("w", "w", "here")
    assert found.capacity.slots == 3
    assert 0 < found.capacity.cpus <= (os.cpu_count() or 1)
    assert 0 < found.capacity.memory_mb <= psutil.virtual_memory().total // workers.MIB
    assert {"sleep", "command"} <= set(found.executors)


@pytest.mark.parametrize(
    ("files", "cpus", "memory"),
    [
        ({"/sys/fs/cgroup/cpu.max": "50000 100000", "/sys/fs/cgroup/memory.max": str(300 * workers.MIB)}, 0.5, 300),
        ({"/sys/fs/cgroup/cpu.max": "max 100000", "/sys/fs/cgroup/memory.max": "max"}, None, None),
        ({}, None, None),
    ],
)
def test_capacity_respects_a_containers_limits(
    files: dict[str, str], cpus: float | None, memory: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "_read", lambda path: files.get(path, ""))
    found = workers.info(Config(), boot="b", instance="i").capacity
    if hasattr(os, "sched_getaffinity"):
        assert found.cpus == (cpus or len(os.sched_getaffinity(0)))
    assert found.memory_mb == (memory or psutil.virtual_memory().total // workers.MIB)


def test_views(fake_db: Db) -> None:
    site = Site(config=Config(), shared=None, db=fake_db)  # type: ignore[arg-type]
    for id, slots in (("b", 2), ("a", 5)):
        store.register(fake_db, info(id, slots))
    now = datetime.now(timezone.utc)
    store.beat(fake_db, "a", Heartbeat(boot="b", at=now, draining="disk nearly full"), ttl_seconds=60)
    store.set_weight(fake_db, "b", 0.0)
    store.set_state(fake_db, "b", WorkerState.PAUSED, "new disk")
    fake_db.client.lpush("worker.b", "message")
    fake_db.client.lpush("worker.b\x06\x163", "message", "message")
    first, second = workers.views(site)
    assert (first.info.id, first.weight, first.weight_override, first.queued) == ("a", 5.0, None, 0)
    assert (first.state, first.note) == (WorkerState.ONLINE, "disk nearly full")
    assert (second.info.id, second.weight, second.weight_override, second.queued) == ("b", 0.0, 0.0, 3)
    assert (second.state, second.note) == (WorkerState.PAUSED, "new disk")


def test_no_worker_no_view(fake_db: Db) -> None:
    assert workers.views(Site(config=Config(), shared=None, db=fake_db)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(("free", "reason"), [(900, "disk nearly full: 900 MiB free"), (2000, "")])
def test_low_disk(free: int, reason: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    usage = psutil._ntuples.sdiskusage if hasattr(psutil, "_ntuples") else type(psutil.disk_usage("/"))
    found = usage(total=10**6 * workers.MIB, used=0, free=free * workers.MIB, percent=1.0)
    monkeypatch.setattr(psutil, "disk_usage", lambda path: found)
    assert workers.low_disk(tmp_path) == reason


def test_reasons_to_claim_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "low_disk", lambda root: "")
    stay = Stay(local=Local(tmp_path))
    assert stay.reason() == ""
    stay.heed(WorkerState.PAUSED)
    assert stay.reason() == "paused"
    stay.heed(WorkerState.LOST)
    assert "another worker" in stay.reason()
    stay.heed(WorkerState.ONLINE)
    assert stay.reason() == ""
    stay.leave()
    assert stay.look("b").draining == "stopping"


def test_one_process_for_each_root(tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    with lock.hold(path, "worker", field="--local-root") as identity:
        first = processes._instance(identity)
        assert path.stat().st_mode & 0o777 == 0o600
        with pytest.raises(Conflict, match=re.escape(f"another worker runs on {tmp_path}")):
            with lock.hold(path, "worker", field="--local-root"):
                pass
    with lock.hold(path, "worker", field="--local-root") as identity:
        assert processes._instance(identity) == first


@pytest.mark.parametrize("text", ["{", "[]", '{"instance": "../x"}', '"x"'])
def test_a_damaged_identity_is_said(text: str, tmp_path: Path) -> None:
    path = tmp_path / "worker.json"
    path.write_text(text)
    with lock.hold(path, "worker", field="--local-root") as identity, pytest.raises(InputError):
        processes._instance(identity)
