from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from store_samples import a_worker, stored
from waiting import eventually

from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import Heartbeat, WorkerState
from aeo.store import trials, workers
from aeo.store.connection import Db

#: What a worker whose clock is wrong sends.
LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def a_beat(boot: str = "boot-1") -> Heartbeat:
    return Heartbeat(boot=boot, at=LONG_AGO, busy=1, cpu_percent=12.5, disk_free=10**12, draining="")


def test_a_registered_worker_is_online(db: Db) -> None:
    workers.register(db, a_worker())
    status = workers.get(db, "w1")
    assert status.info == a_worker()
    assert (status.state, status.note, status.weight_override, status.busy) == (WorkerState.ONLINE, "", None, 0)


def test_a_heartbeat_carries_the_servers_time(db: Db) -> None:
    workers.register(db, a_worker())
    assert workers.beat(db, "w1", a_beat(), ttl_seconds=60) is WorkerState.ONLINE
    status = workers.get(db, "w1")
    assert status.heartbeat is not None
    assert status.heartbeat_age is not None
    assert status.heartbeat == replace(a_beat(), at=status.heartbeat.at)
    assert 0 <= status.heartbeat_age < 30
    assert abs((trials.now(db) - status.heartbeat.at).total_seconds()) < 30


def test_a_silent_worker_is_lost(db: Db) -> None:
    workers.register(db, a_worker())
    workers.set_state(db, "w1", WorkerState.PAUSED, "for repair")
    workers.beat(db, "w1", a_beat(), ttl_seconds=0.05)
    status = eventually(lambda: (s := workers.get(db, "w1")).state is WorkerState.LOST and s)
    assert (status.heartbeat, status.heartbeat_age, status.note) == (None, None, "for repair")
    assert workers.beat(db, "w1", a_beat(), ttl_seconds=60) is WorkerState.PAUSED
    assert workers.get(db, "w1").state is WorkerState.PAUSED


def test_a_worker_that_never_beats_is_lost_too(db: Db) -> None:
    workers.register(db, a_worker(), ttl_seconds=0.05)
    eventually(lambda: workers.get(db, "w1").state is WorkerState.LOST)


def test_a_stranger_does_not_get_a_live_workers_id(db: Db) -> None:
    workers.register(db, a_worker(host="alpha"))
    with pytest.raises(Conflict, match="alpha"):
        workers.register(db, a_worker(instance="elsewhere", boot="boot-2", host="beta"))
    assert workers.get(db, "w1").info == a_worker(host="alpha")


def test_a_restart_gets_its_id_back(db: Db) -> None:
    workers.register(db, a_worker())
    workers.set_weight(db, "w1", 2.5)
    workers.set_state(db, "w1", WorkerState.PAUSED, "for repair")
    workers.register(db, a_worker(boot="boot-2"))
    status = workers.get(db, "w1")
    assert (status.info.boot, status.weight_override) == ("boot-2", 2.5)
    assert (status.state, status.note) == (WorkerState.PAUSED, "for repair")
    workers.set_state(db, "w1", WorkerState.DRAINING, "upgrade")
    workers.register(db, a_worker(boot="boot-3"))
    assert (workers.get(db, "w1").state, workers.get(db, "w1").note) == (WorkerState.ONLINE, "")


def test_a_lost_workers_id_is_free_and_its_old_owner_is_told(db: Db) -> None:
    workers.register(db, a_worker(), ttl_seconds=0.05)
    eventually(lambda: workers.get(db, "w1").state is WorkerState.LOST)
    workers.register(db, a_worker(instance="elsewhere", boot="boot-2"))
    with pytest.raises(NotFound):
        workers.beat(db, "w1", a_beat("boot-1"), ttl_seconds=60)
    heartbeat = workers.get(db, "w1").heartbeat
    assert heartbeat is not None
    assert heartbeat.boot == "boot-2"


def test_a_worker_that_left_is_listed_no_more_and_finds_its_settings_again(db: Db) -> None:
    workers.register(db, a_worker())
    workers.set_weight(db, "w1", 2.5)
    workers.set_state(db, "w1", WorkerState.PAUSED, "for repair")
    assert workers.leave(db, "w1", "boot-1")
    assert workers.all(db) == []
    # A heartbeat that was on its way brings it back no more.
    with pytest.raises(NotFound):
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    assert not workers.leave(db, "w1", "boot-1")
    workers.register(db, a_worker(boot="boot-2", instance="elsewhere"))
    status = workers.get(db, "w1")
    assert (status.state, status.note, status.weight_override) == (WorkerState.PAUSED, "for repair", 2.5)


def test_only_the_registered_boot_can_leave(db: Db) -> None:
    workers.register(db, a_worker())
    workers.register(db, a_worker(boot="boot-2"))
    assert not workers.leave(db, "w1", "boot-1")
    assert workers.get(db, "w1").state is WorkerState.ONLINE


def test_a_worker_the_store_does_not_know_has_to_register(db: Db) -> None:
    with pytest.raises(NotFound, match="w1"):
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    assert workers.all(db) == []


@pytest.mark.parametrize("state", [WorkerState.PAUSED, WorkerState.DRAINING, WorkerState.ONLINE])
def test_a_worker_learns_what_is_wanted_by_its_heartbeat(db: Db, state: WorkerState) -> None:
    workers.register(db, a_worker())
    workers.set_state(db, "w1", state, "because")
    assert workers.beat(db, "w1", a_beat(), ttl_seconds=60) is state
    assert (workers.get(db, "w1").state, workers.get(db, "w1").note) == (state, "because")


def test_a_weight_is_set_and_taken_back(db: Db) -> None:
    workers.register(db, a_worker())
    for weight in (0.0, 0.1, 3.0, None):
        workers.set_weight(db, "w1", weight)
        assert workers.get(db, "w1").weight_override == weight


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_what_is_no_weight_is_refused(db: Db, weight: float) -> None:
    workers.register(db, a_worker())
    with pytest.raises(InputError, match="weight"):
        workers.set_weight(db, "w1", weight)


def test_nobody_sets_what_is_not_there(db: Db) -> None:
    for call in (
        lambda: workers.get(db, "nope"),
        lambda: workers.set_weight(db, "nope", 1.0),
        lambda: workers.set_state(db, "nope", WorkerState.PAUSED),
    ):
        with pytest.raises(NotFound, match="nope"):
            call()
    workers.register(db, a_worker())
    with pytest.raises(InputError, match="silence"):
        workers.set_state(db, "w1", WorkerState.LOST)


def test_workers_are_listed_with_what_they_run(db: Db) -> None:
    for id in ("w2", "w1", "w10"):
        workers.register(db, a_worker(id, instance=id))
    batch = stored(db, {"b": ["t1", "t2"]}, workers={"b": "w2"})["b"]
    first = trials.claim(db, batch, token="k1", lease_seconds=60)
    trials.claim(db, batch, token="k2", lease_seconds=60)
    assert first is not None
    assert {status.info.id: status.busy for status in workers.all(db)} == {"w1": 0, "w10": 0, "w2": 2}
    assert [status.info.id for status in workers.all(db)] == ["w1", "w10", "w2"]
    trials.pushed(db, first)
    assert workers.get(db, "w2").busy == 1


def test_a_removed_worker_is_gone_but_keeps_what_it_runs(db: Db) -> None:
    workers.register(db, a_worker())
    batch = stored(db, {"b": ["t1"]}, workers={"b": "w1"})["b"]
    claim = trials.claim(db, batch, token="k1", lease_seconds=60)
    workers.remove(db, "w1")
    workers.remove(db, "w1")
    assert workers.all(db) == []
    assert trials.workers_claims(db, "w1") == [claim]
    workers.register(db, a_worker(instance="elsewhere"))
