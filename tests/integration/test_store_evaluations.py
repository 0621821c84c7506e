from __future__ import annotations

from datetime import timedelta

import pytest
from store_samples import SUBMITTED, a_batch, a_row, an_evaluation, stored

from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import TRANSITIONS, Batch, EvaluationState, Outcome, TrialState
from aeo.store import evaluations, events, trials
from aeo.store.connection import Db
from aeo.store.evaluations import BatchState

S = EvaluationState
#: How to get into each state from `RUNNING`.
PATHS = {
    S.RUNNING: (),
    S.PAUSED: (S.PAUSED,),
    S.CANCELLING: (S.CANCELLING,),
    S.MERGING: (S.MERGING,),
    S.SUCCEEDED: (S.MERGING, S.SUCCEEDED),
    S.FAILED: (S.MERGING, S.FAILED),
    S.CANCELLED: (S.CANCELLING, S.MERGING, S.CANCELLED),
}


def test_a_saved_evaluation_is_read_back(db: Db) -> None:
    stored(db, {"b1": ["t1", "t2"], "b2": ["t3"]})
    status = evaluations.get(db, "e1")
    assert (status.id, status.name, status.executor, status.priority) == ("e1", "job", "sleep", 3)
    assert (status.state, status.reason, status.submitted_at, status.finished_at) == (S.RUNNING, "", SUBMITTED, None)
    assert (status.total, status.pending, status.running, status.pushed, status.done) == (3, 3, 0, 0, 0)
    assert status.outcomes == dict.fromkeys(Outcome, 0)
    assert status.requeues == 0
    assert trials.states(db, "e1") == dict.fromkeys(["t1", "t2", "t3"], TrialState.PENDING)


def test_nothing_is_there_that_was_not_saved(db: Db) -> None:
    for read in (evaluations.get, evaluations.find):
        with pytest.raises(NotFound, match="nope"):
            read(db, "nope")
    assert evaluations.batches(db, "nope") == []
    assert evaluations.page(db, offset=0, limit=10) == ([], 0)


def test_an_evaluation_is_found_by_id_and_the_newest_of_a_name(db: Db) -> None:
    stored(db, {"b": ["t"]}, id="old", name="same")
    for state in PATHS[S.SUCCEEDED]:
        assert evaluations.move(db, "old", state)
    stored(db, {"b": ["t"]}, id="new", name="same", at=SUBMITTED + timedelta(hours=1))
    assert evaluations.find(db, "old").id == "old"
    assert evaluations.find(db, "same").id == "new"
    evaluations.delete(db, "new")
    assert evaluations.find(db, "same").id == "old"


def test_an_id_is_taken_once_and_the_first_is_unharmed(db: Db) -> None:
    stored(db, {"b": ["t1", "t2"]})
    keys = sorted(db.client.keys("aeo:e:*"))
    with pytest.raises(Conflict, match="e1"):
        stored(db, {"other": ["x"]}, name="another")
    assert sorted(db.client.keys("aeo:e:*")) == keys
    assert trials.states(db, "e1") == dict.fromkeys(["t1", "t2"], TrialState.PENDING)


def test_a_name_has_one_evaluation_at_a_time(db: Db) -> None:
    stored(db, {"b": ["t"]}, id="first")
    with pytest.raises(Conflict, match="first"):
        stored(db, {"b": ["t"]}, id="second")
    with pytest.raises(NotFound):
        evaluations.get(db, "second")
    assert [e.kind for _, e in events.take(db, 10)] == ["submitted"]
    for state in PATHS[S.CANCELLED]:
        assert evaluations.move(db, "first", state)
    stored(db, {"b": ["t"]}, id="second")
    assert evaluations.open_ids(db) == ["second"]


@pytest.mark.parametrize("names", [["t1", "t1"], ["t1", "stranger"]], ids=["twice", "unplanned"])
def test_a_share_names_planned_trials_once(db: Db, names: list[str]) -> None:
    with pytest.raises(InputError):
        evaluations.save(db, an_evaluation(["t1"]), {a_batch("b"): names}, {})
    assert db.client.keys("*") == []


def test_a_trial_may_be_in_nobodys_share(db: Db) -> None:
    evaluations.save(db, an_evaluation(["t1", "t2"]), {}, {})
    assert evaluations.get(db, "e1").pending == 2
    helper = a_batch("helper")
    evaluations.add_batches(db, "e1", {helper: ()})
    taken = {claim.trial for n in "ab" if (claim := trials.claim(db, helper, token=n, lease_seconds=60))}
    assert taken == {"t1", "t2"}


def test_pages_show_the_newest_first(db: Db) -> None:
    for n in range(7):
        stored(db, {"b": ["t"]}, id=f"e{n}", name=f"job{n}", at=SUBMITTED + timedelta(minutes=n))
    for n in (1, 3):
        evaluations.move(db, f"e{n}", S.CANCELLING)
    first, total = evaluations.page(db, offset=0, limit=3)
    assert ([e.id for e in first], total) == (["e6", "e5", "e4"], 7)
    rest, _ = evaluations.page(db, offset=3, limit=100)
    assert [e.id for e in rest] == ["e3", "e2", "e1", "e0"]
    cancelling, total = evaluations.page(db, offset=0, limit=1, state=S.CANCELLING)
    assert ([e.id for e in cancelling], total) == (["e3"], 2)
    assert evaluations.page(db, offset=0, limit=0) == ([], 7)


def test_open_ones_are_listed_oldest_first(db: Db) -> None:
    for n, state in enumerate(S):
        stored(db, {"b": ["t"]}, id=f"e{n}", name=f"job{n}", at=SUBMITTED - timedelta(minutes=n))
        for step in PATHS[state]:
            assert evaluations.move(db, f"e{n}", step)
    assert evaluations.open_ids(db) == ["e3", "e2", "e1", "e0"]


@pytest.mark.parametrize("start", S, ids=lambda s: s.value)
@pytest.mark.parametrize("to", S, ids=lambda s: s.value)
def test_states_change_only_as_the_table_says(fake_db: Db, start: EvaluationState, to: EvaluationState) -> None:
    db = fake_db
    stored(db, {"b": ["t"]})
    for step in PATHS[start]:
        assert evaluations.move(db, "e1", step, "on the way")
    allowed = start in TRANSITIONS[to]
    assert evaluations.move(db, "e1", to, "now") is allowed
    status = evaluations.get(db, "e1")
    assert status.state is (to if allowed else start)
    if allowed:
        assert status.reason == "now"
    assert (status.finished_at is not None) == status.state.final
    assert [e.id for e in evaluations.page(db, offset=0, limit=9, state=status.state)[0]] == ["e1"]


def test_a_move_without_a_reason_keeps_the_last(db: Db) -> None:
    stored(db, {"b": ["t"]})
    evaluations.move(db, "e1", S.CANCELLING, "cancelled by a person")
    evaluations.move(db, "e1", S.MERGING)
    assert evaluations.get(db, "e1").reason == "cancelled by a person"
    assert not evaluations.move(db, "nope", S.MERGING)


def test_batches_say_what_is_left(db: Db) -> None:
    batches = stored(db, {"b1": {"t1": 30, "t2": 1.5}, "b2": {"t3": 4}, "b3": ()})
    trials.claim(db, batches["b1"], token="k", lease_seconds=60)
    found = {item.batch.id: item for item in evaluations.batches(db, "e1")}
    assert {id: (item.left, item.left_seconds) for id, item in found.items()} == {
        "b1": (1, 1.5),
        "b2": (1, 4.0),
        "b3": (0, 0.0),
    }
    assert {item.state for item in found.values()} == {BatchState.SENT}
    assert found["b1"].batch == batches["b1"]


def test_a_batch_is_started_once(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    assert evaluations.start_batch(db, batch)
    assert not evaluations.start_batch(db, batch)
    assert evaluations.batches(db, "e1")[0].state is BatchState.STARTED
    evaluations.end_batch(db, batch)
    assert evaluations.batches(db, "e1")[0].state is BatchState.ENDED
    assert not evaluations.start_batch(db, batch)
    assert not evaluations.start_batch(db, a_batch("stranger"))
    assert not evaluations.start_batch(db, a_batch("b1", evaluation="nope"))


def test_what_an_ended_batch_left_is_helped_with(db: Db) -> None:
    batches = stored(db, {"b1": ["t1", "t2"], "b2": ()})
    evaluations.end_batch(db, batches["b1"])
    claim = trials.claim(db, batches["b2"], token="k", lease_seconds=60)
    assert claim is not None
    assert claim.trial == "t1"


def test_messages_are_kept(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    sent = Batch(id=batch.id, evaluation="e1", worker=batch.worker, message='{"group_id": "g"}')
    evaluations.set_message(db, sent)
    assert evaluations.batches(db, "e1")[0].batch == sent


def test_more_batches_take_over_what_is_pending(db: Db) -> None:
    batches = stored(db, {"b1": {"t1": 5, "t2": 4, "t3": 3}})
    trials.claim(db, batches["b1"], token="k", lease_seconds=60)
    more = Batch(id="b2", evaluation="e1", worker="w2", message="m")
    evaluations.add_batches(db, "e1", {more: ["t1", "t3"], a_batch("b3"): ()}, {"w3": frozenset({"t2"})})
    found = {item.batch.id: item for item in evaluations.batches(db, "e1")}
    assert found["b2"].batch == more
    assert {id: (item.left, item.left_seconds) for id, item in found.items()} == {
        "b1": (1, 4.0),
        "b2": (1, 3.0),
        "b3": (0, 0.0),
    }
    assert trials.states(db, "e1")["t1"] is TrialState.RUNNING
    picky = trials.claim(db, a_batch("b3", "w3"), token="k3", lease_seconds=60)
    assert picky is not None
    assert picky.trial == "t3"
    with pytest.raises(NotFound):
        evaluations.add_batches(db, "nope", {a_batch("b", evaluation="nope"): ()})


def test_a_deleted_evaluation_leaves_nothing(db: Db) -> None:
    batches = stored(db, {"b1": ["t1", "t2", "t3"]}, unfit={"w": frozenset({"t1"})})
    stored(db, {"b": ["t"]}, id="e1x", name="other")
    claim = trials.claim(db, batches["b1"], token="k", lease_seconds=60)
    assert claim is not None
    trials.commit(db, "e1", a_row("t2"), "x")
    evaluations.delete(db, "e1")
    evaluations.delete(db, "e1")
    assert not [k for k in db.client.keys("*") if k.startswith(("aeo:e:e1:", "aeo:w:worker-b1:")) or k == "aeo:e:e1"]
    assert evaluations.open_ids(db) == ["e1x"]
    assert trials.renew(db, claim, lease_seconds=60) is trials.Standing.LOST
    assert trials.claim(db, batches["b1"], token="k2", lease_seconds=60) is None
    with pytest.raises(NotFound):
        trials.commit(db, "e1", a_row("t1"), "k")


def test_a_large_submission_is_stored_whole(db: Db) -> None:
    names = [f"trial-{n:06d}" for n in range(20_000)]
    batches = stored(db, {f"b{k}": names[k::4] for k in range(4)}, unfit={"picky": frozenset(names[:5000])})
    status = evaluations.get(db, "e1")
    assert (status.total, status.pending) == (20_000, 20_000)
    assert [item.left for item in evaluations.batches(db, "e1")] == [5000] * 4
    claim = trials.claim(db, batches["b2"], token="k", lease_seconds=60)
    assert claim is not None
    assert claim.trial == "trial-000002"
    helper = a_batch("b9", "picky")
    evaluations.add_batches(db, "e1", {helper: ()})
    picky = trials.claim(db, helper, token="p", lease_seconds=60)
    assert picky is not None
    assert picky.trial >= "trial-005000"
    assert not db.client.keys("aeo:staged:*")
    assert len(trials.pending(db, "e1")) == 19_998


def test_a_submission_that_dies_half_way_expires(db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    def dies(*_: object) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(db), "run", dies)
        with pytest.raises(KeyboardInterrupt):
            stored(db, {"b": ["t1"]})
    left = db.client.keys("*")
    assert left
    assert all(key.startswith("aeo:staged:") and 0 < db.client.ttl(key) <= 3600 for key in left)
    stored(db, {"b": ["t1"]})
    assert db.client.ttl("aeo:e:e1:trials") == -1
