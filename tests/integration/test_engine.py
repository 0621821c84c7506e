"""The engine end to end on a real server: submit, claim, run, push, commit, merge; and what goes wrong on the way."""

from __future__ import annotations

import shutil
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from engine import beat, closed, logged, register, result, running, submit, worker_site
from waiting import eventually

from aeo import control, dispatch, evaluations, jobs, progress, recovery, results
from aeo.core.errors import AeoError, Conflict, InputError, Unavailable
from aeo.core.model import EvaluationState, Outcome, TrialState, WorkerState
from aeo.layout import manifest_of
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import inbox, trials, workers
from aeo.submission import Submission


@pytest.fixture(autouse=True)
def _pool(site: Site) -> None:
    for id, slots in (("a", 1), ("b", 2), ("c", 4)):
        register(site, id, slots=slots)


def everything(site: Site) -> list[str]:
    """Whatever lies in the controller's folders and in the store."""
    return sorted(
        [str(p.relative_to(site.shared.root)) for p in site.shared.root.rglob("*") if p.suffix != ".lock"]
        # Events of an evaluation without a folder are dropped when they are written to disk.
        + [k for k in site.db.client.keys("*") if not k.startswith("aeo:w") and k != "aeo:events"]
    )


def test_a_thousand_trials_end_scored_none_twice(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a", "b", "c") as pool:
        evaluation = submit(site, {"name": "many", "trials": 1000, "per_worker_concurrency": "all"})
        status = closed(site, evaluation.id, 90)
    assert pool.broken == []
    assert status.state is EvaluationState.SUCCEEDED
    assert status.outcomes[Outcome.SCORED] == status.done == 1000
    events = logged(site, evaluation.id)
    for kind in ("claimed", "committed"):
        times = Counter(event["trial"] for event in events if event["kind"] == kind)
        assert len(times) == 1000
        assert set(times.values()) == {1}
    merged = result(site, "many")
    assert merged["finished_at"] is not None
    assert merged["stats"]["n_completed_trials"] == 1000
    assert sum(path.is_dir() for path in site.shared.job("many").iterdir()) == 1000
    assert {event["worker"] for event in events if event["kind"] == "claimed"} == {"a", "b", "c"}


def test_what_is_left_on_a_slow_worker_is_helped_with(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a") as pool:
        evaluation = submit(site, {"name": "help", "trials": 30})
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.SUCCEEDED
    assert [r["ran"] for r in pool.returned] == [30]


def test_failures_are_requeued_then_recorded_and_the_rest_is_scored(site: Site, tmp_path: Path) -> None:
    config = {"name": "bad", "tasks": 4, "fail": {"task-1": ["die", "ok"], "task-2": "die", "task-3": "invalid"}}
    with running(site, tmp_path, "a", "b"):
        evaluation = submit(site, config, max_requeues=1)
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.FAILED
    assert "1 trial ended as an infrastructure error" in status.reason
    assert status.requeues == 2
    by_task = {view.task: view for view in progress.trials(site, "bad")[0]}
    assert {task: view.row.summary.outcome for task, view in by_task.items() if view.row} == {
        "task-1": Outcome.SCORED,
        "task-2": Outcome.INFRA_ERROR,
        "task-3": Outcome.INVALID,
        "task-4": Outcome.SCORED,
    }
    assert [by_task[f"task-{n}"].attempt for n in (1, 2, 3, 4)] == [2, 2, 1, 1]
    detail = progress.detail(site, "bad")
    assert [(score.scored, score.planned) for score in detail.scores] == [(2, 4)]


def test_a_trial_past_its_hard_deadline_is_stopped_and_recorded(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a"):
        evaluation = submit(site, {"name": "slow", "tasks": 2, "seconds": [60, 0], "deadline": 2}, max_requeues=1)
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.FAILED
    assert status.requeues == 1
    (lost,) = (view.row for view in progress.trials(site, "slow", outcome=Outcome.INFRA_ERROR)[0])
    assert lost is not None
    assert lost.summary.error_type == "HardDeadlineExceeded"
    reasons = [event["reason"] for event in logged(site, evaluation.id) if event["kind"] == "requeued"]
    assert reasons == ["hard deadline"]


def test_a_process_that_ignores_being_told_to_stop_is_killed(site: Site, tmp_path: Path) -> None:
    task = {"name": "deaf", "command": "trap '' TERM INT; sleep 600 & wait; sleep 600"}
    with running(site, tmp_path, "a"):
        request = Submission(config={"executor": "command", "name": "deaf", "tasks": [task]})
        evaluation = evaluations.submit(site, request).evaluation
        eventually(lambda: store.get(site.db, evaluation.id).running)
        evaluations.cancel(site, evaluation.id)
        assert closed(site, evaluation.id).state is EvaluationState.CANCELLED


def test_cancel_stops_what_runs_and_never_runs_what_waits(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a", "b"):
        evaluation = submit(site, {"name": "stop", "trials": 40, "seconds": [0.0, 60.0]})
        eventually(lambda: store.get(site.db, evaluation.id).running >= 2)
        asked = evaluations.cancel(site, "stop")
        assert asked.state in (EvaluationState.CANCELLING, EvaluationState.MERGING)
        status = closed(site, evaluation.id, 15)
    assert status.state is EvaluationState.CANCELLED
    assert status.done == status.total == 40
    assert status.outcomes[Outcome.CANCELLED] >= 2
    folders = [path for path in site.shared.job("stop").iterdir() if path.is_dir()]
    assert all((folder / "result.json").is_file() for folder in folders)
    with pytest.raises(Conflict):
        evaluations.cancel(site, "stop")


def test_cancel_before_anything_ran_closes_at_once(site: Site) -> None:
    evaluation = submit(site, {"name": "early", "trials": 3})
    evaluations.cancel(site, evaluation.id)
    status = closed(site, evaluation.id)
    assert status.state is EvaluationState.CANCELLED
    assert [p for p in site.shared.job("early").iterdir() if p.is_dir()] == []


def test_a_wiped_store_is_rebuilt_and_no_committed_trial_runs_again(site: Site, tmp_path: Path) -> None:
    evaluation = submit(site, {"name": "wiped", "trials": 60, "seconds": [0.0, 0.0, 0.0, 0.05]})
    with running(site, tmp_path, "a"):
        eventually(lambda: store.get(site.db, evaluation.id).done >= 10)
    before = _written(site, "wiped")
    assert 10 <= len(before) < 60
    site.db.client.flushall()
    for id in ("b", "c"):
        register(site, id)
    with running(site, tmp_path, "b", "c"):
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.SUCCEEDED
    after = _written(site, "wiped")
    assert {name: after[name] for name in before} == before
    assert result(site, "wiped")["stats"]["n_completed_trials"] == 60


def _written(site: Site, name: str) -> dict[str, int]:
    return {path.parent.name: path.stat().st_mtime_ns for path in site.shared.job(name).glob("*/result.json")}


def test_a_closed_evaluation_is_known_again_after_a_wipe(site: Site, tmp_path: Path) -> None:
    with running(site, tmp_path, "a"):
        evaluation = submit(site, {"name": "closed", "trials": 5})
        closed(site, evaluation.id)
    logged(site, evaluation.id)
    site.db.client.flushall()
    recovery.recover(site)
    status = store.get(site.db, evaluation.id)
    assert (status.state, status.done, status.outcomes[Outcome.SCORED]) == (EvaluationState.SUCCEEDED, 5, 5)


def test_a_lost_workers_trials_go_to_others(site: Site, tmp_path: Path) -> None:
    site = replace(site, config=replace(site.config, grace_seconds=0.2))
    evaluation = submit(site, {"name": "lost", "trials": 6}, workers=["a", "b"])
    batch = next(s.batch for s in store.batches(site.db, evaluation.id) if s.batch.worker == "a")
    assert store.start_batch(site.db, batch)
    held = trials.claim(site.db, batch, token="dead", lease_seconds=0.2)
    assert held is not None
    beat(site, "a", 0.1)
    eventually(lambda: workers.get(site.db, "a").state is WorkerState.LOST)
    with running(site, tmp_path, "b"):
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.SUCCEEDED
    requeued = [e for e in logged(site, evaluation.id) if e["kind"] == "requeued"]
    assert [e["trial"] for e in requeued] == [held.trial]


def test_new_batches_are_sent_when_no_live_one_is_left(site: Site, tmp_path: Path) -> None:
    evaluation = submit(site, {"name": "again", "trials": 4}, workers=["a", "b"])
    for status in store.batches(site.db, evaluation.id):
        store.start_batch(site.db, status.batch)
        store.end_batch(site.db, status.batch)
    with running(site, tmp_path, "b", "a"):
        assert closed(site, evaluation.id).state is EvaluationState.SUCCEEDED
    assert any(event["kind"] == "redispatched" for event in logged(site, evaluation.id))


def _one_result(site: Site, tmp_path: Path, name: str) -> inbox.Arrival:
    """An evaluation of one trial whose result has arrived and not been looked at."""
    submit(site, {"name": name, "trials": 1}, workers=["a"])
    with running(site, tmp_path, "a", with_control=False):
        return eventually(lambda: inbox.take(site.db, 0.1))


def test_a_commit_interrupted_after_the_rename_is_finished(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrival = _one_result(site, tmp_path, "torn")
    with monkeypatch.context() as patch:
        patch.setattr(trials, "commit_all", _raise(Unavailable("gone")))
        with pytest.raises(Unavailable):
            results.commit(site, arrival)
    assert (site.shared.job("torn") / arrival.trial / "result.json").is_file()
    assert results.commit(site, arrival)
    assert not results.commit(site, arrival)
    status = store.get(site.db, arrival.evaluation)
    assert status.done == 1
    assert list(site.shared.inbox.rglob("*.json")) == []


def test_a_second_result_is_kept_aside_and_counted_nowhere(site: Site, tmp_path: Path) -> None:
    arrival = _one_result(site, tmp_path, "twice")
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    late = folder.with_name(f"{arrival.trial}.late")
    shutil.copytree(folder, late)
    text = manifest_of(folder).read_text().replace(arrival.token, "late")
    manifest_of(late).write_text(text)
    assert results.commit(site, arrival)
    assert not results.commit(site, replace(arrival, token="late"))
    assert (site.shared.superseded(arrival.evaluation, arrival.trial, "late") / "result.json").is_file()
    assert store.get(site.db, arrival.evaluation).done == 1
    kinds = Counter(event["kind"] for event in logged(site, arrival.evaluation))
    assert (kinds["committed"], kinds["superseded"]) == (1, 1)


@pytest.mark.parametrize("wiped", [False, True], ids=["known", "found in the job"])
def test_the_run_that_counts_is_no_second_result_when_it_comes_again(site: Site, tmp_path: Path, wiped: bool) -> None:
    arrival = _one_result(site, tmp_path, "again")
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    pushed = tmp_path / "pushed"
    shutil.copytree(folder, pushed)
    text = manifest_of(folder).read_text()
    assert results.commit(site, arrival)
    if wiped:
        # The controller died with the server before either had the row, and the worker pushes once more.
        (site.shared.events(arrival.evaluation)).unlink(missing_ok=True)
        site.db.client.flushall()
        recovery.recover(site)
    shutil.copytree(pushed, folder)
    manifest_of(folder).write_text(text)
    assert results.commit(site, arrival)
    assert store.get(site.db, arrival.evaluation).done == 1
    assert not (site.shared.evaluation(arrival.evaluation) / "superseded").exists()
    assert list(site.shared.inbox.rglob("*.json")) == []
    assert not folder.exists()
    kinds = Counter(event["kind"] for event in logged(site, arrival.evaluation))
    assert kinds["superseded"] == 0


@pytest.mark.parametrize("damage", ["truncate", "missing", "extra", "other", "manifest"])
def test_a_damaged_result_is_not_committed_and_runs_again(site: Site, tmp_path: Path, damage: str) -> None:
    arrival = _one_result(site, tmp_path, "damaged")
    folder = site.shared.arrived(arrival.evaluation, arrival.trial, arrival.token)
    if damage == "truncate":
        (folder / "result.json").write_text((folder / "result.json").read_text()[:-20])
    elif damage == "missing":
        (folder / "config.json").unlink()
    elif damage == "extra":
        (folder / "more.txt").write_text("?")
    elif damage == "manifest":
        manifest_of(folder).write_text("{")
    else:
        manifest_of(folder).write_text(manifest_of(folder).read_text().replace(arrival.trial, "another"))
    assert not results.commit(site, arrival)
    assert not (site.shared.job("damaged") / arrival.trial).exists()
    assert trials.states(site.db, arrival.evaluation)[arrival.trial] is TrialState.PENDING
    with running(site, tmp_path, "a", "b"):
        assert closed(site, arrival.evaluation).state is EvaluationState.SUCCEEDED
    assert any(event["kind"] == "rejected" for event in logged(site, arrival.evaluation))


def test_a_result_nobody_planned_is_refused(site: Site) -> None:
    assert not results.commit(site, inbox.Arrival(evaluation="nothing", trial="t", token="x"))


def test_a_full_disk_loses_nothing(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    submit(site, {"name": "full", "trials": 1}, workers=["a"])
    with running(site, tmp_path, "a", with_control=False):
        eventually(lambda: inbox.length(site.db) == 1)
    with monkeypatch.context() as patch:
        patch.setattr(results.copy, "rename", _raise(OSError(28, "No space left on device")))
        with pytest.raises(OSError):
            control._commit_next(site)
    control._commit_next(site)
    assert store.get(site.db, store.find(site.db, "full").id).done == 1


def _raise(error: Exception):  # type: ignore[no-untyped-def]
    def fail(*args: object, **named: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("at", ["dispatch", "save", "start_job", "publish"])
def test_a_submit_that_fails_leaves_nothing(site: Site, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    from aeo.executors import sleep

    before = everything(site)
    target = {
        "dispatch": (dispatch, "send"),
        "save": (store, "save"),
        "start_job": (sleep.executor, "start_job"),
        "publish": (evaluations.records, "write"),
    }[at]
    monkeypatch.setattr(*target, _raise(Unavailable("away")), raising=True)
    with pytest.raises(Unavailable):
        submit(site, {"name": "undone", "trials": 3})
    assert everything(site) == before
    monkeypatch.undo()
    submit(site, {"name": "undone", "trials": 3})


BAD = [
    ({"trials": 0}, {}, "trials"),
    ({"trials": 2, "colour": "red"}, {}, "colour"),
    ({"trials": 2}, {"workers": ["nobody"]}, "nobody"),
    ({"trials": 2, "name": "../x"}, {}, "name"),
    ({"trials": 2}, {"per_worker_concurrency": 0}, "per_worker_concurrency"),
    ({"trials": 2, "cpus": 1000}, {}, "1000 cpus, the largest worker has 64"),
    ({"trials": 2, "memory_mb": 2_000_000}, {}, "MiB memory, the largest worker has 1048576 MiB"),
    ({"executor": "nonesuch"}, {}, "No executor 'nonesuch' is installed"),
]


@pytest.mark.parametrize(("config", "options", "says"), BAD)
def test_bad_input_says_what_and_leaves_nothing(
    site: Site, config: dict[str, object], options: dict[str, object], says: str
) -> None:
    before = everything(site)
    with pytest.raises(InputError) as caught:
        submit(site, config, **options)
    assert says in str(caught.value)
    assert everything(site) == before


def test_no_worker_online_says_each_ones_state(site: Site) -> None:
    for id in ("a", "b", "c"):
        workers.set_state(site.db, id, WorkerState.PAUSED, "maintenance")
    with pytest.raises(InputError, match="a is paused: maintenance, b is paused: maintenance, c is paused"):
        submit(site, {"trials": 1})


def test_a_worker_of_another_version_gets_no_share(site: Site) -> None:
    for id in ("a", "b", "c"):
        register(site, id, executors={"sleep": "9.9", "command": ""})
    register(site, "d")
    evaluation = submit(site, {"trials": 8})
    assert {s.batch.worker for s in store.batches(site.db, evaluation.id)} == {"d"}
    with pytest.raises(InputError, match=r"worker a: has sleep 9\.9"):
        submit(site, {"trials": 8}, workers=["a", "b"])


def test_an_existing_job_folder_is_a_conflict(site: Site) -> None:
    site.shared.job("mine").mkdir()
    with pytest.raises(Conflict, match="exists already"):
        submit(site, {"name": "mine", "trials": 1})
    assert site.shared.job("mine").is_dir()


def test_shares_follow_slots_and_weights(site: Site) -> None:
    evaluation = submit(site, {"trials": 70, "per_worker_concurrency": "all"})
    left: Counter[str] = Counter()
    for status in store.batches(site.db, evaluation.id):
        left[status.batch.worker] += status.left
    assert left == {"a": 10, "b": 20, "c": 40}
    workers.set_weight(site.db, "a", 3)
    workers.set_weight(site.db, "c", 0)
    evaluation = submit(site, {"trials": 70, "per_worker_concurrency": 2})
    left = Counter()
    for status in store.batches(site.db, evaluation.id):
        left[status.batch.worker] += status.left
    assert left == {"a": 42, "b": 28}


def test_past_durations_order_the_next_evaluation(site: Site, tmp_path: Path) -> None:
    seconds = [0.01, 0.25, 0.01]
    with running(site, tmp_path, "a"):
        first = submit(site, {"name": "first", "tasks": 3, "seconds": seconds, "estimate": 60})
        closed(site, first.id)
        second = submit(site, {"name": "second", "tasks": 3, "seconds": seconds, "estimate": 60}, workers=["a"])
        closed(site, second.id)
    claimed = [event["trial"] for event in logged(site, second.id) if event["kind"] == "claimed"]
    planned = {view.trial: view for view in progress.trials(site, "second")[0]}
    assert planned[claimed[0]].task == "task-2"
    assert 0.2 < planned[claimed[0]].estimated_seconds < 5


def test_the_running_job_can_be_watched(site: Site, tmp_path: Path) -> None:
    config = replace(site.config, refresh_seconds=0.1)
    site = replace(site, config=config)
    with running(site, tmp_path, "a"):
        evaluation = submit(site, {"name": "live", "trials": 8, "seconds": [0.0, 0.0, 0.0, 0.0, 1.0]})
        growing = eventually(lambda: r if (r := result(site, "live"))["stats"]["n_completed_trials"] >= 2 else None)
        assert growing["finished_at"] is None
        closed(site, evaluation.id)
    assert result(site, "live")["finished_at"] is not None


def test_a_merge_rung_early_twice_or_late_does_no_harm(site: Site, tmp_path: Path) -> None:
    evaluation = submit(site, {"name": "bell", "trials": 2})
    assert jobs.merge(site, evaluation.id) is EvaluationState.RUNNING
    with running(site, tmp_path, "a"):
        closed(site, evaluation.id)
    before = result(site, "bell")
    assert jobs.merge(site, evaluation.id) is EvaluationState.SUCCEEDED
    assert result(site, "bell") == before


def test_results_left_in_a_workers_outbox_are_sent_at_its_next_start(site: Site, tmp_path: Path) -> None:
    from aeo import batches, outbox

    evaluation = submit(site, {"name": "outbox", "trials": 1}, workers=["a"])
    place = worker_site(site, tmp_path, "a")
    shutil.move(site.shared.inbox, tmp_path / "away")
    place.stopping.set()  # the worker is told to stop while the controller's disk is away
    batch = store.batches(site.db, evaluation.id)[0].batch
    (site.shared.inbox).write_text("not a folder")
    batches.run(place, batch)
    assert store.get(site.db, evaluation.id).done == 0
    site.shared.inbox.unlink()
    shutil.move(tmp_path / "away", site.shared.inbox)
    again = worker_site(site, tmp_path, "a")
    stop = again.stopping
    with running(site, tmp_path / "other"):
        import threading

        thread = threading.Thread(target=outbox.keep, args=(again, stop))
        thread.start()
        status = closed(site, evaluation.id)
        stop.set()
        thread.join()
    assert status.state is EvaluationState.SUCCEEDED
    assert status.requeues == 0


def test_submission_errors_are_ours(site: Site) -> None:
    with pytest.raises(AeoError):
        evaluations.submit(site, Submission(text="- no mapping"))
