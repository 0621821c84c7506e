"""What workers measured of themselves, and what becomes of a worker that a person removed."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest
from engine import register, running, submit
from store_samples import a_worker, stored
from waiting import eventually

from aeo import images
from aeo import workers as engine_workers
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import EvaluationState, Heartbeat, TrialState, WorkerState
from aeo.layout import Local
from aeo.pulse import Pulse
from aeo.registration import Addresses
from aeo.site import Site
from aeo.stay import Stay
from aeo.store import evaluations, samples, trials, workers
from aeo.store.connection import Db
from aeo.store.keys import key
from aeo.store.trials import Standing

LONG_AGO = datetime(2001, 1, 1, tzinfo=timezone.utc)


def a_beat(boot: str = "boot-1", **fields: object) -> Heartbeat:
    return Heartbeat(boot=boot, at=LONG_AGO, **fields)  # type: ignore[arg-type]


def set_back(db: Db, id: str, minutes: int) -> None:
    """Let the last sample be so many minutes old."""
    at, _, rest = db.client.lpop(key("samples", id)).partition(" ")
    db.client.lpush(key("samples", id), f"{int(at) - minutes * 60_000} {rest}")


def test_one_sample_a_minute_is_kept(db: Db) -> None:
    workers.register(db, a_worker())
    assert samples.of(db, ["w1"]) == {"w1": ()}
    first = a_beat(cpu_percent=12.5, memory_percent=40.0, disk_free=10**12, busy=1, clock_skew=0.25)
    workers.beat(db, "w1", first, ttl_seconds=60)
    (sample,) = samples.of(db, ["w1"])["w1"]
    assert sample == samples.Sample(
        at=sample.at, cpu_percent=12.5, memory_percent=40.0, disk_free=10**12, busy=1, clock_skew=0.25
    )
    assert abs((sample.at - trials.now(db)).total_seconds()) < 30
    set_back(db, "w1", 1)
    workers.beat(db, "w1", a_beat(cpu_percent=99.0), ttl_seconds=60)
    assert [item.cpu_percent for item in samples.of(db, ["w1"])["w1"]] == [12.5, 99.0]
    assert samples.of(db, ["w1"])["w1"][1].clock_skew is None


def test_beats_of_one_minute_add_nothing(db: Db) -> None:
    workers.register(db, a_worker())

    def twice_within_a_minute() -> bool:
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
        minute, before = trials.now(db).minute, len(samples.of(db, ["w1"])["w1"])
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
        after = len(samples.of(db, ["w1"])["w1"])
        return trials.now(db).minute == minute and after == before >= 1

    eventually(twice_within_a_minute)


def test_the_history_is_bounded_and_expires(db: Db) -> None:
    workers.register(db, a_worker())
    for minute in range(samples.SAMPLES + 20):
        db.client.lpush(key("samples", "w1"), f"{minute * 60_000} [1.0,2.0,3,0]")
    workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    kept = samples.of(db, ["w1", "nobody"])
    assert (len(kept["w1"]), kept["nobody"]) == (samples.SAMPLES, ())
    assert [sample.at for sample in kept["w1"]] == sorted(sample.at for sample in kept["w1"])
    assert 0 < db.client.ttl(key("samples", "w1")) <= samples.SAMPLES_LIFE
    workers.remove(db, "w1")
    assert samples.of(db, ["w1"]) == {"w1": ()}


def test_what_a_later_version_tells_besides_does_no_harm(db: Db) -> None:
    workers.register(db, a_worker())
    db.client.set(key("beat", "w1"), '1700000000000 {"boot":"boot-1","busy":2,"mood":"fine"}')
    heartbeat = workers.get(db, "w1").heartbeat
    assert heartbeat is not None
    assert heartbeat.busy == 2


def test_the_clock_is_measured_against_the_servers(real_db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    # As exact as the way there is quick.
    eventually(lambda: abs(workers.clock_skew(real_db)) < 2)
    monkeypatch.setattr(workers.time, "time", lambda: trials.now(real_db).timestamp() + 90)
    eventually(lambda: 85 < workers.clock_skew(real_db) < 95)


def test_a_workers_last_runs_are_told(db: Db) -> None:
    workers.register(db, a_worker())
    stored(db, {"b": ["t1"]}, workers={"b": "w1"})
    for failed in (True, False, True):
        trials.note_run(db, "e1", "w1", failed=failed, keep=20)
    assert workers.get(db, "w1").recent == (True, False, True)


# Removed workers


def test_a_removed_process_stays_out_until_it_is_let_in(db: Db) -> None:
    workers.register(db, a_worker())
    workers.bar(db, "w1")
    workers.remove(db, "w1")
    with pytest.raises(Conflict, match="removed by a person"):
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    with pytest.raises(Conflict, match="aeo workers allow w1"):
        workers.register(db, a_worker())
    assert workers.all(db) == []
    (kept_out,) = workers.removed(db)
    assert (kept_out.id, kept_out.boot) == ("w1", "boot-1")
    assert workers.allow(db, "w1") == 1
    assert workers.allow(db, "w1") == 0
    with pytest.raises(NotFound):
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    workers.register(db, a_worker())
    assert workers.beat(db, "w1", a_beat(), ttl_seconds=60) is WorkerState.ONLINE


def test_a_restart_of_a_removed_worker_is_welcome(db: Db) -> None:
    workers.register(db, a_worker())
    workers.bar(db, "w1")
    workers.remove(db, "w1")
    workers.register(db, a_worker(boot="boot-2"))
    assert workers.beat(db, "w1", a_beat("boot-2"), ttl_seconds=60) is WorkerState.ONLINE
    # Its local root is one process's alone: the one before is no more.
    assert workers.removed(db) == []


def test_anothers_start_lets_nobody_else_in(db: Db) -> None:
    workers.register(db, a_worker())
    workers.bar(db, "w1")
    workers.remove(db, "w1")
    workers.register(db, a_worker(instance="elsewhere", boot="boot-9"))
    with pytest.raises(Conflict, match="removed"):
        workers.beat(db, "w1", a_beat(), ttl_seconds=60)
    assert workers.get(db, "w1").info.boot == "boot-9"
    # A name that only begins alike is another worker's.
    workers.register(db, a_worker("w10", instance="ten", boot="boot-10"))
    assert workers.beat(db, "w10", a_beat("boot-10"), ttl_seconds=60) is WorkerState.ONLINE


def test_a_removed_worker_claims_nothing_and_takes_nothing_back(db: Db) -> None:
    workers.register(db, a_worker())
    batch = stored(db, {"b": ["t1", "t2"]}, workers={"b": "w1"})["b"]
    held = trials.claim(db, batch, token="k1", lease_seconds=60)
    assert held is not None
    workers.bar(db, "w1")
    for gone in (False, True):
        if gone:
            workers.remove(db, "w1")
        assert trials.claim(db, batch, token=f"k2{gone}", lease_seconds=60) is None
    trials.requeue(db, "e1", held.trial, held.token, reason="removed", max_requeues=0, counted=False)
    assert trials.renew(db, held, lease_seconds=60) is Standing.LOST
    assert not trials.reclaim(db, held, lease_seconds=60)
    assert trials.state(db, "e1", held.trial) is TrialState.PENDING
    workers.allow(db, "w1")
    assert trials.reclaim(db, held, lease_seconds=60)


def test_what_a_removed_worker_runs_is_stopped_and_given_to_others(site: Site, tmp_path: Path) -> None:
    register(site, "w1")
    register(site, "w2")
    with running(site, tmp_path, "w1", "w2") as pool:
        id = submit(site, {"tasks": 2, "seconds": 60}).id
        try:
            eventually(lambda: trials.workers_claims(site.db, "w1"))
            assert engine_workers.remove(site, "w1", force=True).given_back == 1
            with pytest.raises(Conflict, match="removed"):
                engine_workers.admit(site, a_worker("w1", boot="boot", instance="w1"))
            # Its lease thread finds the lease lost, may not take it back, and ends the run and with it the batch.
            eventually(lambda: pool.returned)
            assert evaluations.get(site.db, id).pending == 1
            assert [run.claim.worker for run in trials.running(site.db, id)] == ["w2"]
        finally:
            evaluations.move(site.db, id, EvaluationState.CANCELLING)
            trials.cancel_pending(site.db, id)


def test_allowing_one_that_was_not_removed_is_an_error(site: Site) -> None:
    with pytest.raises(NotFound, match="kept out"):
        engine_workers.allow(site, "w1")
    register(site, "w1")
    engine_workers.remove(site, "w1")
    engine_workers.allow(site, "w1")
    assert workers.removed(site.db) == []


@pytest.mark.parametrize("id", ["control", "..", "", "a/b"])
def test_some_ids_are_nobodys(site: Site, id: str) -> None:
    with pytest.raises(InputError):
        engine_workers.admit(site, a_worker(id))
    assert workers.all(site.db) == []


def test_the_worker_learns_of_it_at_its_next_beat(site: Site, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    info = a_worker()
    stay = Stay(local=Local(tmp_path / "w"), name="w1")
    engine_workers.admit(site, info)

    def again() -> Addresses:
        engine_workers.admit(site, info)
        return Addresses(broker_url="", transfer_url="", lease_seconds=1, grace_seconds=1, kept=True)

    pulse = Pulse(
        replace(site.config, worker_id="w1", poll_interval=0.05),
        look=lambda: stay.look(info.boot),
        heed=stay.heed,
        register=again,
        dismiss=stay.dismiss,
        begin_anew=stay.begin_anew,
    )
    pulse.start()
    try:
        beat = eventually(
            lambda: (beat := workers.get(site.db, "w1").heartbeat) and beat.clock_skew is not None and beat
        )
        assert beat.disk_total >= beat.disk_free > 0
        engine_workers.remove(site, "w1")
        eventually(stay.now.is_set)
        assert stay.reason() == "removed by a person"
        with pytest.raises(NotFound):
            workers.get(site.db, "w1")
        engine_workers.allow(site, "w1")
        eventually(lambda: stay.reason() == "")
        assert not stay.now.is_set()
        assert workers.get(site.db, "w1").state is WorkerState.ONLINE
    finally:
        pulse.stop()


def test_one_told_to_stop_in_haste_does_not_go_on_when_let_in(tmp_path: Path) -> None:
    stay = Stay(local=Local(tmp_path), name="w1")
    stay.dismiss()
    stay.give_back()
    stay.heed(WorkerState.ONLINE)
    assert stay.now.is_set()


# Images


def a_docker(tmp_path: Path, script: str) -> str:
    program = tmp_path / "docker"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return str(program)


def test_images_are_counted_once_each(tmp_path: Path) -> None:
    assert images.count(a_docker(tmp_path, "printf 'sha256:a\\nsha256:b\\nsha256:a\\n'")) == 2
    assert images.count(a_docker(tmp_path, "true")) == 0


def test_without_docker_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert images.count(str(tmp_path / "nothing")) is None
    assert images.count(a_docker(tmp_path, "echo 'Cannot connect' >&2; exit 1")) is None
    monkeypatch.setattr(images, "PATIENCE", 0.1)
    assert images.count(a_docker(tmp_path, "exec sleep 30")) is None


def test_a_heartbeat_does_not_wait_for_docker(tmp_path: Path) -> None:
    asked = tmp_path / "asked"
    answer = tmp_path / "answer"
    os.mkfifo(answer)
    counter = images.Images(a_docker(tmp_path, f"echo x >> {asked}; cat {answer}"))
    assert counter.count() is None  # it answers when somebody writes
    answer.write_text("a\nb\n")
    assert eventually(counter.count) == 2
    for _ in range(5):
        counter.count()
    assert asked.read_text() == "x\n"
