"""Workers' own users over time: cut off, late, revoked, forged; nobody is left without a slot or with a right."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Ignore
from enrolled import as_worker, evaluation, given, patterns, pool
from store_samples import a_worker
from waiting import eventually

from aeo import (
    celery,
    credentials,
    dispatch,
    evaluations,
    grants,
    reconciliation,
    records,
    redispatch,
    tasks,
    turns,
    workers,
)
from aeo.core.errors import Conflict, Forbidden, InputError
from aeo.core.model import Claim, EvaluationState, Heartbeat
from aeo.layout import Local
from aeo.leases import Hold, Leases
from aeo.secrets import delivery
from aeo.site import Site, WorkerSite
from aeo.store import access, connection, events, health, inbox, trials
from aeo.store import evaluations as store
from aeo.store import workers as worker_store
from aeo.store.access import NotOffered
from aeo.store.connection import Db, Denied, connect
from aeo.store.keys import key
from aeo.store.trials import Renewal, Standing
from aeo.submission import Submission
from aeo.transfer import remote

pytestmark = pytest.mark.usefixtures("no_users")


def close(site: Site, id: str) -> None:
    trials.cancel_pending(site.db, id)
    for state in (EvaluationState.CANCELLING, EvaluationState.MERGING, EvaluationState.CANCELLED):
        assert store.move(site.db, id, state)


def queue(site: Site, id: str) -> frozenset[str]:
    return health.queued(site.db, dispatch.lists_of(dispatch.queue_of(id)))


def lose(site: Site, id: str, what: str) -> None:
    """Take a right away, as if it had never come or gone long ago."""
    account = credentials.read(site).accounts[id]
    access.put(site.db, id, account.digest, set(account.evaluations) - {what})


def as_site(site: Site, db: Db, root: Path, id: str) -> WorkerSite:
    config = replace(site.config, worker_id=id, local_root=root / id)
    return WorkerSite(config=config, local=Local(root / id), db=db, remote=remote.parse(str(site.shared.root)))


def test_the_right_stays_while_a_message_waits_whatever_became_of_its_batch(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(site, "a")
    batch = evaluation(site, "e1", "a")["a"]
    store.end_batch(site.db, batch)
    close(site, "e1")
    monkeypatch.setattr(grants, "KEEP_SECONDS", -1.0)
    for _ in range(3):
        grants.keep(site, {})
    assert "aeo:e:e1:*" in patterns(site, "a")
    site.db.client.delete(*dispatch.lists_of(dispatch.queue_of("a")))
    for _ in range(3):
        grants.keep(site, {})
    assert "aeo:e:e1" not in patterns(site, "a")


def test_a_worker_that_was_cut_off_gets_back_what_its_heartbeat_names(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(site, "a")
    evaluation(site, "e1", "a")
    evaluation(site, "e2")
    close(site, "e1")
    site.db.client.delete(*dispatch.lists_of(dispatch.queue_of("a")))
    monkeypatch.setattr(grants, "KEEP_SECONDS", -1.0)
    for _ in range(3):
        grants.keep(site, {})
    assert "aeo:e:e1" not in patterns(site, "a")
    beat = Heartbeat(boot="boot-1", at=connection.now(site.db), batches=("e1-a", "e2-a"), busy=2)
    worker_store.beat(site.db, "a", beat, ttl_seconds=60)
    for _ in range(3):
        grants.keep(site, pool(site))
        assert "aeo:e:e1:*" in patterns(site, "a")
    # Of which it never had a share.
    assert "aeo:e:e2" not in patterns(site, "a")


def test_a_message_of_what_a_worker_may_reach_no_more_returns_without_a_result(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = given(site, "a")
    evaluation(site, "e2")
    monkeypatch.setattr(turns, "DENIED_SECONDS", 0.2)
    monkeypatch.setattr(turns, "STORE_SECONDS", 0.05)
    run: Any = tasks.run_batch.run
    with as_worker(url) as db:
        mine = as_site(site, db, tmp_path, "a")
        mine.local.root.mkdir()
        monkeypatch.setitem(tasks._bound, "site", mine)
        with pytest.raises(Ignore):
            run("e2", "e2-a")
        # Likewise where it is not even looked at.
        monkeypatch.setitem(tasks._bound, "site", replace(mine, draining=lambda: "stopping"))
        with pytest.raises(Ignore):
            run("e2", "e2-a")
        assert access.asked_for(site.db, "a") == {"e2"}
        # Where it may, all is as ever.
        batch = evaluation(site, "e1", "a")["a"]
        assert run("e1", batch.id)["note"] == "stopping"


def test_a_result_that_is_refused_at_last_keeps_no_slot(site: Site) -> None:
    backend: Any = celery.make_app(given(site, "a"), worker="a").backend
    evaluation(site, "e1", "a")
    backend.mark_as_done("e2-a", {"ran": 0})
    backend.mark_as_failure("e2-a", ValueError("x"))
    assert site.db.client.get("celery-task-meta-e2-a") is None
    backend.mark_as_done("e1-a", {"ran": 0})
    assert "SUCCESS" in site.db.client.get("celery-task-meta-e1-a")


def test_who_had_no_account_yet_begins_with_what_it_has_a_share_in(site: Site) -> None:
    workers.admit(site, a_worker("a"))
    open_batch, ended = evaluation(site, "e1", "a")["a"], evaluation(site, "e2", "a")["a"]
    store.end_batch(site.db, ended)
    with as_worker(given(site, "a")) as db:
        assert store.start_batch(db, open_batch)
    assert "aeo:e:e2" not in patterns(site, "a")


@pytest.mark.parametrize("take_back", [workers.revoke, lambda site, id: workers.remove(site, id, force=True)])
def test_taking_back_ends_batches_and_empties_the_queue(site: Site, take_back: Any) -> None:
    url = given(site, "a")
    batch = evaluation(site, "e1", "a", "b")["a"]
    evaluation(site, "e2", "a")
    with as_worker(url) as db:
        store.start_batch(db, batch)
        assert trials.claim(db, batch, token="t1", lease_seconds=60)
    assert take_back(site, "a").given_back == 1
    states = {item.batch.id: item.state.value for id in ("e1", "e2") for item in store.batches(site.db, id)}
    assert states == {"e1-a": "ended", "e1-b": "sent", "e2-a": "ended"}
    assert queue(site, "a") == frozenset()
    assert queue(site, "b") == {"e1-b"}
    assert [noun for noun in ("waiting", "working", "loads", "room") if site.db.client.exists(key(noun, "a"))] == []


def test_a_seat_of_what_is_not_granted_yet_ends_no_other_claim(site: Site) -> None:
    url = given(site, "a")
    batch = evaluation(site, "e1", "a")["a"]
    evaluation(site, "e2", "a")
    lose(site, "a", "e2")
    with as_worker(url) as db:
        assert not store.gives_way(db, batch)
        assert store.start_batch(db, batch)
        for token in ("t1", "t2"):
            claim = trials.claim(db, batch, token=token, lease_seconds=60)
            assert claim
            assert trials.pushed(db, claim)


def test_the_right_comes_before_the_seat(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given(site, "a")
    seen: list[bool] = []
    for name in ("save", "add_batches"):
        real = getattr(store, name)

        def looking(db: Db, what: Any, *rest: Any, real: Any = real, **more: Any) -> Any:
            seen.append(f"aeo:e:{getattr(what, 'id', what)}:*" in patterns(site, "a"))
            return real(db, what, *rest, **more)

        monkeypatch.setattr(store, name, looking)
    made = evaluations.submit(site, Submission(config={"executor": "sleep", "name": "j", "trials": 3, "seconds": 1}))
    record = records.read(site.shared.evaluation(made.evaluation.id))
    lose(site, "a", made.evaluation.id)
    redispatch.send_more(site, record, list(pool(site).values()))
    assert seen == [True, True]


def test_one_lease_without_its_right_keeps_no_other_from_being_renewed(site: Site) -> None:
    url = given(site, "a")
    ours = {id: evaluation(site, id, "a")["a"] for id in ("e1", "e2")}
    claims = []
    with as_worker(url) as db:
        for id, batch in ours.items():
            store.start_batch(db, batch)
            claim = trials.claim(db, batch, token=f"t-{id}", lease_seconds=60)
            assert isinstance(claim, Claim)
            claims.append(claim)
        lose(site, "a", "e1")
        found = trials.renew_all(db, [Renewal(claim=claim, lease_seconds=60, phase="agent") for claim in claims])
        assert isinstance(found[0], Denied)
        assert found[1] is Standing.HELD
        assert [run.phase for run in trials.running(site.db, "e2")] == ["agent"]
        # Nor from being kept: what is refused is asked for.
        holds = [hold(db, claim) for claim in claims]
        for one in holds:
            one.begin()
        try:
            eventually(lambda: access.asked_for(site.db, "a") == {"e1"}, pause=0.05)
            eventually(lambda: trials.running(site.db, "e2")[0].phase == "verifier", pause=0.05)
        finally:
            for one in holds:
                one.end()


LEASES = Leases()


def hold(db: Db, claim: Claim) -> Hold:
    made = Hold(
        LEASES,
        db,
        claim,
        lease_seconds=1,
        deadline_seconds=60,
        stop_seconds=1,
        stop=lambda _: None,
        stopping=lambda: False,
    )
    made.note_phase("verifier")
    return made


def test_rights_that_cannot_be_kept_stop_no_repair_and_no_other_worker(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    given(site, "a"), given(site, "b")
    put = access.put

    def refuses(db: Db, worker: str, *rest: Any) -> None:
        if worker == "a":
            raise NotOffered("no")
        put(db, worker, *rest)

    monkeypatch.setattr(access, "put", refuses)
    evaluation(site, "e1", "a", "b")
    assert "aeo:e:e1:*" in patterns(site, "b")
    access.drop(site.db, "b")
    grants.keep(site, pool(site))
    assert "aeo:e:e1:*" in patterns(site, "b")
    monkeypatch.setattr(access, "put", put)
    # What failed is made good, though nothing has changed since.
    grants.keep(site, pool(site))
    assert "aeo:e:e1:*" in patterns(site, "a")
    site.shared.credentials.write_text("{")
    reconciliation.reconcile(site)


def test_controllers_of_one_server_see_their_own_users_alone(site: Site, redis_url: str) -> None:
    other = connect(redis_url.rpartition("/")[0] + "/1")
    try:
        given(site, "a")
        access.put(other, "1-z", "0" * 64, ())
        assert access.present(site.db) == {"a"}
        assert access.present(other) == {"1-z"}
        grants.keep(site, pool(site))
        assert access.present(other) == {"1-z"}
    finally:
        access.drop(other, "1-z")
        other.close()


def test_one_that_had_its_own_and_is_to_share_is_told_so_once(site: Site) -> None:
    given(site, "a")
    shared = replace(site, config=replace(site.config, worker_credentials="shared"))
    found = credentials.issue(shared, a_worker("a"), again=True)
    assert (found.kept, found.broker_url) == (False, site.config.broker_url)
    assert access.present(site.db) == frozenset()
    assert credentials.issue(shared, a_worker("a"), again=True).kept
    access.put(site.db, "a", "0" * 64, ())
    grants.keep(shared, pool(site))
    assert access.present(site.db) == frozenset()


def test_a_server_that_does_it_no_more_gives_the_shared_password(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given(site, "a")

    def refuses(*_: Any) -> None:
        raise NotOffered("no")

    monkeypatch.setattr(access, "put", refuses)
    found = credentials.issue(site, a_worker("a"), again=True)
    assert (found.kept, found.broker_url) == (False, site.config.broker_url)


def test_what_a_worker_forges_is_not_believed(site: Site) -> None:
    url = given(site, "a")
    evaluation(site, "e2")
    events.take(site.db, 100)
    with as_worker(url) as db:
        for kind in ("moved", "committed", "claimed"):
            told = {"evaluation": "e2", "kind": kind, "at": "1", "worker": "a", "trial": "t", "state": "cancelled"}
            db.client.xadd("aeo:events", {**told, "seal": ""})
        with pytest.raises(Denied):
            events.emit(db, "e2", "moved", state="cancelled")
        with pytest.raises(Denied):
            db.client.get("aeo:seal")
        access.ask_for(db, "a", "e2")
    assert store.move(site.db, "e2", EvaluationState.CANCELLING)
    found = [event for _, event in events.take(site.db, 100) if event.kind in ("moved", "committed")]
    assert [event.fields["state"] for event in found] == ["cancelling"]
    assert "seal" not in found[0].fields
    grants.keep(site, pool(site))
    assert "aeo:e:e2" not in patterns(site, "a")


def test_junk_that_a_worker_writes_is_passed_over_and_dropped(site: Site) -> None:
    url = given(site, "a")
    given(site, "b")
    evaluation(site, "e1", "a", "b")
    events.forget(site.db, [entry for entry, _ in events.take(site.db, 100)])
    with as_worker(url) as db:
        db.client.sadd(key("wants", "a"), "../../x", "a b", "*")
        for item in ("x", "[]", '["e1"]', "7", '["../e", "t", "k"]', json.dumps(["e1", "a1", "t"])):
            db.client.rpush("aeo:inbox", item)
        good = {"evaluation": "e1", "kind": "x", "at": "1"}
        for bad in ({"x": "y"}, {**good, "evaluation": "../x"}, {**good, "at": "z"}, {**good, "row": "{"}):
            db.client.xadd("aeo:events", bad)
        db.client.xadd("aeo:events", {**good, "id": "9-9"})
        db.client.xadd("aeo:events", good)
        db.client.set(key("beat", "a"), "x")
        db.client.hset(key("worker", "a"), mapping={"state": "x", "weight": "y"})
        db.client.lpush("worker.a", "x", "{}", "[1]")
        db.client.sadd(key("worker_leases", "a"), "x", "a b c")
    assert access.asked_for(site.db, "a") == frozenset()
    taken = inbox.take_all(site.db, 0.1, most=10)
    assert [item.trial for item in taken] == ["a1"]
    inbox.done(site.db, *taken)
    assert (inbox.length(site.db), inbox.restore(site.db)) == (0, 0)
    assert [event.kind for _, event in events.take(site.db, 100)] == ["x"]
    assert events.length(site.db) == 1
    assert {id: status.state.value for id, status in pool(site).items()} == {"a": "lost", "b": "online"}
    assert queue(site, "a") == {"e1-a"}
    assert workers.revoke(site, "a").given_back == 0


def test_who_is_revoked_while_it_registers_gets_nothing(site: Site) -> None:
    workers.admit(site, a_worker("a"))
    credentials.revoke(site, "a")
    with pytest.raises(Conflict, match="revoked"):
        credentials.issue(site, a_worker("a"))
    assert access.present(site.db) == frozenset()


def test_no_password_is_no_proof(site: Site) -> None:
    bare = replace(site, config=replace(site.config, broker_url="redis://127.0.0.1:1/0"))
    assert list(delivery._keys(bare, "a")) == []
    assert len(list(delivery._keys(site, "a"))) == 1
    given(site, "a")
    assert list(delivery._keys(site, "a")) == [credentials.read(site).accounts["a"].digest]


def test_a_lasting_refusal_of_secrets_is_an_answer(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(*_: Any) -> Any:
        raise Forbidden("not you")

    monkeypatch.setattr(delivery, "_ask", refuses)
    monkeypatch.setattr(delivery, "REFUSED_SECONDS", 0.01)
    claim = Claim(evaluation="e1", trial="t", batch="b", worker="a", token="k", attempt=1)
    mine = as_site(site, site.db, tmp_path, "a")
    assert delivery.bring(mine, claim, ["A_KEY"], gives_up=lambda: False).refused == "not you"


def test_a_damaged_book_is_set_aside_when_the_controller_starts(site: Site) -> None:
    url = given(site, "a")
    site.shared.credentials.write_text('{"accounts": ')
    with pytest.raises(InputError) as told:
        credentials.read(site)
    assert told.value.problems[0].fix
    credentials.restore(site.shared, site.db)
    assert credentials.read(site).accounts == {}
    assert site.shared.credentials.with_name("credentials.json.damaged").exists()
    grants.keep(site, pool(site))
    with pytest.raises(Denied):
        connect(url)
    assert not credentials.issue(site, a_worker("a"), again=True).kept


def test_the_book_of_a_worker_that_is_long_gone_is_dropped(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given(site, "a"), given(site, "b")
    evaluation(site, "e1", "b")
    monkeypatch.setattr(grants, "LOST_SECONDS", 0.0)
    grants.keep(site, pool(site))
    assert set(credentials.read(site).accounts) == {"a", "b"}

    def swept() -> set[str]:
        grants.keep(site, {})
        return set(credentials.read(site).accounts)

    eventually(lambda: swept() == {"b"})
    assert access.present(site.db) == {"b"}
