"""Repairs: after each small fault the evaluation still ends, and every trial counts once."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from engine import closed, logged, register, result, running, submit, worker_site
from waiting import eventually

from aeo import (
    batches,
    contents,
    control,
    dispatch,
    evaluations,
    event_log,
    jobs,
    outbox,
    reconciliation,
    recovery,
    redispatch,
    results,
)
from aeo.core.errors import TransferFailed, Unavailable
from aeo.core.model import Batch, EvaluationState, Heartbeat, Outcome, TrialState, WorkerState
from aeo.executors import sleep
from aeo.layout import manifest_of
from aeo.site import Site
from aeo.store import connection, health, inbox, trials, workers
from aeo.store import evaluations as store
from aeo.store.evaluations import BatchState
from aeo.transfer import manifest as manifests


@pytest.fixture
def site(site: Site) -> Site:
    """Two workers of one slot, and repairs that do not wait."""
    for id in ("a", "b"):
        register(site, id, slots=1)
    health.mark_recovered(site.db)
    quick = replace(site.config, poll_interval=0.01, grace_seconds=0.05, refresh_seconds=0.2)
    return replace(site, config=quick)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "RECLAIM_SECONDS", 0.0)
    monkeypatch.setattr(redispatch, "RESEND_SECONDS", 0.0)
    monkeypatch.setattr(control, "REPAIR_SECONDS", 0.1)
    monkeypatch.setattr(control, "AFTER_FAILURE", 0.05)


def raising(error: Exception) -> Callable[..., Any]:
    def fail(*args: object, **named: object) -> None:
        raise error

    return fail


def only_batch(site: Site, id: str) -> Batch:
    (status,) = store.batches(site.db, id)
    return status.batch


def beat(site: Site, id: str, **fields: Any) -> None:
    heartbeat = Heartbeat(boot="boot", at=connection.now(site.db), **fields)
    workers.beat(site.db, id, heartbeat, ttl_seconds=3600)


def repaired(site: Site, until: Callable[[], object]) -> None:
    def round() -> object:
        reconciliation.reconcile(site)
        for id in store.open_ids(site.db):
            jobs.merge(site, id)
        return until()

    eventually(round)


def state(site: Site, id: str) -> EvaluationState:
    return store.get(site.db, id).state


def test_a_trial_lost_while_its_evaluation_is_cancelled(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    store.start_batch(site.db, only_batch(site, id))
    assert trials.claim(site.db, only_batch(site, id), token="t", lease_seconds=0.01)
    evaluations.cancel(site, id)
    repaired(site, lambda: state(site, id) is EvaluationState.CANCELLED)


def test_a_cancel_that_died_half_way_is_finished(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}).id
    store.move(site.db, id, EvaluationState.CANCELLING, "and then killed")
    repaired(site, lambda: state(site, id) is EvaluationState.CANCELLED)
    assert store.get(site.db, id).outcomes[Outcome.CANCELLED] == 3


def test_cancelling_again_finishes_what_the_first_call_began(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}).id
    store.move(site.db, id, EvaluationState.CANCELLING, "and then killed")
    assert evaluations.cancel(site, id).done == 3


def test_a_batch_its_worker_does_not_know_is_ended_and_another_sent(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    batch = only_batch(site, id)
    store.start_batch(site.db, batch)  # then the worker was killed and started again

    def ended() -> bool:
        beat(site, "a")
        return store.batches(site.db, id)[-1].batch != batch or len(store.batches(site.db, id)) > 1

    repaired(site, ended)
    with running(site, tmp_path, "a"):
        assert closed(site, id).state is EvaluationState.SUCCEEDED


def test_a_batch_its_worker_names_is_left_alone(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    batch = only_batch(site, id)
    store.start_batch(site.db, batch)
    for _ in range(5):
        beat(site, "a", batches=(batch.id,), busy=1)
        reconciliation.reconcile(site)
    assert [status.state for status in store.batches(site.db, id)] == [BatchState.STARTED]


def test_a_lost_message_is_sent_again(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    lists = dispatch.lists_of(dispatch.queue_of("a"))
    site.db.client.delete(*lists)  # taken by a worker that died before it began

    def waiting() -> bool:
        beat(site, "a")
        return sum(health.queue_lengths(site.db, lists).values()) == 1

    repaired(site, waiting)
    reconciliation.reconcile(site)
    assert sum(health.queue_lengths(site.db, lists).values()) == 1
    assert len(store.batches(site.db, id)) == 1


def test_a_full_workers_batch_is_not_sent_again(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    lists = dispatch.lists_of(dispatch.queue_of("a"))
    for _ in range(3):
        beat(site, "a", batches=("another",), busy=1)
        reconciliation.reconcile(site)
    assert sum(health.queue_lengths(site.db, lists).values()) == 1
    assert len(store.batches(site.db, id)) == 1


def test_a_store_that_is_away_when_a_batch_ends(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    with monkeypatch.context() as patch:
        for module, name in ((trials, "ask"), (store, "end_batch"), (workers, "count_batch")):
            patch.setattr(module, name, raising(Unavailable("away")))
        with pytest.raises(Unavailable):
            batches.run(worker_site(site, tmp_path, "a"), only_batch(site, id))
    assert store.batches(site.db, id)[0].state is BatchState.STARTED

    def gone_on() -> bool:
        beat(site, "a")
        return len(store.batches(site.db, id)) > 1

    repaired(site, gone_on)


def arrivals(site: Site, root: Path, *names: str) -> None:
    """One evaluation of one trial each, their results in the inbox and not looked at."""
    for number, name in enumerate(names):
        submit(site, {"name": name, "trials": 1}, workers=["ab"[number]])
    with running(site, root, "a", "b", with_control=False):
        eventually(lambda: inbox.length(site.db) == len(names))


def commit_all(site: Site, rounds: int = 6) -> None:
    for _ in range(rounds):
        control._attempt(lambda: control._commit_next(site))


def test_a_job_folder_taken_away_holds_up_nobody(site: Site, tmp_path: Path) -> None:
    arrivals(site, tmp_path, "one", "two")
    shutil.rmtree(site.shared.job("one"))
    commit_all(site)
    for name in ("one", "two"):
        id = store.find(site.db, name).id
        assert jobs.merge(site, id) is EvaluationState.SUCCEEDED
        assert result(site, name)["stats"]["n_completed_trials"] == 1


def test_a_result_that_cannot_be_moved_lets_the_others_pass(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals(site, tmp_path, "one", "two")
    real = results.copy.rename

    def rename(source: Path, target: Path) -> None:
        if target.parent.name == "one":
            raise PermissionError(13, "not yours")
        real(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(results.copy, "rename", rename)
        commit_all(site)
        assert (store.find(site.db, "one").done, store.find(site.db, "two").done) == (0, 1)
    commit_all(site, 2)
    assert store.find(site.db, "one").done == 1


def test_a_plug_ins_fault_on_one_result_rejects_that_one(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals(site, tmp_path, "one", "two")
    id, real = store.find(site.db, "one").id, sleep.executor.summarise

    def summarise(trial: Any, folder: Path) -> Any:
        if id in str(folder) or "/one/" in str(folder):
            raise KeyError("a bug")
        return real(trial, folder)

    monkeypatch.setattr(sleep.executor, "summarise", summarise)
    commit_all(site)
    assert (store.find(site.db, "one").done, store.find(site.db, "two").done) == (0, 1)
    assert store.find(site.db, "one").pending == 1


def test_a_rejection_interrupted_anywhere_is_finished(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for step in ((trials, "requeue"), (results.events, "emit"), (results, "_supersede"), (results, "_forget")):
        name = step[1].strip("_")
        submit(site, {"name": name, "trials": 1}, workers=["a"])
        with running(site, tmp_path / name, "a", with_control=False):
            eventually(lambda: inbox.length(site.db) == 1)
        id = store.find(site.db, name).id
        (folder,) = (path for path in (site.shared.inbox / id).iterdir() if path.is_dir())
        (folder / "more").write_text("what the manifest does not list")
        with monkeypatch.context() as patch:
            patch.setattr(*step, raising(Unavailable("away")))
            commit_all(site, 1)
        commit_all(site, 3)
        assert store.get(site.db, id).pending == 1, name
        assert inbox.length(site.db) == 0


def test_a_merge_that_fails_is_tried_again(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals(site, tmp_path, "x")
    commit_all(site, 1)
    id = store.find(site.db, "x").id
    with monkeypatch.context() as patch:
        patch.setattr(sleep.executor, "merge", raising(KeyError("a bug")))
        assert jobs.merge(site, id) is EvaluationState.MERGING
        assert "merge failed" in store.get(site.db, id).reason
    assert jobs.merge(site, id) is EvaluationState.SUCCEEDED
    assert store.get(site.db, id).reason == ""
    assert result(site, "x")["finished_at"] is not None


def test_a_merge_that_always_fails_ends(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals(site, tmp_path, "x")
    commit_all(site, 1)
    id = store.find(site.db, "x").id
    monkeypatch.setattr(sleep.executor, "merge", raising(KeyError("a bug")))
    assert [jobs.merge(site, id) for _ in range(8)] == [EvaluationState.MERGING] * 8  # one try a minute counts

    def ended() -> bool:
        site.db.client.hset(f"aeo:e:{id}", "merge_failed_at", 0)
        return state(site, id) is EvaluationState.FAILED

    repaired(site, ended)
    assert "a bug" in store.get(site.db, id).reason


def test_a_full_disk_never_condemns_a_finished_evaluation(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals(site, tmp_path, "x")
    commit_all(site, 1)
    id = store.find(site.db, "x").id
    with monkeypatch.context() as patch:
        patch.setattr(sleep.executor, "merge", raising(OSError(28, "No space left on device")))
        for _ in range(12):
            site.db.client.hdel(f"aeo:e:{id}", "merge_failed_at")
            assert jobs.merge(site, id) is EvaluationState.MERGING
    assert jobs.merge(site, id) is EvaluationState.SUCCEEDED


def test_a_worker_that_was_removed_does_not_stop_the_others(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 4}, workers=["a", "b"]).id
    for status in store.batches(site.db, id):
        store.start_batch(site.db, status.batch)
        store.end_batch(site.db, status.batch)
    workers.remove(site.db, "b")
    with running(site, tmp_path, "a"):
        assert closed(site, id).state is EvaluationState.SUCCEEDED


def test_why_an_evaluation_waits_can_be_read(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 4}, workers=["a"]).id
    workers.set_state(site.db, "a", WorkerState.PAUSED, "new disk")
    store.end_batch(site.db, only_batch(site, id))
    reconciliation.reconcile(site)
    assert "a is paused: new disk" in store.get(site.db, id).reason
    workers.set_state(site.db, "a", WorkerState.ONLINE)
    reconciliation.reconcile(site)
    assert store.get(site.db, id).reason == ""


def test_a_store_wiped_under_a_running_controller(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "trials": 6, "seconds": 0.4}).id
        eventually(lambda: store.get(site.db, id).done >= 1)
        site.db.client.flushall()
        for worker in ("a", "b"):
            register(site, worker, slots=1)
        status = closed(site, id)
    assert status.state is EvaluationState.SUCCEEDED
    committed = [event["trial"] for event in logged(site, id) if event["kind"] == "committed"]
    assert len(set(committed)) == 6
    assert result(site, "x")["stats"]["n_completed_trials"] == 6


def test_a_wipe_while_the_store_is_being_rebuilt_is_noticed(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id = submit(site, {"name": "x", "trials": 2}, workers=["a"]).id
    site.db.client.flushall()
    with monkeypatch.context() as patch:
        patch.setattr(recovery, "_recover_inbox", lambda _: site.db.client.flushall())
        with pytest.raises(Unavailable):
            recovery.recover(site)
    assert health.settled_seconds(site.db) is None
    recovery.recover(site)
    assert health.settled_seconds(site.db) is not None
    assert store.get(site.db, id).pending == 2


def test_a_running_trial_takes_its_lease_back_after_a_wipe(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a", with_control=False):
        id = submit(site, {"name": "x", "trials": 1, "seconds": 4}, workers=["a"]).id
        (before,) = eventually(lambda: trials.running(site.db, id))
        site.db.client.flushall()
        recovery.recover(site)
        (after,) = eventually(lambda: trials.running(site.db, id))
    assert after.claim.token == before.claim.token
    commit_all(site, 1)
    assert store.get(site.db, id).done == 1
    kinds = [event["kind"] for event in logged(site, id)]
    assert (kinds.count("reclaimed"), kinds.count("requeued"), kinds.count("committed")) == (1, 0, 1)


@pytest.mark.parametrize("wiped", [False, True], ids=["restart", "wipe"])
def test_a_cancelled_evaluation_never_runs_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wiped: bool
) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    evaluations.cancel(site, id)
    closed(site, id)
    logged(site, id)
    if wiped:
        site.db.client.flushall()
        register(site, "a")
        with monkeypatch.context() as patch:  # killed in the middle of it
            patch.setattr(trials, "cancel_pending", raising(Unavailable("killed")))
            control._attempt(lambda: recovery.recover(site))
    recovery.recover(site)
    status = store.get(site.db, id)
    assert (status.state, status.running) == (EvaluationState.CANCELLED, 0)
    assert store.batches(site.db, id) == [] or not wiped
    assert [event for event in logged(site, id) if event["kind"] == "claimed"] == []


def test_what_was_known_of_a_run_survives_a_wipe(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a"):
        id = submit(site, {"name": "x", "tasks": 2, "fail": {"task-1": ["die"]}}, workers=["a"]).id
        closed(site, id)
    logged(site, id)
    before = sorted(trials.rows_since(site.db, id, 0), key=lambda row: row.summary.trial)
    site.db.client.flushall()
    recovery.recover(site)
    assert sorted(trials.rows_since(site.db, id, 0), key=lambda row: row.summary.trial) == before
    assert {row.worker for row in before} == {"a"}
    assert sorted(row.attempt for row in before) == [1, 2]


def test_a_broken_worker_is_paused_and_the_others_do_its_work(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sleep.SleepSession._run

    def run(self: Any, trial: Any, context: Any, on_event: Any) -> Any:
        if "/b/" in str(context.trial_dir):
            trial = replace(trial, payload={**trial.payload, "seconds": 0, "endings": ["infra"] * 9})
        return real(self, trial, context, on_event)

    monkeypatch.setattr(sleep.SleepSession, "_run", run)
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "trials": 20, "seconds": 0.2}).id
        status = closed(site, id)
    assert status.state is EvaluationState.SUCCEEDED
    assert status.outcomes[Outcome.SCORED] == 20
    broken = workers.get(site.db, "b")
    assert broken.state is WorkerState.PAUSED
    assert "EnvironmentStartTimeoutError" in broken.note
    # What the infrastructure failed is kept beside, as an earlier attempt.
    assert list((site.shared.evaluation(id) / "superseded").iterdir())


def test_an_evaluation_that_fails_everywhere_is_paused_with_the_reason(site: Site, tmp_path: Path) -> None:
    site = replace(site, config=replace(site.config, breaker_runs=6, worker_breaker_runs=0))
    fail = {f"task-{n}": "infra" for n in range(1, 13)}
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "tasks": 12, "fail": fail}).id
        eventually(lambda: state(site, id) is EvaluationState.PAUSED)
        assert "6 of the last 6 runs failed by infrastructure" in store.get(site.db, id).reason
        evaluations.resume(site, id)
        assert state(site, id) in (EvaluationState.RUNNING, EvaluationState.PAUSED)
        evaluations.cancel(site, id)
        assert closed(site, id).state is EvaluationState.CANCELLED


def test_a_paused_evaluation_starts_nothing_and_goes_on_when_resumed(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a"):
        id = submit(site, {"name": "x", "trials": 10, "seconds": 0.1}, workers=["a"]).id
        eventually(lambda: store.get(site.db, id).done >= 1)
        evaluations.pause(site, id)
        eventually(lambda: store.get(site.db, id).running == 0)
        assert store.get(site.db, id).pending > 0
        assert state(site, id) is EvaluationState.PAUSED
        evaluations.resume(site, id)
        assert closed(site, id).state is EvaluationState.SUCCEEDED


def test_a_worker_whose_batches_fail_is_paused(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = contents.fetch

    def fetch(place: Any, *rest: Any, **named: Any) -> Any:
        if place.config.worker_id == "b":
            raise TransferFailed("no such folder", permanent=True)
        return real(place, *rest, **named)

    monkeypatch.setattr(contents, "fetch", fetch)
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "trials": 8, "seconds": 0.3}).id
        eventually(lambda: workers.get(site.db, "b").state is WorkerState.PAUSED or store.get(site.db, id).done == 8)
        assert closed(site, id).state is EvaluationState.SUCCEEDED
        assert len(store.batches(site.db, id)) < 12


def test_a_worker_that_takes_no_work_gets_none(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 2}, workers=["a"]).id
    full = replace(worker_site(site, tmp_path, "a"), draining=lambda: "disk nearly full")
    assert batches.run(full, only_batch(site, id))["note"] == "disk nearly full"
    beat(site, "a", draining="disk nearly full: 3 MiB free")
    for _ in range(3):
        reconciliation.reconcile(site)
    assert len(store.batches(site.db, id)) == 1
    assert "disk nearly full: 3 MiB free" in store.get(site.db, id).reason


def test_a_cancel_while_the_task_is_fetched_stops_the_trial(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetching, go_on, real = threading.Event(), threading.Event(), contents.fetch

    def slow(*args: Any, **named: Any) -> Any:
        fetching.set()
        assert go_on.wait(120)
        return real(*args, **named)

    monkeypatch.setattr(contents, "fetch", slow)
    with running(site, tmp_path, "a"):
        id = submit(site, {"name": "x", "trials": 1, "seconds": 120}, workers=["a"]).id
        assert fetching.wait(120)
        evaluations.cancel(site, id)
        go_on.set()
        assert closed(site, id, 20).state is EvaluationState.CANCELLED


def test_a_row_is_of_the_run_whose_folder_is_in_the_job(site: Site, tmp_path: Path) -> None:
    arrivals(site, tmp_path, "x")
    arrival = inbox.take(site.db, 1)
    assert arrival is not None
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    late = folder.with_name(f"{arrival.trial}.late")
    shutil.copytree(folder, late)
    document = json.loads((late / "result.json").read_text())
    document["verifier_result"]["rewards"]["reward"] = 0.25
    (late / "result.json").write_text(json.dumps(document))
    first = manifests.load(manifest_of(folder))
    fields = {"evaluation": arrival.evaluation, "trial": arrival.trial, "token": "late", "worker": "b", "attempt": 2}
    second = manifests.make(late, started_at=first.started_at, finished_at=first.finished_at, **fields)  # type: ignore[arg-type]
    manifests.save(second, manifest_of(late))
    # The first is in the job, but the store lost its last second and never heard of it.
    folder.rename(site.shared.job("x") / arrival.trial)
    assert not results.commit(site, replace(arrival, token="late"))
    row = trials.row(site.db, arrival.evaluation, arrival.trial)
    assert row is not None
    assert row.summary.rewards == {"reward": 1.0}
    assert (site.shared.superseded(arrival.evaluation, arrival.trial, "late") / "result.json").is_file()


def test_a_push_that_never_works_does_not_hold_up_a_cancel(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "CANCEL_PUSH_SECONDS", 0.1)
    monkeypatch.setattr(outbox.move, "push", raising(TransferFailed("Permission denied", permanent=True)))
    site = replace(site, config=replace(site.config, lease_seconds=1.0))
    with running(site, tmp_path, "a"):
        id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
        eventually(lambda: any(run.phase.startswith("cannot push") for run in trials.running(site.db, id)))
        evaluations.cancel(site, id)
        beat(site, "a")
        assert closed(site, id, 20).state is EvaluationState.CANCELLED


def test_a_result_half_way_into_the_outbox(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        pass

    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    place = worker_site(site, tmp_path, "a")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", raising(Killed()))  # type: ignore[arg-type]
        with pytest.raises(Killed):
            batches.run(place, only_batch(site, id))
    stop = threading.Event()
    thread = threading.Thread(target=outbox.keep, args=(worker_site(site, tmp_path, "a"), stop))
    thread.start()
    eventually(lambda: not [path for path in place.local.outbox.rglob("*") if path.is_file()])
    stop.set()
    thread.join()
    assert trials.states(site.db, id) == dict.fromkeys(trials.states(site.db, id), TrialState.PENDING)


def test_an_event_is_logged_once_though_the_writer_dies(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    id = submit(site, {"name": "x", "trials": 2}).id
    with monkeypatch.context() as patch:
        patch.setattr(event_log.events, "forget", raising(Unavailable("killed")))
        for _ in range(3):
            with pytest.raises(Unavailable):
                event_log.write(site)
    path = site.shared.events(id)
    with path.open("a") as log:
        log.write('{"id": "9')  # torn by the crash
    evaluations.cancel(site, id)
    events = logged_whole(site, id)
    assert [event["kind"] for event in events].count("submitted") == 1
    assert len({event["id"] for event in events}) == len(events)
    assert event_log.last_state(events) == (EvaluationState.CANCELLING, "cancelled by a person")


def logged_whole(site: Site, id: str) -> list[Any]:
    while event_log.write(site):
        pass
    return list(event_log.read(site.shared.events(id)))


def test_a_submission_that_died_is_forgotten_and_one_under_way_is_not(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}).id
    site.shared.evaluation(id).rename(site.shared.evaluations / "elsewhere")
    with site.shared.submitting():
        reconciliation.reconcile(site)
        assert store.get(site.db, id).id == id
    reconciliation.reconcile(site)
    assert store.open_ids(site.db) == []


def test_recovery_leaves_an_evaluation_alone_that_is_being_made(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}).id
    site.shared.evaluation(id).rename(site.shared.unborn(id))
    store.delete(site.db, id)
    with site.shared.submitting():
        recovery.recover(site)
        assert store.open_ids(site.db) == []
        assert site.shared.unborn(id).exists()


def test_merge_is_closed_by_one_at_a_time(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrivals(site, tmp_path, "x")
    commit_all(site, 1)
    id = store.find(site.db, "x").id
    inside, go_on, real = threading.Event(), threading.Event(), sleep.executor.merge

    def slow(*args: Any) -> None:
        inside.set()
        assert go_on.wait(120)
        real(*args)

    monkeypatch.setattr(sleep.executor, "merge", slow)
    thread = threading.Thread(target=jobs.merge, args=(site, id))
    thread.start()
    assert inside.wait(120)
    assert jobs.merge(site, id) is EvaluationState.MERGING
    go_on.set()
    thread.join()
    assert state(site, id) is EvaluationState.SUCCEEDED


def test_a_run_that_outlived_a_wipe_is_given_back_to_nobodys_share(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    batch = only_batch(site, id)
    store.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token="t", lease_seconds=60)
    assert claim is not None
    site.db.client.flushall()
    recovery.recover(site)
    assert trials.reclaim(site.db, claim, lease_seconds=60)
    trials.requeue(site.db, id, claim.trial, "t", reason="its process died", max_requeues=5)
    evaluations.cancel(site, id)
    repaired(site, lambda: state(site, id) is EvaluationState.CANCELLED)


def test_recovery_leaves_what_is_being_committed_to_the_commit(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals(site, tmp_path, "x")
    with monkeypatch.context() as patch:
        patch.setattr(trials, "commit_all", raising(Unavailable("killed after the rename")))
        commit_all(site, 1)
    recovery.recover(site)
    commit_all(site, 2)
    (row,) = trials.rows_since(site.db, store.find(site.db, "x").id, 0)
    assert row.worker == "a"


def test_a_batch_that_was_never_sent_and_a_damaged_evaluation_hold_up_nobody(site: Site, tmp_path: Path) -> None:
    damaged = submit(site, {"name": "damaged", "trials": 1}, workers=["a"]).id
    unsent = submit(site, {"name": "unsent", "trials": 1}, workers=["a"]).id
    fine = submit(site, {"name": "fine", "trials": 1}, workers=["b"]).id
    never = only_batch(site, unsent).id
    site.db.client.hset(f"aeo:e:{unsent}:messages", never, "")
    (site.shared.evaluation(damaged) / "trials.jsonl").write_text("{")
    store.move(site.db, fine, EvaluationState.CANCELLING)
    beat(site, "a")
    repaired(site, lambda: state(site, fine) is EvaluationState.CANCELLED)
    states = {status.batch.id: status.state for status in store.batches(site.db, unsent)}
    assert states.pop(never) is BatchState.ENDED
    assert list(states.values()) == [BatchState.SENT]
    (site.shared.evaluation(damaged) / "trials.jsonl").unlink()


def test_a_run_given_back_is_not_taken_back_by_its_own_lease(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = shutil.rmtree

    def slow(path: Any, *args: Any, **named: Any) -> None:
        if "task-1__" in str(path):
            threading.Event().wait(2.5)  # a large run takes its time to be removed, while the lease thread lives on
        real(path, *args, **named)

    monkeypatch.setattr(batches.shutil, "rmtree", slow)
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "tasks": 1, "fail": {"task-1": ["die"]}}).id
        status = closed(site, id)
    assert (status.state, status.requeues) == (EvaluationState.SUCCEEDED, 1)
    assert [event for event in logged(site, id) if event["kind"] == "reclaimed"] == []


def test_a_batch_the_store_does_not_know_claims_nothing(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 2}, workers=["a"]).id
    batch = only_batch(site, id)
    site.db.client.flushall()
    recovery.recover(site)
    assert trials.claim(site.db, batch, token="t", lease_seconds=60) is None


def test_a_gap_in_watching_declares_nobody_dead(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    batch = only_batch(site, id)
    store.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token="t", lease_seconds=0.01)
    assert claim is not None
    workers.beat(site.db, "a", Heartbeat(boot="boot", at=connection.now(site.db)), ttl_seconds=0.01)
    eventually(lambda: workers.get(site.db, "a").state is WorkerState.LOST)
    reconciliation.reconcile(site, watched_seconds=0.0)
    assert trials.states(site.db, id)[claim.trial] is TrialState.RUNNING
    repaired(site, lambda: trials.states(site.db, id)[claim.trial] is TrialState.PENDING)


def test_a_wipe_while_a_cancelled_evaluation_is_merged(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 3}, workers=["a"]).id
    evaluations.cancel(site, id)
    store.move(site.db, id, EvaluationState.MERGING)
    logged_whole(site, id)
    site.db.client.flushall()
    repaired(site, lambda: store.open_ids(site.db) == [] and state(site, id) is EvaluationState.CANCELLED)


def test_a_late_result_does_not_enter_a_closed_job(site: Site, tmp_path: Path) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"]).id
    with running(site, tmp_path, "a", with_control=False):
        arrival = eventually(lambda: inbox.take(site.db, 0.1))
    trials.requeue(site.db, id, arrival.trial, arrival.token, reason="cut off", max_requeues=3)
    evaluations.cancel(site, id)
    assert jobs.merge(site, id) is EvaluationState.CANCELLED
    assert not results.commit(site, arrival)
    assert not (site.shared.job("x") / arrival.trial).exists()
    assert (site.shared.superseded(id, arrival.trial, arrival.token) / "result.json").is_file()


def test_a_status_is_whole_or_not_there(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}).id
    store.delete(site.db, id)
    trials.cancel_pending(site.db, id)
    store.count_merge_failure(site.db, id)
    store.set_reason(site.db, id, "why")
    assert site.db.client.exists(f"aeo:e:{id}") == 0
    recovery.recover(site)
    assert store.get(site.db, id).pending == 1


def test_one_trial_that_breaks_its_batch_is_recorded_and_the_rest_is_scored(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "FAILED_BATCHES", 100)
    real = sleep.SleepSession._run

    def run(self: Any, trial: Any, *rest: Any) -> Any:
        if trial.task == "task-1":
            raise KeyError("a bug")
        return real(self, trial, *rest)

    monkeypatch.setattr(sleep.SleepSession, "_run", run)
    site = replace(site, config=replace(site.config, lease_seconds=0.5))
    with running(site, tmp_path, "a", "b"):
        id = submit(site, {"name": "x", "tasks": 6}, max_requeues=1).id
        status = closed(site, id)
    assert status.outcomes[Outcome.SCORED] == 5
    assert status.outcomes[Outcome.INFRA_ERROR] == 1


def test_a_short_outage_of_the_store_pauses_no_worker(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = worker_site(site, tmp_path, "a")
    for number in range(4):
        id = submit(site, {"name": f"x{number}", "trials": 1}, workers=["a"]).id
        with monkeypatch.context() as patch:
            patch.setattr(trials, "ask", raising(Unavailable("away")))
            with pytest.raises(Unavailable):
                batches.run(place, only_batch(site, id))
    assert workers.get(site.db, "a").state is WorkerState.ONLINE


def test_a_full_disk_trips_no_breaker(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(site, {"name": "x", "tasks": 1, "fail": {"task-1": "infra"}}, workers=["a"], max_requeues=0)
    with running(site, tmp_path, "a", with_control=False):
        eventually(lambda: inbox.length(site.db) == 1)
    monkeypatch.setattr(results.copy, "rename", raising(OSError(28, "No space left on device")))
    commit_all(site, 12)
    assert workers.get(site.db, "a").state is WorkerState.ONLINE


def test_what_was_unfit_may_fit_later(site: Site) -> None:
    id = submit(site, {"name": "x", "tasks": 2, "memory_mb": 4000}).id
    names = list(trials.states(site.db, id))
    store.add_batches(site.db, id, {Batch(id="one", evaluation=id, worker="a"): ()}, {"a": frozenset(names)})
    small = Batch(id="one", evaluation=id, worker="a")
    assert trials.claim(site.db, small, token="t", lease_seconds=60) is None
    large = Batch(id="two", evaluation=id, worker="a")
    store.add_batches(site.db, id, {large: names})
    assert trials.claim(site.db, large, token="t", lease_seconds=60) is not None


def test_outages_that_were_survived_do_not_count(site: Site) -> None:
    id = submit(site, {"name": "x", "trials": 1}, workers=["a"], max_requeues=1).id
    batch = only_batch(site, id)
    store.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token="t", lease_seconds=60)
    assert claim is not None
    for _ in range(4):
        again = trials.requeue(site.db, id, claim.trial, "t", reason="lease expired", max_requeues=1)
        assert again is trials.Requeued.AGAIN
        assert trials.reclaim(site.db, claim, lease_seconds=60)


def test_an_idle_worker_is_sent_what_would_wait_for_a_long_trial(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redispatch, "HELP_SECONDS", 0.0)
    id = submit(site, {"name": "x", "trials": 2, "seconds": [600, 1]}, workers=["a", "b"]).id
    of = {status.batch.worker: status.batch for status in store.batches(site.db, id)}
    for worker in ("a", "b"):
        store.start_batch(site.db, of[worker])
        claim = trials.claim(site.db, of[worker], token=worker, lease_seconds=600)
        assert claim is not None
    store.end_batch(site.db, of["b"])
    trials.requeue(site.db, id, claim.trial, "b", reason="failed", max_requeues=3)

    def helped() -> bool:
        beat(site, "a", batches=(of["a"].id,), busy=1)
        beat(site, "b")
        return any(s.batch.worker == "b" and s.state is BatchState.SENT for s in store.batches(site.db, id))

    repaired(site, helped)
    for _ in range(3):
        helped()
        reconciliation.reconcile(site)
    assert len(store.batches(site.db, id)) == 3


def test_a_lease_outlives_faults_of_its_threads(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = sleep.SleepSession.stop, []

    def stop(self: Any, *args: Any, **named: Any) -> None:
        calls.append(1)
        if len(calls) == 1:
            raise KeyError("a bug")
        real(self, *args, **named)

    monkeypatch.setattr(sleep.SleepSession, "stop", stop)
    with running(site, tmp_path, "a"):
        id = submit(site, {"name": "x", "trials": 1, "seconds": 600}, workers=["a"]).id
        eventually(lambda: store.get(site.db, id).running)
        evaluations.cancel(site, id)
        assert closed(site, id, 20).state is EvaluationState.CANCELLED
