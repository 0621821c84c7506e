"""Speeds of workers in the store: remembered, learnt in rounds, told to the evaluations that run."""

from __future__ import annotations

import threading
from itertools import permutations
from pathlib import Path

import pytest
from engine import beat, closed, register, running, submit
from store_samples import stored
from waiting import eventually

from aeo import speeds as loop
from aeo import workers
from aeo.core.model import WorkerState
from aeo.core.speeds import FASTEST, RECENT, REMEMBERED_SECONDS, SLOWEST, Timed, pace
from aeo.site import Site
from aeo.store import evaluations, speeds
from aeo.store import workers as worker_store
from aeo.store.connection import Db
from aeo.store.keys import key


def a_run(seconds: float, before: float = 10.0, other: str = "other") -> Timed:
    return Timed(evaluation="before", seconds=seconds, other=other, before=before)


def a_history(db: Db, **factors: float) -> None:
    for one, other in permutations(factors, 2):
        speeds.note(db, [(one, a_run(10.0 / factors[one], 10.0 / factors[other], other))] * 9)


def told(db: Db, id: str) -> dict[str, str]:
    found: dict[str, str] = db.client.hgetall(key("speeds", id))
    return found


def test_the_last_runs_of_each_worker_are_remembered(db: Db) -> None:
    speeds.note(db, [("a", a_run(float(n))) for n in range(1, RECENT + 9)])
    speeds.note(db, [("b", a_run(1.0)), ("", a_run(1.0)), ("c", a_run(1.0, before=0.0)), ("c", a_run(0.0))])
    found = speeds.timed(db, ["a", "b", "c"])
    assert [run.seconds for run in found["a"]][:2] == [RECENT + 8.0, RECENT + 7.0]
    assert (len(found["a"]), list(found)) == (RECENT, ["a", "b"])
    assert speeds.noted(db) == RECENT + 9
    speeds.restore(db, {"a": [a_run(3.0)], "d": [a_run(4.0), a_run(0.0)]})
    assert speeds.timed(db, ["a", "d"]) == {"a": [a_run(3.0)], "d": [a_run(4.0)]}
    assert speeds.noted(db) > RECENT + 9
    assert 0 < db.client.ttl(key("timed", "a")) <= REMEMBERED_SECONDS
    assert 0 < db.client.ttl(key("timed", "b")) <= REMEMBERED_SECONDS


def test_what_was_learnt_is_kept_until_it_is_learnt_anew(db: Db) -> None:
    assert speeds.learnt(db) == {}
    assert speeds.keep(db, {"a": 0.5, "b": 1.0})
    assert not speeds.keep(db, {"a": 0.5, "b": 1.0})
    speeds.note(db, [("a", a_run(1.0))])
    assert speeds.learnt(db) == {"a": 0.5, "b": 1.0}
    assert speeds.keep(db, {"b": 0.25})
    assert speeds.learnt(db) == {"b": 0.25}


def test_what_is_kept_is_read_within_bounds(db: Db) -> None:
    db.client.hset(key("learnt"), mapping={"a": "0", "b": "9999999"})
    assert speeds.learnt(db) == {"a": SLOWEST, "b": FASTEST}
    assert speeds.table(pace(["a", "b"], {"a": 0.0, "b": 1.0})).get("a") == "1"


def test_a_new_evaluation_is_told_from_its_start_unless_its_order_is_fixed(db: Db) -> None:
    speeds.keep(db, {"slow": 0.5})
    where = {"b0": "fast", "b1": "fast", "b2": "slow"}
    stored(db, {batch: [f"t-{batch}"] for batch in where}, workers=where)
    assert told(db, "e1") == {"fast": "1000", "slow": "500", " power": "2500", " fastest": "1000"}
    stored(db, {"b0": ["t"]}, id="e2", name="alike", workers={"b0": "slow"})
    assert told(db, "e2") == {}


def test_only_slots_that_work_or_soon_will_count(db: Db) -> None:
    speeds.keep(db, {"slow": 0.5})
    where = {"b0": "fast", "b1": "fast", "b2": "slow", "b3": "slow"}
    batches = stored(db, {batch: [f"t-{batch}"] for batch in where}, workers=where)
    evaluations.start_batch(db, batches["b2"])
    evaluations.start_batch(db, batches["b0"])
    known = {"fast": 1.0, "slow": 0.5}
    for batch in ("b1", "b3"):
        db.client.hincrby(key("batch_since", "e1"), batch, -60_000)
    speeds.tell(db, "e1", known)
    assert told(db, "e1")[" power"] == "1500"
    # The fast one is gone, or its batches have ended: nobody is waited for.
    speeds.tell(db, "e1", {"slow": 0.5})
    assert told(db, "e1") == {}
    speeds.tell(db, "e1", known)
    evaluations.end_batch(db, batches["b0"])
    speeds.tell(db, "e1", known)
    assert told(db, "e1") == {}


@pytest.fixture
def pacer(site: Site) -> loop.Pacer:
    stop = threading.Event()
    stop.set()
    return loop.Pacer(site, stop)


def test_a_worker_that_is_paused_or_lost_counts_no_more(site: Site, pacer: loop.Pacer) -> None:
    for id in ("fast", "slow"):
        register(site, id)
    a_history(site.db, fast=1.0, slow=0.25)
    pacer.round()
    # How fast usual is, is what the runs of both have in the middle.
    learnt = speeds.learnt(site.db)
    assert learnt["fast"] / learnt["slow"] == pytest.approx(4.0, rel=0.1)
    views = {view.info.id: view.speed for view in workers.views(site)}
    assert views == speeds.learnt(site.db)
    id = submit(site, {"name": "job", "tasks": 20, "seconds": 5}).id
    pacer.round()
    assert set(told(site.db, id)) == {"fast", "slow", " power", " fastest"}
    worker_store.set_state(site.db, "fast", WorkerState.PAUSED)
    pacer.round()
    assert told(site.db, id) == {}
    worker_store.set_state(site.db, "fast", WorkerState.ONLINE)
    pacer.round()
    assert told(site.db, id)
    site.db.client.delete(key("beat", "fast"))
    pacer.round()
    assert told(site.db, id) == {}
    beat(site, "fast", 60)
    pacer.round()
    assert told(site.db, id)


def test_only_workers_that_are_there_have_a_speed(site: Site, pacer: loop.Pacer) -> None:
    for id in ("fast", "slow"):
        register(site, id)
    a_history(site.db, fast=1.0, slow=0.25, gone=0.125)
    pacer.round()
    assert speeds.learnt(site.db).keys() == {"fast", "slow"}
    # It comes back, and is known again though nobody ran anything.
    register(site, "gone")
    pacer.round()
    learnt = speeds.learnt(site.db)
    assert learnt["slow"] / learnt["gone"] == pytest.approx(2.0, rel=0.15)


def test_an_evaluation_with_a_stopping_rule_keeps_its_order(site: Site, pacer: loop.Pacer) -> None:
    for id in ("fast", "slow"):
        register(site, id)
    a_history(site.db, fast=1.0, slow=0.25)
    pacer.round()
    rule = {"stop_when": {"interval": 0.01, "min_trials": 10}}
    id = submit(site, {"name": "job", "tasks": 20, "seconds": 5, **rule}).id
    pacer.round()
    assert told(site.db, id) == {}


def test_a_share_is_by_speed(site: Site, pacer: loop.Pacer) -> None:
    for id in ("fast", "slow"):
        register(site, id, slots=1)
    a_history(site.db, fast=2.0, slow=0.5)
    pacer.round()
    id = submit(site, {"name": "job", "tasks": 50, "seconds": 5}).id
    shares = {item.batch.worker: item.left for item in evaluations.batches(site.db, id)}
    assert shares == {"fast": 40, "slow": 10}


def test_runs_are_remembered_beside_those_of_others_and_outlive_the_store(site: Site, tmp_path: Path) -> None:
    # The last one is invalid: it says nothing, of neither.
    fail = {"task-4": "invalid"}
    ids = []
    for worker in ("a", "b"):
        register(site, worker)
        with running(site, tmp_path / worker, worker):
            ids.append(submit(site, {"name": worker, "tasks": 4, "seconds": 0.05, "fail": fail}).id)
            closed(site, ids[-1])
            worker_store.set_state(site.db, worker, WorkerState.PAUSED)
            if worker == "a":
                assert speeds.timed(site.db, ["a"]) == {}
                continue
            eventually(lambda: len(speeds.timed(site.db, ["b"]).get("b", [])) == 3)
            runs = speeds.timed(site.db, ["b"])["b"]
            assert {(run.evaluation, run.other) for run in runs} == {(ids[1], "a")}
            site.db.client.delete(key("timed", "b"), key("history_whole"))
            eventually(lambda: len(speeds.timed(site.db, ["b"]).get("b", [])) == 3)
            assert {(run.other, run.before) for run in speeds.timed(site.db, ["b"])["b"]} == {
                (run.other, run.before) for run in runs
            }
