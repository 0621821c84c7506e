from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from store_samples import a_batch, a_row, a_worker, stored
from waiting import eventually

from aeo.core.errors import NotFound
from aeo.core.model import Batch, Claim, EvaluationState, Outcome, TrialState, WorkerState
from aeo.store import evaluations, inbox, trials, workers
from aeo.store.connection import Db
from aeo.store.trials import Requeued, Standing


def take(db: Db, batch: Batch, token: str = "k1", *, lease_seconds: float = 60) -> Claim:
    claim = trials.claim(db, batch, token=token, lease_seconds=lease_seconds)
    assert claim is not None
    return claim


def counts(db: Db) -> tuple[int, int, int, int]:
    status = evaluations.get(db, "e1")
    return status.pending, status.running, status.pushed, status.done


def test_a_batch_claims_its_own_share_in_order(db: Db) -> None:
    batches = stored(db, {"b1": ["t2", "t1"], "b2": ["x1", "x2", "x3"]})
    first = take(db, batches["b1"])
    assert first == Claim(evaluation="e1", trial="t2", batch="b1", worker="worker-b1", token="k1", attempt=1)
    assert take(db, batches["b1"], "k2").trial == "t1"
    assert counts(db) == (3, 2, 0, 0)


def test_then_it_helps_the_batch_with_most_time_left(db: Db) -> None:
    batches = stored(db, {"b1": (), "b2": {"a1": 10, "a2": 10, "a3": 10}, "b3": {"c1": 29}, "b4": {"d1": 12}})
    # 30, 29, 12 seconds left; after each claim the order is another.
    assert [take(db, batches["b1"], f"k{n}").trial for n in range(5)] == ["a1", "c1", "a2", "d1", "a3"]
    assert trials.claim(db, batches["b1"], token="k9", lease_seconds=60) is None


def test_trials_the_worker_cannot_hold_are_skipped(db: Db) -> None:
    names = [f"t{n:03d}" for n in range(250)]
    fits = [names[100], *names[240:]]
    unfit = frozenset(names) - frozenset(fits) | {"x1"}
    batches = stored(db, {"b1": names, "b2": {"x1": 1, "x2": 1}}, unfit={"worker-b1": unfit})
    got = [take(db, batches["b1"], f"k{n}").trial for n in range(12)]
    assert got == [*fits, "x2"]
    assert trials.claim(db, batches["b1"], token="last", lease_seconds=60) is None
    assert take(db, batches["b2"], "other").trial == "x1"


def test_nothing_is_claimed_unless_the_evaluation_runs(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    evaluations.move(db, "e1", EvaluationState.CANCELLING)
    assert trials.claim(db, batch, token="k", lease_seconds=60) is None
    assert trials.claim(db, a_batch("b1", evaluation="nope"), token="k", lease_seconds=60) is None


@pytest.mark.parametrize("state", [WorkerState.PAUSED, WorkerState.DRAINING])
def test_nothing_is_claimed_by_a_worker_that_is_told_to_wait(db: Db, state: WorkerState) -> None:
    batch = stored(db, {"b1": ["t1"]}, workers={"b1": "w1"})["b1"]
    workers.register(db, a_worker("w1"))
    workers.set_state(db, "w1", state)
    assert trials.claim(db, batch, token="k", lease_seconds=60) is None
    workers.set_state(db, "w1", WorkerState.ONLINE)
    assert take(db, batch).trial == "t1"


def test_a_claim_whose_answer_was_lost_is_the_same_claim(db: Db) -> None:
    batch = stored(db, {"b1": ["t1", "t2"]})["b1"]
    assert take(db, batch, "same") == take(db, batch, "same")
    assert counts(db) == (1, 1, 0, 0)


def test_each_trial_is_claimed_once_by_many_at_a_time(db: Db) -> None:
    names = [f"t{n}" for n in range(500)]
    batches = list(stored(db, {f"b{k}": names[k::8] for k in range(8)}).values())
    start = threading.Barrier(8)

    def drain(number: int) -> list[str]:
        start.wait()
        got = []
        while claim := trials.claim(db, batches[number], token=f"k{number}-{len(got)}", lease_seconds=60):
            got.append(claim.trial)
        return got

    with ThreadPoolExecutor(8) as pool:
        got = [trial for part in pool.map(drain, range(8)) for trial in part]
    assert Counter(got) == Counter(names)
    assert counts(db) == (0, 500, 0, 0)


def test_a_lease_is_renewed_by_its_holder_only(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    claim = take(db, batch, lease_seconds=0.01)
    eventually(lambda: trials.expired(db, "e1") == [claim])
    # Nobody has given it away yet, so the holder still has it.
    assert trials.renew(db, claim, lease_seconds=60) is Standing.HELD
    assert trials.expired(db, "e1") == []
    stranger = Claim(evaluation="e1", trial="t1", batch="b1", worker="w", token="other", attempt=1)
    assert trials.renew(db, stranger, lease_seconds=60) is Standing.LOST


def test_a_holder_learns_of_a_cancel_and_keeps_the_lease_to_stop(db: Db) -> None:
    claim = take(db, stored(db, {"b1": ["t1"]})["b1"], lease_seconds=0.01)
    evaluations.move(db, "e1", EvaluationState.CANCELLING)
    assert trials.renew(db, claim, lease_seconds=60) is Standing.CANCEL
    assert trials.expired(db, "e1") == []


def test_running_trials_and_their_phase_are_seen(db: Db) -> None:
    batches = stored(db, {"b1": ["t1", "t2"]}, workers={"b1": "w1"})
    one, two = take(db, batches["b1"], "k1"), take(db, batches["b1"], "k2")
    assert trials.set_phase(db, one, "agent")
    seen = {run.claim: run for run in trials.running(db, "e1")}
    assert {claim: run.phase for claim, run in seen.items()} == {one: "agent", two: ""}
    assert abs((seen[one].started_at - trials.now(db)).total_seconds()) < 30
    assert trials.workers_claims(db, "w1") == [one, two]
    trials.pushed(db, one)
    assert [run.claim for run in trials.running(db, "e1")] == [two]
    assert trials.workers_claims(db, "w1") == [two]
    assert not trials.set_phase(db, one, "verifier")
    assert trials.running(db, "nope") == trials.expired(db, "nope") == trials.workers_claims(db, "nope") == []


def test_a_pushed_result_needs_no_lease_and_waits_in_the_inbox(db: Db) -> None:
    claim = take(db, stored(db, {"b1": ["t1"]})["b1"], lease_seconds=0.01)
    eventually(lambda: trials.expired(db, "e1"))
    assert trials.pushed(db, claim)
    assert counts(db) == (0, 0, 1, 0)
    assert trials.renew(db, claim, lease_seconds=60) is Standing.HELD
    assert trials.running(db, "e1") == trials.expired(db, "e1") == []
    arrival = inbox.take(db, 0)
    assert arrival is not None
    assert (arrival.evaluation, arrival.trial, arrival.token) == ("e1", "t1", "k1")


def test_a_result_nobody_waits_for_is_looked_at_too(db: Db) -> None:
    claim = take(db, stored(db, {"b1": ["t1"]})["b1"])
    trials.requeue(db, "e1", "t1", "k1", reason="lost", max_requeues=1)
    assert not trials.pushed(db, claim)
    assert counts(db) == (1, 0, 0, 0)
    assert inbox.length(db) == 1


def test_a_requeued_trial_runs_next_and_elsewhere(db: Db) -> None:
    batches = stored(db, {"b1": {"t1": 9, "t2": 8}, "b2": {"x1": 9}, "b3": {"y1": 9}})
    for batch in batches.values():
        evaluations.start_batch(db, batch)
    evaluations.end_batch(db, batches["b3"])
    claim = take(db, batches["b1"])
    assert trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=2) is Requeued.AGAIN
    assert trials.renew(db, claim, lease_seconds=60) is Standing.LOST
    again = take(db, batches["b2"], "k2")
    assert (again.trial, again.attempt) == ("t1", 2)
    assert evaluations.get(db, "e1").requeues == 1
    assert trials.requeues(db, "e1") == {"t1": 1}


def test_a_requeued_trial_avoids_who_cannot_hold_it(db: Db) -> None:
    batches = stored(db, {"b1": ["t1", "t2"], "b2": ["x1"]}, unfit={"worker-b2": frozenset({"t1"})})
    take(db, batches["b1"])
    trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=2)
    assert take(db, batches["b1"], "k2").trial == "t1"


def test_a_requeued_trial_goes_to_a_batch_that_goes_on(db: Db) -> None:
    batches = stored(db, {"b1": ["t1", "t2"], "b2": ["x1"]})
    evaluations.start_batch(db, batches["b1"])
    evaluations.end_batch(db, batches["b2"])
    take(db, batches["b1"])
    trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=2)
    assert take(db, batches["b1"], "k2").trial == "t1"


def test_a_requeued_trial_is_not_lost_when_every_batch_has_ended(db: Db) -> None:
    batches = stored(db, {"b1": ["t1"]})
    take(db, batches["b1"])
    evaluations.end_batch(db, batches["b1"])
    assert trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=2) is Requeued.AGAIN
    evaluations.add_batches(db, "e1", {a_batch("late"): ()})
    assert take(db, a_batch("late"), "k2").trial == "t1"


def test_repeats_are_counted_and_the_last_holder_keeps_the_trial(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    take(db, batch, "k1")
    assert trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=1) is Requeued.AGAIN
    assert trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=1) is Requeued.STALE
    claim = take(db, batch, "k2")
    assert trials.requeue(db, "e1", "t1", "k2", reason="died", max_requeues=1) is Requeued.EXHAUSTED
    assert trials.renew(db, claim, lease_seconds=60) is Standing.HELD
    assert trials.requeue(db, "e1", "t1", "nope", reason="died", max_requeues=9) is Requeued.STALE
    assert evaluations.get(db, "e1").requeues == 1


def test_a_requeue_that_is_nobodys_fault_does_not_count(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    for attempt in (1, 2, 3):
        assert take(db, batch, f"k{attempt}").attempt == attempt
        again = trials.requeue(db, "e1", "t1", f"k{attempt}", reason="drained", max_requeues=0, counted=False)
        assert again is Requeued.AGAIN
    take(db, batch, "k4")
    assert trials.requeue(db, "e1", "t1", "k4", reason="died", max_requeues=1) is Requeued.AGAIN


def test_a_rejected_result_is_requeued(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    claim = take(db, batch)
    trials.pushed(db, claim)
    assert trials.requeue(db, "e1", "t1", "k1", reason="damaged", max_requeues=1) is Requeued.AGAIN
    assert counts(db) == (1, 0, 0, 0)
    assert take(db, batch, "k2").attempt == 2


def test_the_first_result_counts(db: Db) -> None:
    claim = take(db, stored(db, {"b1": ["t1"]})["b1"])
    trials.pushed(db, claim)
    row = a_row("t1", worker="worker-b1")
    assert trials.commit(db, "e1", row, "k1")
    assert trials.commit(db, "e1", row, "k1"), "the same run again is still the one that counts"
    assert not trials.commit(db, "e1", a_row("t1", outcome=Outcome.INFRA_ERROR), "k2")
    assert not trials.commit(db, "e1", a_row("t1"), ""), "no token is no run"
    assert trials.row(db, "e1", "t1") == row
    assert counts(db) == (0, 0, 0, 1)
    assert evaluations.get(db, "e1").outcomes == {**dict.fromkeys(Outcome, 0), Outcome.SCORED: 1}
    assert trials.requeue(db, "e1", "t1", "k1", reason="late", max_requeues=9) is Requeued.STALE


def test_a_late_result_of_a_lost_lease_may_be_the_first(db: Db) -> None:
    batch = stored(db, {"b1": ["t1", "t2"]})["b1"]
    take(db, batch, "old")
    trials.requeue(db, "e1", "t1", "old", reason="lost", max_requeues=1)
    assert trials.commit(db, "e1", a_row("t1"), "old")
    assert take(db, batch, "k2").trial == "t2", "it must not run again"
    take_over = evaluations.batches(db, "e1")[0]
    assert (take_over.left, take_over.left_seconds) == (0, 0.0)


def test_a_late_result_ends_the_run_that_replaced_it(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]}, workers={"b1": "w1"})["b1"]
    take(db, batch, "old")
    trials.requeue(db, "e1", "t1", "old", reason="lost", max_requeues=1)
    new = take(db, batch, "new")
    assert trials.commit(db, "e1", a_row("t1"), "old")
    assert trials.renew(db, new, lease_seconds=60) is Standing.LOST
    assert trials.workers_claims(db, "w1") == []
    assert trials.running(db, "e1") == []
    assert not trials.commit(db, "e1", a_row("t1"), "new")


def test_only_planned_trials_have_results(db: Db) -> None:
    stored(db, {"b1": ["t1"]})
    for evaluation, trial in (("e1", "stranger"), ("nope", "t1")):
        with pytest.raises(NotFound, match=trial):
            trials.commit(db, evaluation, a_row(trial), "k")
        with pytest.raises(NotFound):
            trials.state(db, evaluation, trial)
        assert trials.row(db, evaluation, trial) is None
    assert trials.state(db, "e1", "t1") is TrialState.PENDING
    assert trials.row(db, "e1", "t1") is None


def test_what_waits_is_cancelled_at_once(db: Db) -> None:
    names = [f"t{n}" for n in range(2500)]
    batches = stored(db, {"b1": names[:2000], "b2": names[2000:]})
    claim = take(db, batches["b1"])
    evaluations.move(db, "e1", EvaluationState.CANCELLING)
    assert trials.cancel_pending(db, "e1") == 2499
    assert trials.cancel_pending(db, "e1") == 0
    assert counts(db) == (0, 1, 0, 2499)
    assert evaluations.get(db, "e1").outcomes[Outcome.CANCELLED] == 2499
    assert [item.left_seconds for item in evaluations.batches(db, "e1")] == [0.0, 0.0]
    row = trials.row(db, "e1", "t7")
    assert row is not None
    assert (row.summary.trial, row.summary.outcome, row.summary.started_at) == ("t7", Outcome.CANCELLED, None)
    assert (row.worker, row.attempt) == ("", 0)
    assert trials.commit(db, "e1", a_row(claim.trial), "k1")
    assert not trials.commit(db, "e1", a_row("t7"), "late")
    assert trials.cancel_pending(db, "nope") == 0


def test_rows_are_read_in_commit_order_and_filtered(db: Db) -> None:
    names = [f"t{n:04d}" for n in range(1200)]
    stored(db, {"b1": names})
    committed = [
        a_row(
            name,
            outcome=Outcome.INVALID if n % 3 == 0 else Outcome.SCORED,
            worker=f"w{n % 2}",
            task=f"task{n % 5}",
        )
        for n, name in enumerate(reversed(names))
    ]
    for row in committed:
        trials.commit(db, "e1", row, "k")
    assert trials.rows(db, "e1", offset=10, limit=5) == (committed[10:15], 1200)
    assert trials.rows(db, "e1", offset=0, limit=0) == ([], 1200)
    assert trials.rows_since(db, "e1", 1195) == committed[1195:]
    assert trials.rows_since(db, "e1", 0) == committed
    assert trials.rows_since(db, "e1", 1200) == []
    wanted = [
        row
        for row in committed
        if row.summary.outcome is Outcome.INVALID and row.summary.task == "task2" and row.worker == "w1"
    ]
    found = trials.rows(db, "e1", offset=2, limit=3, outcome=Outcome.INVALID, task="task2", worker="w1")
    assert found == (wanted[2:5], len(wanted))
    assert trials.rows(db, "e1", offset=0, limit=9, task="no such") == ([], 0)
    assert trials.rows(db, "nope", offset=0, limit=9) == ([], 0)
