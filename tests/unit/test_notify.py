"""Telling people: what is news, and that it arrives once, at real servers, whatever breaks in between."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from email import message_from_bytes
from email.header import decode_header, make_header
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from time import monotonic
from types import SimpleNamespace
from typing import Any

import engine
import pytest
from aiosmtpd.controller import Controller as MailServer
from aiosmtpd.smtp import AuthResult, Envelope
from hypothesis import given
from hypothesis import strategies as st
from programs import free_port
from waiting import eventually

from aeo import channels, codec, notices
from aeo.channels import Undelivered
from aeo.config import Config, from_environment
from aeo.core import notices as core
from aeo.core.errors import InputError
from aeo.core.model import EvaluationState, Outcome, WorkerState
from aeo.core.notices import EvaluationFacts, Kind, Notice, Seen, WorkerFacts, compare
from aeo.embedded.children import Part, variables
from aeo.embedded.local import Controller
from aeo.layout import Shared
from aeo.notices import Notifier
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health, workers

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
SECRET = "B0GUS-hook-secret"


# What is news.


def at(seconds: float) -> datetime:
    return NOW + timedelta(seconds=seconds)


def facts(state: EvaluationState, *, id: str = "e", ended: float | None = None, **fields: Any) -> EvaluationFacts:
    finished = None if ended is None else at(ended)
    return EvaluationFacts(id=id, name=f"name-{id}", state=state, finished_at=finished, **fields)


def kinds(news: list[Notice]) -> list[Kind]:
    return [notice.kind for notice in news]


def test_the_first_look_finds_no_news() -> None:
    evaluations = [
        facts(EvaluationState.PAUSED),
        facts(EvaluationState.SUCCEEDED, id="old", ended=-5),
    ]
    seen, news = compare(None, NOW, evaluations, [WorkerFacts(id="w", host="h", state=WorkerState.LOST)])
    assert news == []
    # Nor does the next, of the same.
    assert compare(seen, at(2), evaluations, [WorkerFacts(id="w", host="h", state=WorkerState.LOST)])[1] == []


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (EvaluationState.SUCCEEDED, "name-e succeeded"),
        (EvaluationState.FAILED, "name-e failed"),
        (EvaluationState.CANCELLED, "name-e was cancelled"),
    ],
)
def test_an_end_is_told_with_its_counts(state: EvaluationState, words: str) -> None:
    seen, _ = compare(None, NOW, [facts(EvaluationState.RUNNING)], [])
    ended = facts(
        state,
        ended=1,
        total=5,
        done=5,
        outcomes={Outcome.SCORED: 3, Outcome.INFRA_ERROR: 2},
        submitted_at=at(-3600),
        job="/jobs/name-e",
        reason="because",
    )
    seen, news = compare(seen, at(2), [ended], [])
    assert [(notice.kind, notice.subject, notice.at) for notice in news] == [(Kind.FINISHED, words, at(1))]
    assert "Trials: 5 of 5\n  scored: 3\n  infra_error: 2\nTook: 1:00:01\nJob: /jobs/name-e\n" in news[0].text
    assert compare(seen, at(4), [ended], [])[1] == []


def test_what_begins_and_ends_between_two_looks_is_told_and_what_ended_long_ago_is_not() -> None:
    seen, _ = compare(None, NOW, [facts(EvaluationState.RUNNING, id="old")], [])
    later = at(3 * 86400)
    fresh = facts(EvaluationState.SUCCEEDED, id="fresh", ended=3 * 86400 - 60)
    old = facts(EvaluationState.SUCCEEDED, id="old", ended=60)
    _, news = compare(seen, later, [old, fresh], [])
    assert [notice.evaluation for notice in news] == ["fresh"]


def test_workers_are_told_when_they_become_lost_and_not_while_nobody_can_say() -> None:
    def worker(state: WorkerState, note: str = "") -> list[WorkerFacts]:
        return [WorkerFacts(id="w", host="h", state=state, note=note)]

    seen, _ = compare(None, NOW, [], worker(WorkerState.ONLINE))
    seen, news = compare(seen, at(2), [], None)
    assert news == []
    seen, news = compare(seen, at(4), [], worker(WorkerState.LOST))
    assert kinds(news) == [Kind.WORKER_LOST]
    assert "w on h" in news[0].text
    seen, news = compare(seen, at(6), [], worker(WorkerState.LOST))
    assert news == []
    seen, news = compare(seen, at(8), [], worker(WorkerState.PAUSED, "paused by ann"))
    assert news == []
    seen, _ = compare(seen, at(10), [], worker(WorkerState.ONLINE))
    seen, news = compare(seen, at(12), [], worker(WorkerState.PAUSED, "most of its last 8 runs failed"))
    assert kinds(news) == [Kind.WORKER_PAUSED]
    assert "aeo workers resume w" in news[0].text


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["run", "pause", "end", "lose", "find", "unknown", "restart"]), st.sampled_from(["a", "b"])
    ),
    max_size=30,
)


@given(steps=STEPS)
def test_each_change_is_told_once_on_any_walk(steps: list[tuple[str, str]]) -> None:
    states = dict.fromkeys("ab", EvaluationState.RUNNING)
    pool = dict.fromkeys("ab", WorkerState.ONLINE)
    ended: dict[str, float] = {}
    known = dict(pool)

    def look(seen: Seen | None, when: int, judged: bool = True) -> tuple[Seen, list[Notice]]:
        evaluations = [facts(state, id=id, ended=ended.get(id)) for id, state in states.items()]
        crew = [WorkerFacts(id=id, host="h", state=state) for id, state in pool.items()]
        return compare(seen, at(when), evaluations, crew if judged else None)

    seen, _ = look(None, 0)
    for when, (step, id) in enumerate(steps, start=1):
        expected: list[tuple[Kind, str]] = []
        if step in ("run", "pause", "end") and not states[id].final:
            wanted = {"run": EvaluationState.RUNNING, "pause": EvaluationState.PAUSED, "end": EvaluationState.FAILED}
            if step != "run" and states[id] is not wanted[step]:
                expected = [(Kind.PAUSED if step == "pause" else Kind.FINISHED, id)]
            states[id] = wanted[step]
            if step == "end":
                ended[id] = when
        elif step in ("lose", "find"):
            pool[id] = WorkerState.LOST if step == "lose" else WorkerState.ONLINE
        judged = step != "unknown"
        if judged:
            expected += [
                (Kind.WORKER_LOST, one)
                for one in "ab"
                if pool[one] is WorkerState.LOST and known[one] is not WorkerState.LOST
            ]
            known = dict(pool)
        if step == "restart":
            seen = codec.loads(Seen, codec.dumps(seen))
        seen, news = look(seen, when, judged)
        assert [(notice.kind, notice.evaluation or notice.worker) for notice in news] == expected


@given(tries=st.integers(1, 10_000))
def test_pauses_grow_up_to_the_longest(tries: int) -> None:
    assert core.FIRST_PAUSE <= core.pause(tries) <= core.pause(tries + 1) <= core.LONGEST_PAUSE


# Where it goes.


@dataclass
class Hook:
    """A receiver of webhooks."""

    url: str
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str] = field(default_factory=list)
    #: Statuses of the next answers; 200 after them.
    answers: list[int] = field(default_factory=list)
    #: While set, it takes requests and answers none.
    hangs: threading.Event = field(default_factory=threading.Event)
    over: threading.Event = field(default_factory=threading.Event)


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    made = Hook(url="")

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if made.hangs.is_set():
                made.over.wait(30)
                return
            status = made.answers.pop(0) if made.answers else 200
            if status < 300:
                made.bodies.append(body)
                made.keys.append(self.headers["Idempotency-Key"])
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    server.daemon_threads = True
    made.url = f"http://127.0.0.1:{server.server_port}/hooks/{SECRET}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    yield made
    made.over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def told(site: Site, hook: Hook) -> Site:
    """A site that tells its hook, and judges silence at once."""
    health.mark_recovered(site.db)
    return replace(site, config=replace(site.config, notify_url=hook.url, grace_seconds=0.001))


def turn(notifier: Notifier) -> None:
    """One round without the wait after it."""
    notifier._stop = threading.Event()
    waited = notifier._stop
    waited.wait = lambda timeout=None: True  # type: ignore[method-assign,assignment]
    notifier.round()


def started(site: Site) -> Notifier:
    """A notifier that has looked once."""
    notifier = Notifier(site, threading.Event())
    turn(notifier)
    return notifier


def test_finished_paused_and_lost_arrive_at_the_webhook(told: Site, hook: Hook) -> None:
    engine.register(told, "w1")
    notifier = started(told)
    assert hook.bodies == []
    evaluation = engine.submit(told, {"name": "nightly", "tasks": 1, "seconds": 0})
    turn(notifier)
    store.move(told.db, evaluation.id, EvaluationState.PAUSED, "most runs fail: 0xBEEF")
    turn(notifier)
    turn(notifier)
    engine.beat(told, "w1", 0.001)
    eventually(lambda: workers.get(told.db, "w1").heartbeat is None)
    turn(notifier)
    store.move(told.db, evaluation.id, EvaluationState.CANCELLING)
    store.move(told.db, evaluation.id, EvaluationState.MERGING)
    store.move(told.db, evaluation.id, EvaluationState.CANCELLED)
    turn(notifier)
    turn(notifier)
    assert [body["kind"] for body in hook.bodies] == ["paused", "worker_lost", "finished"]
    paused, lost, finished = hook.bodies
    assert paused["evaluation"] == finished["evaluation"] == evaluation.id
    assert paused["text"].startswith("nightly is paused\n")
    assert "most runs fail: 0xBEEF" in paused["text"]
    assert lost["worker"] == "w1"
    assert finished["state"] == "cancelled"
    assert hook.keys == [body["id"] for body in hook.bodies]
    assert len(set(hook.keys)) == 3
    assert (told.shared.notices.stat().st_mode & 0o777) == 0o600
    assert SECRET not in told.shared.notices.read_text()


def test_a_restart_sends_nothing_twice_and_what_waits_still(told: Site, hook: Hook) -> None:
    engine.register(told, "w1")
    notifier = started(told)
    one, two = (engine.submit(told, {"name": name, "tasks": 1, "seconds": 0}) for name in ("one", "two"))
    turn(notifier)
    store.move(told.db, one.id, EvaluationState.PAUSED)
    turn(notifier)
    hook.answers = [503]
    store.move(told.db, two.id, EvaluationState.PAUSED)
    turn(notifier)
    assert [body["name"] for body in hook.bodies] == ["one"]
    again = Notifier(told, threading.Event())
    again._ledger = replace(again._ledger, outgoing=tuple(replace(item, due=0.0) for item in again._ledger.outgoing))
    turn(again)
    turn(again)
    turn(Notifier(told, threading.Event()))
    assert [body["name"] for body in hook.bodies] == ["one", "two"]


def test_a_crash_before_it_was_sent_loses_nothing(told: Site, hook: Hook) -> None:
    engine.register(told, "w1")

    def dies(notice: Notice) -> None:
        raise SystemExit

    evaluation = engine.submit(told, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = Notifier(told, threading.Event(), {"webhook": dies})
    turn(notifier)
    store.move(told.db, evaluation.id, EvaluationState.PAUSED)
    with pytest.raises(SystemExit):
        turn(notifier)
    turn(Notifier(told, threading.Event()))
    assert [body["kind"] for body in hook.bodies] == ["paused"]


def test_it_is_tried_again_with_growing_pauses_and_let_go_in_the_end(
    told: Site, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now, tried = [1e9], []
    monkeypatch.setattr("aeo.notices.time.time", lambda: now[0])

    def away(notice: Notice) -> None:
        tried.append(now[0] - 1e9)
        raise Undelivered("it is away")

    engine.register(told, "w1")
    evaluation = engine.submit(told, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = Notifier(told, threading.Event(), {"webhook": away})
    turn(notifier)
    store.move(told.db, evaluation.id, EvaluationState.PAUSED)
    turn(notifier)
    while notifier._ledger.outgoing:
        # As a round every few minutes; the first pauses are shorter.
        now[0] += 60
        notifier._send()
    gaps = [after - before for before, after in pairwise(tried)]
    assert gaps == sorted(gaps)
    assert gaps[-1] <= core.LONGEST_PAUSE + 60
    assert core.GIVEN_UP_SECONDS < tried[-1] < core.GIVEN_UP_SECONDS + core.LONGEST_PAUSE + 120
    assert len(tried) < 45
    assert [record.levelname for record in caplog.records if "is not told" in record.message][-1] == "ERROR"


def test_one_channel_that_fails_does_not_hold_up_the_other(told: Site) -> None:
    arrived = []

    def away(notice: Notice) -> None:
        raise RuntimeError("a fault of our own")

    engine.register(told, "w1")
    evaluation = engine.submit(told, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = Notifier(told, threading.Event(), {"webhook": away, "email": arrived.append})
    turn(notifier)
    store.move(told.db, evaluation.id, EvaluationState.PAUSED)
    turn(notifier)
    assert [notice.kind for notice in arrived] == [Kind.PAUSED]
    assert [item.channel for item in notifier._ledger.outgoing] == ["webhook"]


@pytest.mark.parametrize(("status", "permanent"), [(500, False), (503, False), (429, False), (302, False), (410, True)])
def test_what_the_webhook_answers_decides(hook: Hook, status: int, permanent: bool) -> None:
    hook.answers = [status]
    with pytest.raises(Undelivered, match=str(status)) as caught:
        channels.configured(Config(notify_url=hook.url))["webhook"](a_notice())
    assert caught.value.permanent is permanent
    assert hook.bodies == []


def test_no_failure_shows_the_address(told: Site, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="aeo")
    gone = f"http://127.0.0.1:{free_port()}/{SECRET}"
    mail = f"smtp://user:{SECRET}@127.0.0.1:{free_port()}"
    config = replace(told.config, notify_url=gone, notify_email=("a@b.example",), smtp_url=mail)
    assert SECRET not in repr(config)
    site = replace(told, config=config)
    engine.register(site, "w1")
    evaluation = engine.submit(site, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = started(site)
    store.move(site.db, evaluation.id, EvaluationState.PAUSED)
    turn(notifier)
    assert "does not answer" in caplog.text
    assert "the mail server does not take it" in caplog.text
    assert SECRET not in caplog.text
    assert SECRET not in site.shared.notices.read_text()


def test_known_secrets_are_taken_out_of_reasons(told: Site, hook: Hook, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", "sk-of-a-model-0123456789")
    site = replace(told, config=replace(told.config, secret_names=("MODEL_KEY",)))
    engine.register(site, "w1")
    evaluation = engine.submit(site, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = started(site)
    store.move(site.db, evaluation.id, EvaluationState.PAUSED, "key sk-of-a-model-0123456789 was refused")
    turn(notifier)
    assert "key ${MODEL_KEY} was refused" in hook.bodies[0]["text"]


def test_a_store_that_comes_back_makes_no_worker_lost(told: Site, hook: Hook) -> None:
    site = replace(told, config=replace(told.config, grace_seconds=60))
    engine.register(site, "w1")
    notifier = started(site)
    engine.beat(site, "w1", 0.001)
    eventually(lambda: workers.get(site.db, "w1").heartbeat is None)
    # The grace is not over since this one began to look, nor since the store was brought in line.
    turn(notifier)
    site.db.client.delete("aeo:recovered")
    turn(notifier)
    assert hook.bodies == []


@pytest.mark.parametrize("text", ["", "{", '{"outgoing": 3}'])
def test_a_damaged_file_begins_anew(text: str, told: Site, hook: Hook) -> None:
    told.shared.notices.write_text(text)
    turn(Notifier(told, threading.Event()))
    assert hook.bodies == []
    assert codec.loads(notices.Ledger, told.shared.notices.read_text()).seen is not None


def test_a_receiver_that_hangs_holds_up_neither_evaluation_nor_end(told: Site, hook: Hook, tmp_path: Path) -> None:
    hook.hangs.set()
    site = replace(told, config=replace(told.config, grace_seconds=60))
    engine.register(site, "w1")
    Notifier(site, threading.Event())._look()
    evaluation = engine.submit(site, {"name": "one", "tasks": 2, "seconds": 0})
    with engine.running(site, tmp_path, "w1"):
        status = engine.closed(site, evaluation.id)
        eventually(lambda: codec.loads(notices.Ledger, site.shared.notices.read_text()).outgoing)
        begun = monotonic()
    assert monotonic() - begun < 8
    assert status.state is EvaluationState.SUCCEEDED
    hook.hangs.clear()
    turn(Notifier(site, threading.Event()))
    eventually(lambda: [body["state"] for body in hook.bodies] == ["succeeded"])


def test_a_worker_beside_the_controller_gets_no_address(tmp_path: Path) -> None:
    parts: list[Part] = []
    crew = SimpleNamespace(start=parts.append)
    config = Config(notify_url=f"http://h/{SECRET}", smtp_url=f"smtp://u:{SECRET}@h", auth_token="t")
    running = Controller(config=config, shared=Shared(tmp_path, tmp_path), crew=crew, url="http://c")  # type: ignore[arg-type]
    running.add_worker("w1", 1)
    assert SECRET not in str(variables(parts[0].config))


# By e-mail.


@dataclass
class Mailbox:
    """What a mail server took."""

    port: int
    letters: list[tuple[list[str], Message]] = field(default_factory=list)
    logins: list[tuple[bytes, bytes]] = field(default_factory=list)
    #: Replies to the next letters; it takes those after them.
    replies: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    async def handle_RCPT(self, _s: Any, _c: Any, envelope: Envelope, address: str, _o: Any) -> str:  # noqa: N802
        if address in self.refused:
            return "550 no such user"
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: Any, _session: Any, envelope: Envelope) -> str:  # noqa: N802
        if self.replies:
            return self.replies.pop(0)
        assert isinstance(envelope.content, bytes)
        self.letters.append((envelope.rcpt_tos, message_from_bytes(envelope.content)))
        return "250 OK"


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    box = Mailbox(port=free_port())

    def login(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        box.logins.append((data.login, data.password))
        return AuthResult(success=data.password == b"p@ss", handled=False)

    controller = MailServer(
        box, hostname="127.0.0.1", port=box.port, authenticator=login, auth_require_tls=False, ready_timeout=20
    )
    controller.start()
    yield box
    controller.stop()


def a_notice(**changes: Any) -> Notice:
    made = Notice(
        kind=Kind.FINISHED, at=NOW, subject="nächtlich succeeded", text="Trials: 5 of 5\nReason: ü", id="abc", name="n"
    )
    return replace(made, **changes)


def mail(box: Mailbox, **changes: Any) -> channels.Channel:
    fields = {
        "notify_email": ("ann@example.org", "bob@example.org"),
        "notify_from": "aeo@example.org",
        "smtp_url": f"smtp://127.0.0.1:{box.port}",
        **changes,
    }
    return channels.configured(Config(**fields))["email"]


def test_a_letter_arrives_whole(mailbox: Mailbox) -> None:
    mail(mailbox, smtp_url=f"smtp://us%40er:p%40ss@127.0.0.1:{mailbox.port}")(a_notice())
    [(to, letter)] = mailbox.letters
    assert to == ["ann@example.org", "bob@example.org"]
    assert mailbox.logins == [(b"us@er", b"p@ss")]
    assert letter["Message-ID"] == "<abc@aeo.invalid>"
    assert letter["From"] == "aeo@example.org"
    payload = letter.get_payload(decode=True)
    assert isinstance(payload, bytes)
    assert payload.decode().splitlines() == ["Trials: 5 of 5", "Reason: ü"]
    assert str(make_header(decode_header(letter["Subject"]))) == "[AEO] nächtlich succeeded"


def test_a_letter_that_is_not_taken_is_tried_again(mailbox: Mailbox) -> None:
    mailbox.replies = ["451 later"]
    send = mail(mailbox)
    with pytest.raises(Undelivered, match="451") as caught:
        send(a_notice())
    assert not caught.value.permanent
    send(a_notice())
    assert len(mailbox.letters) == 1


def test_refused_recipients_are_told_and_the_others_get_it_once(mailbox: Mailbox) -> None:
    mailbox.refused = {"bob@example.org"}
    with pytest.raises(Undelivered, match="1 of the recipients") as caught:
        mail(mailbox)(a_notice())
    assert caught.value.permanent
    assert [to for to, _ in mailbox.letters] == [["ann@example.org"]]
    mailbox.refused = {"ann@example.org", "bob@example.org"}
    with pytest.raises(Undelivered, match="every recipient") as caught:
        mail(mailbox)(a_notice())
    assert caught.value.permanent


def test_a_wrong_password_is_told_without_it(mailbox: Mailbox) -> None:
    with pytest.raises(Undelivered, match="535") as caught:
        mail(mailbox, smtp_url=f"smtp://user:{SECRET}@127.0.0.1:{mailbox.port}")(a_notice())
    assert SECRET not in str(caught.value)
    assert mailbox.letters == []


def test_both_channels_get_a_notice(told: Site, hook: Hook, mailbox: Mailbox) -> None:
    config = replace(
        told.config, notify_email=("ann@example.org",), smtp_url=f"smtp://127.0.0.1:{mailbox.port}", notify_from="a@b.c"
    )
    site = replace(told, config=config)
    engine.register(site, "w1")
    evaluation = engine.submit(site, {"name": "one", "tasks": 1, "seconds": 0})
    notifier = started(site)
    store.move(site.db, evaluation.id, EvaluationState.PAUSED)
    turn(notifier)
    assert [body["kind"] for body in hook.bodies] == ["paused"]
    assert [letter["Subject"] for _, letter in mailbox.letters] == ["[AEO] one is paused"]
    assert notifier._ledger.outgoing == ()


# Settings.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("notify_url", "ftp://example.org"),
        ("notify_url", f"http://[{SECRET}"),
        ("smtp_url", f"http://user:{SECRET}@example.org"),
        ("smtp_url", "smtp://host:99999"),
        ("notify_email", "no address"),
        ("notify_email", "a@example.org\r\nBcc: b@example.org"),
        ("notify_from", "nobody"),
        ("log_format", "xml"),
    ],
)
def test_settings_that_cannot_work_are_named(name: str, value: str) -> None:
    with pytest.raises(InputError, match="--" + name.replace("_", "-")) as caught:
        from_environment({f"AEO_{name.upper()}": value})
    assert SECRET not in str(caught.value)


def test_nothing_is_told_unless_asked_for() -> None:
    assert not channels.configured(Config())
    read = from_environment({"AEO_NOTIFY_EMAIL": "a@example.org, b@example.org"})
    assert read.notify_email == ("a@example.org", "b@example.org")
