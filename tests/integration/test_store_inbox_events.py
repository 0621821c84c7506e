from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor

from store_samples import a_row, stored

from aeo.codec import loads
from aeo.core.estimate import Run
from aeo.core.model import Claim, EvaluationState, Outcome, PlannedTrial, TrialRow
from aeo.store import evaluations, events, health, history, inbox, trials
from aeo.store.connection import SOCKET_TIMEOUT, Db
from aeo.store.keys import key


def arrive(db: Db, *names: str) -> None:
    for name in names:
        trials.pushed(db, Claim(evaluation="e1", trial=name, batch="", worker="w", token=f"k-{name}", attempt=1))


def test_arrivals_are_taken_oldest_first(db: Db) -> None:
    arrive(db, "t1", "t2")
    taken = [inbox.take(db, 0) for _ in range(3)]
    assert [a and (a.evaluation, a.trial, a.token) for a in taken] == [
        ("e1", "t1", "k-t1"),
        ("e1", "t2", "k-t2"),
        None,
    ]


def test_what_was_taken_and_not_done_comes_back(db: Db) -> None:
    arrive(db, "t1", "t2")
    first, second = inbox.take(db, 0), inbox.take(db, 0)
    assert first is not None
    assert second is not None
    inbox.done(db, first)
    assert inbox.restore(db) == 1
    again = inbox.take(db, 0)
    assert again is not None
    assert again.trial == second.trial
    inbox.done(db, again)
    assert inbox.restore(db) == 0
    assert inbox.length(db) == 0


def test_a_take_waits_for_an_arrival(db: Db) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(inbox.take, db, 20)
        arrive(db, "t1")
        arrival = waiting.result(timeout=60)
    assert arrival is not None
    assert arrival.trial == "t1"


def test_a_take_gives_up_in_time(db: Db) -> None:
    begun = time.monotonic()
    assert inbox.take(db, 0.2) is None
    assert 0.2 <= time.monotonic() - begun < 60


def test_one_command_blocks_for_less_than_the_sockets_timeout() -> None:
    assert inbox._BLOCK < SOCKET_TIMEOUT / 2


def test_an_arrival_goes_to_one_of_many_takers(db: Db) -> None:
    names = [f"t{n}" for n in range(40)]
    arrive(db, *names)
    with ThreadPoolExecutor(4) as pool:
        taken = list(pool.map(lambda _: inbox.take(db, 0), range(50)))
    assert sorted(a.trial for a in taken if a) == sorted(names)


def test_every_transition_is_an_event(db: Db) -> None:
    batch = stored(db, {"b1": ["t1", "t2", "t3"]}, workers={"b1": "w1"})["b1"]
    evaluations.start_batch(db, batch)
    evaluations.start_batch(db, batch)
    trials.claim(db, batch, token="k1", lease_seconds=60)
    trials.requeue(db, "e1", "t1", "k1", reason="died", max_requeues=1)
    claim = trials.claim(db, batch, token="k2", lease_seconds=60)
    assert claim is not None
    trials.renew(db, claim, lease_seconds=60)
    trials.pushed(db, claim)
    trials.pushed(db, claim)
    trials.commit(db, "e1", a_row("t1", worker="w1"), "k2")
    trials.commit(db, "e1", a_row("t1", worker="w1"), "k2")
    trials.commit(db, "e1", a_row("t1", worker="w9"), "k1")
    evaluations.move(db, "e1", EvaluationState.CANCELLING, "enough")
    evaluations.move(db, "e1", EvaluationState.CANCELLING, "enough")
    trials.cancel_pending(db, "e1")
    evaluations.end_batch(db, batch)

    got = [event for _, event in events.take(db, 100)]
    shown = [(e.kind, e.fields.get("trial", ""), e.fields.get("token", ""), e.fields.get("attempt", "")) for e in got]
    assert shown == [
        ("submitted", "", "", ""),
        ("batch_started", "", "", ""),
        ("claimed", "t1", "k1", "1"),
        ("requeued", "t1", "k1", "1"),
        ("claimed", "t1", "k2", "2"),
        ("pushed", "t1", "k2", "2"),
        ("committed", "t1", "k2", "1"),
        ("superseded", "t1", "k1", "1"),
        ("moved", "", "", ""),
        ("committed", "t2", "", ""),
        ("committed", "t3", "", ""),
        ("batch_ended", "", "", ""),
    ]
    assert {e.evaluation for e in got} == {"e1"}
    assert all(abs((e.at - trials.now(db)).total_seconds()) < 60 for e in got)
    by_kind = {e.kind: e.fields for e in got}
    assert by_kind["requeued"]["reason"] == "died"
    assert by_kind["moved"] == {"from": "running", "state": "cancelling", "reason": "enough"}
    assert by_kind["claimed"]["worker"] == "w1"
    rows = [loads(TrialRow, e.fields["row"]) for e in got if e.kind == "committed"]
    assert rows == trials.rows_since(db, "e1", 0)
    assert [e.fields["outcome"] for e in got if e.kind == "committed"] == ["scored", "cancelled", "cancelled"]


def test_what_changes_nothing_is_no_event(db: Db) -> None:
    batch = stored(db, {"b1": ["t1"]})["b1"]
    before = events.length(db)
    trials.requeue(db, "e1", "t1", "nope", reason="", max_requeues=1)
    evaluations.move(db, "e1", EvaluationState.SUCCEEDED)
    evaluations.move(db, "nope", EvaluationState.MERGING)
    trials.pushed(db, Claim(evaluation="e1", trial="t1", batch="b1", worker="w", token="nope", attempt=1))
    evaluations.start_batch(db, Batchless)
    assert trials.claim(db, batch, token="k", lease_seconds=60)
    assert events.length(db) == before + 1


Batchless = evaluations.Batch(id="stranger", evaluation="e1", worker="w")


def test_events_stay_until_they_are_forgotten(db: Db) -> None:
    for n in range(5):
        events.emit(db, "e1", "note", n=n, why="just so")
    first = events.take(db, 2)
    assert [e.fields for _, e in first] == [{"n": "0", "why": "just so"}, {"n": "1", "why": "just so"}]
    assert events.take(db, 2) == first
    events.forget(db, [entry for entry, _ in first])
    events.forget(db, [])
    assert [e.fields["n"] for _, e in events.take(db, 100)] == ["2", "3", "4"]
    assert events.length(db) == 3


def test_an_event_is_one_line_of_json(db: Db) -> None:
    stored(db, {"b1": ["t1"]})
    trials.commit(db, "e1", a_row("t1", outcome=Outcome.INVALID), "k")
    event = events.take(db, 10)[-1][1]
    line = event.line("7-1")
    assert line.endswith("\n")
    assert line.count("\n") == 1
    read = json.loads(line)
    assert (read["evaluation"], read["kind"], read["trial"]) == ("e1", "committed", "t1")
    assert read["row"]["summary"]["outcome"] == "invalid"
    assert read["at"] == event.at.isoformat()


def test_queues_are_measured(db: Db) -> None:
    db.client.rpush("worker.a", "1", "2")
    db.client.rpush("worker.a\x06\x163", "3")
    names = ["worker.a", "worker.a\x06\x163", "control"]
    assert health.queue_lengths(db, names) == dict(zip(names, (2, 1, 0), strict=True))
    assert health.queue_lengths(db, []) == {}
    assert health.ping(db)


def planned(task: str, *, agent: str = "", model: str = "", **fields: float) -> PlannedTrial:
    labels = {"dataset": "set: one", "agent": agent, "model": model}
    return PlannedTrial(name="t", task=task, labels=labels, **fields)


def test_the_last_runs_of_a_task_and_of_its_dataset_are_remembered(db: Db) -> None:
    task = planned("task %s", agent="a", model="m", estimated_seconds=7.0, planned_seconds=60.0)
    history.note(db, "sleep", [(task, float(n), "w") for n in range(history.KEPT + 5)])
    history.note(db, "sleep", [(planned("other", estimated_seconds=9.0), 1.23456, "")])
    names = ["set: one/task %s", "set: one/other", "set: one/never", "set: one/other"]
    found = history.runs(db, "sleep", names)
    newest = [
        Run(seconds=float(n), planned=60.0, agent="a", model="m", worker="w") for n in range(history.KEPT + 4, 4, -1)
    ]
    assert found == {names[0]: newest, names[1]: [Run(seconds=1.235, planned=9.0)]}
    assert history.runs(db, "command", names) == {}
    assert len(history.meant(db, "sleep", ["set: one"])["set: one"]) == history.KEPT + 6
    for _ in range(12):
        history.note(db, "sleep", [(planned("other"), 1.0, "")] * 50)
    assert len(history.meant(db, "sleep", ["set: one"])["set: one"]) == history.KEPT_MEANT
    assert history.meant(db, "sleep", ["never"]) == {}


def test_runs_of_an_earlier_release_are_read(db: Db) -> None:
    db.client.rpush(key("history", "sleep", "s/t"), "20.0", "7")
    assert history.runs(db, "sleep", ["s/t"]) == {"s/t": [Run(seconds=20.0), Run(seconds=7.0)]}


def test_what_ran_before_is_put_back_whole(db: Db) -> None:
    history.note(db, "sleep", [(planned("task"), 5.0, "v")])
    assert not history.is_whole(db)
    runs = [Run(seconds=3.0, planned=4.0, agent="a"), Run(seconds=2.0)]
    history.restore(db, {("sleep", "set: one/task"): runs}, {("sleep", "set: one"): runs[:1]})
    assert history.is_whole(db)
    assert history.runs(db, "sleep", ["set: one/task"]) == {"set: one/task": runs}
    assert history.meant(db, "sleep", ["set: one"]) == {"set: one": runs[:1]}
