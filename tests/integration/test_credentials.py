"""Each worker's own user of the broker: what it is refused, found by trying; how it comes and goes."""

from __future__ import annotations

import json
import stat
import time
from dataclasses import replace

import pytest
from enrolled import as_worker, evaluation, given, patterns, pool
from store_samples import a_worker

from aeo import credentials, dispatch, grants, workers
from aeo.core.condition import Level
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.core.model import Batch, EvaluationState, Outcome, TrialRow, TrialSummary
from aeo.health import enrolment
from aeo.site import Site
from aeo.store import access, evaluations, trials
from aeo.store import workers as store
from aeo.store.connection import Denied, connect, now
from aeo.store.keys import key

pytestmark = pytest.mark.usefixtures("no_users")


#: As worker a, who has a batch of e1 and none of e2, while b has one of both.
REFUSED: dict[str, tuple[str, ...]] = {
    "read another worker": ("HGETALL", "aeo:w:b"),
    "write another worker": ("HSET", "aeo:w:b", "state", "paused"),
    "another's leases": ("SMEMBERS", "aeo:w:b:leases"),
    "end another's heartbeat": ("DEL", "aeo:w:b:beat"),
    "the list of workers": ("HGETALL", "aeo:workers"),
    "another evaluation": ("HGETALL", "aeo:e:e2"),
    "its trials": ("HGETALL", "aeo:e:e2:trials"),
    "its rows": ("HGETALL", "aeo:e:e2:rows"),
    "its rows in a script": ("EVAL", "return redis.call('HGETALL', 'aeo:e:e2:rows')", "0"),
    "write it in a script": ("EVAL", "return redis.call('HSET', 'aeo:e:e2', 'state', 'failed')", "0"),
    "the evaluations": ("ZRANGE", "aeo:evaluations", "0", "-1"),
    "another's queue": ("LRANGE", "worker.b", "0", "-1"),
    "take from it": ("BRPOP", "worker.b", "1"),
    "send to it": ("LPUSH", "worker.b", "{}"),
    "its queue of another priority": ("LRANGE", "worker.b\x06\x163", "0", "-1"),
    "another's unacknowledged": ("HGETALL", "unacked.b"),
    "the control queue": ("LRANGE", "control", "0", "-1"),
    "take from the control queue": ("RPOP", "control"),
    "the events": ("XRANGE", "aeo:events", "-", "+"),
    "the events, another way": ("XREAD", "STREAMS", "aeo:events", "0"),
    "the results": ("LRANGE", "aeo:inbox", "0", "-1"),
    "take a result": ("LPOP", "aeo:inbox"),
    "results being looked at": ("HGETALL", "aeo:inbox:taken"),
    "set a limit": ("HSET", "aeo:limits", "openai", "1 0"),
    "say who is removed": ("HDEL", "aeo:workers:removed", "a boot-1"),
    "say who is idle": ("SADD", "aeo:workers:idle", "b"),
    "history": ("LRANGE", "aeo:history:sleep:t", "0", "-1"),
    "another's Celery result": ("GET", "celery-task-meta-e2-b"),
    "another's chord": ("ZRANGE", "celery-taskset-meta-e2-1.j", "0", "-1"),
    "CONFIG": ("CONFIG", "GET", "*"),
    "ACL": ("ACL", "LIST"),
    "ACL SETUSER": ("ACL", "SETUSER", "worker-a", "+@all"),
    "KEYS": ("KEYS", "*"),
    "SCAN": ("SCAN", "0"),
    "RANDOMKEY": ("RANDOMKEY",),
    "FLUSHALL": ("FLUSHALL",),
    "FLUSHDB": ("FLUSHDB",),
    "SCRIPT FLUSH": ("SCRIPT", "FLUSH"),
    "SCRIPT KILL": ("SCRIPT", "KILL"),
    "DEBUG": ("DEBUG", "SLEEP", "0"),
    "MONITOR": ("MONITOR",),
    "SHUTDOWN": ("SHUTDOWN",),
    "CLIENT LIST": ("CLIENT", "LIST"),
    "CLIENT KILL": ("CLIENT", "KILL", "USER", "worker-b"),
    "INFO": ("INFO",),
    "SLOWLOG": ("SLOWLOG", "GET"),
    "MIGRATE": ("MIGRATE", "127.0.0.1", "1", "aeo:w:a", "0", "1"),
    "rename into its own": ("RENAME", "aeo:inbox", "aeo:w:a:mine"),
    "copy into its own": ("COPY", "aeo:events", "aeo:w:a:mine"),
    "sort into its own": ("SORT", "aeo:inbox", "STORE", "aeo:w:a:mine"),
    "union into its own": ("SUNIONSTORE", "aeo:w:a:mine", "aeo:w:b:leases"),
    "tell all Celery workers": ("PUBLISH", "/0.celery.pidbox", "{}"),
}


def test_what_is_not_a_workers_own_is_refused(site: Site) -> None:
    mine, _ = given(site, "a"), given(site, "b")
    evaluation(site, "e1", "a", "b")
    evaluation(site, "e2", "b")
    with as_worker(mine) as db:
        for what, command in REFUSED.items():
            # DEBUG is refused to everybody.
            with pytest.raises(Unavailable if what == "DEBUG" else Denied):
                pytest.fail(f"{what}: {db.client.execute_command(*command)}")
        for channel in ("/0.celeryev/worker.heartbeat", "celery-task-meta-e2-b", "*", "__keyspace@0__:aeo:e:e2"):
            with pytest.raises(Exception, match="permission"):  # noqa: PT012  # redis-py's own: no command of ours
                with db.client.pubsub() as heard:
                    heard.psubscribe(channel)
                    heard.get_message(timeout=5)
        # What it needs, it may.
        assert db.client.hget("aeo:e:e1", "id") == "e1"
        assert db.client.llen("worker.a\x06\x163") == 1


def test_a_script_of_ours_stops_at_the_same_wall(site: Site) -> None:
    mine, _ = given(site, "a"), given(site, "b")
    evaluation(site, "e2", "b")
    with as_worker(mine) as db:
        for batch in (Batch(id="e2-b", evaluation="e2", worker="a"), Batch(id="e2-b", evaluation="e2", worker="b")):
            with pytest.raises(Denied):
                trials.claim(db, batch, token="t", lease_seconds=60)
        with pytest.raises(Denied):
            store.set_state(db, "b", store.WorkerState.PAUSED)
        with pytest.raises(Denied):
            store.leave(db, "b", "boot-1")
        assert store.leave(db, "a", "boot-1")


def test_a_new_process_has_new_credentials_and_the_old_connections_end(site: Site) -> None:
    first = given(site, "a")
    with as_worker(first) as old:
        second = given(site, "a", "boot-2")
        assert first != second
        with pytest.raises(Denied):
            old.client.ping()
    with as_worker(second) as db:
        assert db.client.ping()


def test_one_that_registers_again_keeps_what_it_has(site: Site) -> None:
    url = given(site, "a")
    with as_worker(url) as db:
        found = credentials.issue(site, a_worker("a"), again=True)
        assert (found.kept, found.broker_url) == (True, credentials.without_credentials(url))
        assert db.client.ping()
        # Another process of it does not.
        assert not credentials.issue(site, a_worker("a", boot="boot-2"), again=True).kept


def test_no_password_is_kept_anywhere(site: Site) -> None:
    url = given(site, "a")
    password = url.split(":")[2].split("@")[0]
    path = site.shared.credentials
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert password not in path.read_text()
    assert password not in repr(credentials.Given(broker_url=url))
    assert password not in patterns(site, "a")
    for name in site.db.client.keys("*"):
        assert password not in name


def test_rights_come_with_a_batch_and_go_with_the_evaluation(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    given(site, "a")
    assert "aeo:e:" not in patterns(site, "a")
    batch = evaluation(site, "e1", "a")["a"]
    assert "~aeo:e:e1:*" in patterns(site, "a")
    grants.keep(site, pool(site))
    assert "~aeo:e:e1:*" in patterns(site, "a")
    assert evaluations.start_batch(site.db, batch)
    claim = trials.claim(site.db, batch, token="t1", lease_seconds=60)
    assert claim is not None
    trials.cancel_pending(site.db, "e1")
    for state in (EvaluationState.CANCELLING, EvaluationState.MERGING, EvaluationState.CANCELLED):
        assert evaluations.move(site.db, "e1", state)
    monkeypatch.setattr(grants, "KEEP_SECONDS", -1.0)
    # A claim, then a batch of its own is still open.
    for _ in range(3):
        grants.keep(site, pool(site))
        assert "~aeo:e:e1:*" in patterns(site, "a")
    row = TrialRow(
        summary=TrialSummary(trial=claim.trial, task="t", outcome=Outcome.CANCELLED),
        worker="a",
        attempt=1,
        committed_at=now(site.db),
    )
    assert trials.commit(site.db, "e1", row, "t1")
    site.db.client.set(key("room", "a"), f"e1 {claim.trial} 1")
    queues = dispatch.lists_of(dispatch.queue_of("a"))
    grants.keep(site, pool(site))
    assert "~aeo:e:e1:*" in patterns(site, "a")
    site.db.client.delete(*queues)
    for _ in range(2):
        grants.keep(site, pool(site))
    assert "aeo:e:e1" not in patterns(site, "a")
    assert [item.state.value for item in evaluations.batches(site.db, "e1")] == ["ended"]
    assert site.db.client.get(key("room", "a")) is None


def test_what_a_worker_still_holds_of_a_closed_evaluation_it_gets_back(site: Site) -> None:
    mine, _ = given(site, "a"), given(site, "b")
    evaluation(site, "e1", "a")
    evaluation(site, "e2", "b")
    with credentials.held(site) as book:
        book.accounts["a"].past = dict(book.accounts["a"].evaluations, e0=0.0)
        book.accounts["a"].past["e1"] = time.time() + 60
        book.accounts["a"].evaluations.clear()
        access.put(site.db, "a", book.accounts["a"].digest, ())
    with as_worker(mine) as db:
        for id in ("e1", "e2"):
            with pytest.raises(Denied):
                trials.states_of(db, id, ["a1"])
            access.ask_for(db, "a", id)
        grants.keep(site, pool(site))
        assert trials.states_of(db, "e1", ["a1"])
        with pytest.raises(Denied):
            trials.states_of(db, "e2", ["b1"])


def test_a_server_that_forgot_is_told_again(site: Site) -> None:
    url = given(site, "a")
    evaluation(site, "e1", "a")
    access.drop(site.db, "a")
    site.db.client.flushall()
    grants.keep(site, pool(site))
    with as_worker(url) as db:
        assert db.client.hgetall("aeo:e:e1") == {}


def test_revoking_cuts_at_once_and_keeps_out_until_allowed(site: Site) -> None:
    url = given(site, "a")
    batch = evaluation(site, "e1", "a")["a"]
    evaluations.start_batch(site.db, batch)
    with as_worker(url) as db:
        assert trials.claim(db, batch, token="t1", lease_seconds=60)
        removed = workers.revoke(site, "a")
        assert (removed.given_back, removed.alive) == (1, True)
        with pytest.raises(Denied):
            db.client.ping()
    assert evaluations.get(site.db, "e1").running == 0
    with pytest.raises(Denied):
        connect(url)
    for boot in ("boot-1", "boot-2"):
        with pytest.raises(Conflict, match="revoked"):
            given(site, "a", boot, again=True)
    # A server that was away meanwhile is told in the next round.
    access.put(site.db, "a", "0" * 64, ())
    grants.keep(site, pool(site))
    assert access.present(site.db) == frozenset()
    workers.allow(site, "a")
    with as_worker(given(site, "a", "boot-2")) as db:
        assert db.client.ping()
    with pytest.raises(NotFound):
        workers.allow(site, "a")
    with pytest.raises(NotFound):
        workers.revoke(site, "nobody")


def test_without_the_right_to_make_users_all_share_the_password(site: Site) -> None:
    password = "of-one-who-may-not"
    rules = ("on", f">{password}", "~*", "&*", "+@all", "-acl")
    site.db.client.execute_command("ACL", "SETUSER", "limited", *rules)
    url = credentials.own_url(site.config.broker_url, "limited", password)
    try:
        with as_worker(url) as db:
            poor = replace(site, db=db, config=replace(site.config, broker_url=url))
            assert given(poor, "a") == url
            why = credentials.read(poor).shared
            assert "acl|setuser" in why
            assert "ACL SETUSER" in why
            assert password not in json.dumps(why)
            # Nothing that others call fails by it.
            evaluation(poor, "e1", "a")
            grants.keep(poor, pool(poor))
            strict = replace(poor, config=replace(poor.config, worker_credentials="own"))
            with pytest.raises(InputError):
                given(strict, "a")
            assert workers.revoke(poor, "a").alive
    finally:
        site.db.client.execute_command("ACL", "DELUSER", "limited")


def test_all_share_where_that_is_configured(site: Site) -> None:
    shared = replace(site, config=replace(site.config, worker_credentials="shared"))
    assert given(shared, "a") == site.config.broker_url
    assert access.present(site.db) == frozenset()
    assert credentials.read(shared).shared


def test_the_doctor_says_what_workers_sign_in_with(site: Site) -> None:
    assert list(enrolment.judge(site.shared)) == []
    given(site, "a")
    (found,) = enrolment.judge(site.shared)
    assert (found.level, found.text) == (Level.OK, "workers with their own: 1")
    given(replace(site, config=replace(site.config, worker_credentials="shared")), "b")
    (found,) = enrolment.judge(site.shared)
    assert found.level is Level.WARNING
    assert found.fix
    site.shared.credentials.write_text("{")
    (found,) = enrolment.judge(site.shared)
    assert found.level is Level.FAULT
