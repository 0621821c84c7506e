"""What a worker does with its slots between trials: waits, lets others start first, rests a session, gets more work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import closed, register, running, submit, worker_site
from waiting import eventually

from aeo import batches, control, dispatch, memory, reconciliation, redispatch, turns
from aeo.core.model import Batch, Claim, Heartbeat
from aeo.executors import max_starting as advised
from aeo.executors import sleep
from aeo.executors.harbor import executor as harbor
from aeo.site import Site
from aeo.starts import JITTER_SECONDS, Starts
from aeo.store import connection, evaluations, health, trials, workers
from aeo.store.evaluations import BatchState
from aeo.turns import Turn


@pytest.fixture
def site(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    register(site, "a", slots=1)
    health.mark_recovered(site.db)
    monkeypatch.setattr(turns, "LOOK_SECONDS", 0.05)
    monkeypatch.setattr(reconciliation, "RECLAIM_SECONDS", 0.0)
    monkeypatch.setattr(control, "REPAIR_SECONDS", 0.1)
    quick = replace(site.config, poll_interval=0.05, grace_seconds=5.0, refresh_seconds=0.2)
    return replace(site, config=quick)


def batch_of(site: Site, id: str, worker: str = "a") -> Batch:
    return next(item.batch for item in evaluations.batches(site.db, id) if item.batch.worker == worker)


def beat(site: Site, id: str, **fields: Any) -> None:
    heartbeat = Heartbeat(boot="boot", at=connection.now(site.db), **fields)
    workers.beat(site.db, id, heartbeat, ttl_seconds=3600)


def test_a_full_memory_starts_nothing_for_the_moment(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 2}).id
    crowded = ["memory nearly full: 1 MiB free"]
    worker = replace(worker_site(site, tmp_path, "a"), crowded=lambda: crowded[0])
    thread = threading.Thread(target=batches.run, args=(worker, batch_of(site, id)))
    thread.start()
    eventually(lambda: evaluations.batches(site.db, id)[0].state is BatchState.STARTED)
    assert not threading.Event().wait(0.3)
    assert evaluations.get(site.db, id).pending == 2
    crowded[0] = ""
    thread.join(120)
    assert evaluations.get(site.db, id).pending == 0


def test_memory_is_measured() -> None:
    # A machine that can run the tests has some left.
    assert memory.low() == ""


def test_one_starts_when_the_one_before_has_its_environment(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 4}, per_worker_concurrency="all").id
    worker, batch = worker_site(site, tmp_path, "a"), batch_of(site, id)
    evaluations.start_batch(site.db, batch)
    first = Turn(worker, batch, max_starting=1)
    claims = first.claims()
    assert next(claims)
    got: list[Claim] = []

    def second() -> None:
        for claim in Turn(worker, batch, max_starting=1).claims():
            got.append(claim)
            return

    thread = threading.Thread(target=second)
    thread.start()
    first.told("environment")
    assert not threading.Event().wait(0.3)
    assert got == []
    first.told("agent")
    thread.join(120)
    assert len(got) == 1


def test_starts_are_given_back_however_a_turn_ends(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 1}).id
    worker, batch = worker_site(site, tmp_path, "a"), batch_of(site, id)
    evaluations.start_batch(site.db, batch)

    def fail() -> None:
        for _ in Turn(worker, batch, max_starting=1).claims():
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert list(Turn(worker, batch, max_starting=1).claims()) == []
    assert worker.starts.begin(1, threading.Event())
    assert not worker.starts.begin(1, threading.Event())


def test_only_starts_that_meet_are_put_off() -> None:
    starts, stop = Starts(), threading.Event()
    stop.set()  # nobody waits
    assert [starts.begin(2, stop) for _ in range(3)] == [True, True, False]
    starts.end()
    assert starts.begin(2, stop)


class _Waits(threading.Event):
    """Says how long it was asked to wait, and does not."""

    def __init__(self) -> None:
        super().__init__()
        self.waited: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waited.append(timeout or 0.0)
        return False


def test_starts_apart_are_not_put_off(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("aeo.starts.time.monotonic", lambda: now[0])
    starts, stop = Starts(), _Waits()
    assert starts.begin(4, stop)
    assert stop.waited == []  # nobody else begins
    now[0] += JITTER_SECONDS / 2
    assert starts.begin(4, stop)
    assert len(stop.waited) == 1
    assert 0 <= stop.waited[0] <= JITTER_SECONDS
    now[0] += JITTER_SECONDS
    assert starts.begin(4, stop)  # two are going on, but began long ago
    assert len(stop.waited) == 1


def test_what_executors_advise(site: Site) -> None:
    evaluation = submit(site, {"name": "x", "trials": 1})
    assert advised(sleep.executor, evaluation) == 0
    for kind, most in ((None, 4), ("docker", 4), ("daytona", 0)):
        config = {"environment": {"type": kind}} if kind else {}
        assert advised(harbor, replace(evaluation, spec=replace(evaluation.spec, config=config))) == most
    own = {"environment": {"import_path": "aeo_harbor.host_environment:HostEnvironment"}}
    assert advised(harbor, replace(evaluation, spec=replace(evaluation.spec, config=own))) == 0


def test_a_session_rests_while_another_evaluation_has_its_turn(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    real = sleep.executor.open

    def count(evaluation: Any, workdir: Path) -> Any:
        opened.append(evaluation.id)
        return real(evaluation, workdir)

    monkeypatch.setattr(sleep.executor, "open", count)
    worker = worker_site(site, tmp_path, "a")
    usual, high = (
        submit(site, {"name": "usual", "trials": 2}).id,
        submit(site, {"name": "high", "trials": 1, "priority": 1}).id,
    )
    first, second = batch_of(site, usual), batch_of(site, high)
    # Its message arrived before that of the higher one was sent.
    monkeypatch.setattr(turns, "gives_way", lambda *_: False)
    lists = dispatch.lists_of(dispatch.queue_of("a"))
    before = sum(health.queue_lengths(site.db, lists).values())
    assert batches.run(worker, first) == {"batch": first.id, "ran": 0, "note": "", "again": True}
    assert sum(health.queue_lengths(site.db, lists).values()) == before + 1
    assert evaluations.batches(site.db, usual)[0].state is BatchState.SENT
    assert worker.local.batch(first.id).exists()
    assert batches.run(worker, second)["ran"] == 1
    assert batches.run(worker, first) == {"batch": first.id, "ran": 2, "note": "", "again": False}
    assert opened == [usual, high]
    assert not worker.local.batch(first.id).exists()


def test_what_rests_is_closed_at_the_end_of_a_worker(site: Site, tmp_path: Path) -> None:
    worker = worker_site(site, tmp_path, "a")
    usual, high = (
        submit(site, {"name": "usual", "trials": 2}).id,
        submit(site, {"name": "high", "trials": 1, "priority": 1}).id,
    )
    batch = batch_of(site, usual)
    evaluations.start_batch(site.db, batch)
    work = batches._open(worker, batch)
    assert list(work.turn.claims()) == []
    assert work.turn.given
    assert high
    worker.resting.put(batch.id, work, most=1)
    batches.close_resting(worker)
    assert worker.resting.take(batch.id) is None
    assert not worker.local.batch(batch.id).exists()


def test_a_batch_that_arrives_lets_a_higher_one_pass(site: Site, tmp_path: Path) -> None:
    worker = worker_site(site, tmp_path, "a")
    usual, high = (
        submit(site, {"name": "usual", "trials": 2}).id,
        submit(site, {"name": "high", "trials": 1, "priority": 1}).id,
    )
    first = batch_of(site, usual)
    assert batches.run(worker, first) == {"batch": first.id, "ran": 0, "again": True}
    # Once: if the other does not come, its message is lost.
    assert not turns.gives_way(worker, first)
    assert evaluations.batches(site.db, high)[0].state is BatchState.SENT


@pytest.fixture
def quick_help(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(redispatch, "HELP_SECONDS", 0.0)
    return


def test_a_worker_that_joins_late_gets_batches(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 10, "seconds": 0.3}, per_worker_concurrency="all").id
    with running(site, tmp_path, "a", "late"):
        eventually(lambda: evaluations.get(site.db, id).done)
        beat(site, "a", batches=(batch_of(site, id).id,))
        register(site, "late", slots=2)
        beat(site, "late")
        eventually(lambda: [item for item in evaluations.batches(site.db, id) if item.batch.worker == "late"])
        closed(site, id)
    ran = {row.worker for row in trials.rows(site.db, id, offset=0, limit=20)[0]}
    assert ran == {"a", "late"}
    assert len([item for item in evaluations.batches(site.db, id) if item.batch.worker == "late"]) == 2


@pytest.mark.usefixtures("quick_help")
@pytest.mark.parametrize(
    ("late", "options"),
    [
        ({"memory_mb": 100}, {}),
        ({"executors": {}}, {}),
        ({}, {"workers": ["a"]}),
    ],
)
def test_a_worker_that_could_run_nothing_gets_none(site: Site, late: dict[str, Any], options: dict[str, Any]) -> None:
    id = submit(site, {"name": "x", "trials": 3, "memory_mb": 200}, **options).id
    evaluations.start_batch(site.db, batch_of(site, id))
    beat(site, "a", batches=(batch_of(site, id).id,))
    register(site, "late", **late)
    beat(site, "late")
    reconciliation.reconcile(site)
    assert len(evaluations.batches(site.db, id)) == 1


@pytest.mark.usefixtures("quick_help")
def test_weight_0_counts_from_the_next_claim_on(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}).id
    batch = batch_of(site, id)
    evaluations.start_batch(site.db, batch)
    beat(site, "a", batches=(batch.id,))
    assert trials.claim(site.db, batch, token="one", lease_seconds=60)
    workers.set_weight(site.db, "a", 0)
    assert trials.claim(site.db, batch, token="two", lease_seconds=60) is None
    reconciliation.reconcile(site)
    assert len(evaluations.batches(site.db, id)) == 1
    workers.set_weight(site.db, "a", None)
    assert trials.claim(site.db, batch, token="three", lease_seconds=60)


@pytest.mark.usefixtures("quick_help")
@pytest.mark.parametrize(("priority", "helpers"), [(5, 1), (0, 1), (-1, 0)])
def test_who_has_a_right_to_slots_that_others_have_is_helped_there(site: Site, priority: int, helpers: int) -> None:
    """Found by use: after a restart all of it waited for the worker that came late, the others ran lower priorities."""
    # One slot: equals take turns there, and who goes behind waits until nobody uses it.
    low = submit(site, {"name": "low", "trials": 6}).id
    seat = batch_of(site, low)
    evaluations.start_batch(site.db, seat)
    register(site, "late")
    beat(site, "late")
    high = submit(site, {"name": "high", "trials": 6}, priority=priority).id
    for item in evaluations.batches(site.db, high):
        if item.batch.worker == "a":
            evaluations.end_batch(site.db, item.batch)
    beat(site, "a", batches=(seat.id,))
    for _ in range(2):
        reconciliation.reconcile(site)
    alive = [item.batch.worker for item in evaluations.batches(site.db, high) if item.state is not BatchState.ENDED]
    assert alive.count("a") == helpers
    assert "late" in alive


def test_helpers_come_later_and_later_where_they_find_nothing(site: Site) -> None:
    worker = workers.get(site.db, "a")
    assert redispatch._next_help([], worker) < connection.now(site.db)
    id = submit(site, {"name": "x", "trials": 3}).id
    evaluations.end_batch(site.db, batch_of(site, id))
    (ended,) = evaluations.batches(site.db, id)
    waits = [(redispatch._next_help([ended] * n, worker) - ended.since).total_seconds() for n in (1, 2, 10, 100)]
    assert waits == [3.0, 6.0, 30.0, 60.0]


def test_a_message_that_is_lost_while_the_slots_are_busy_is_sent_again(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redispatch, "RESEND_SECONDS", 0.0)
    one, two = submit(site, {"name": "one", "trials": 3}).id, submit(site, {"name": "two", "trials": 3}).id
    lists = dispatch.lists_of(dispatch.queue_of("a"))
    busy = batch_of(site, one)
    evaluations.start_batch(site.db, busy)
    site.db.client.delete(*lists)
    submit(site, {"name": "three", "trials": 1})
    beat(site, "a", batches=(busy.id,))
    reconciliation.reconcile(site)
    assert batch_of(site, two).id in health.queued(site.db, lists)
    assert sum(health.queue_lengths(site.db, lists).values()) == 2
    reconciliation.reconcile(site)
    assert sum(health.queue_lengths(site.db, lists).values()) == 2
