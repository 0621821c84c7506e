"""How many workers there should be, and that there are so many: decided, then done by a pool of real processes."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import engine
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from programs import TOKEN, Api, free_port
from waiting import eventually

from aeo import scaling
from aeo.cli import main
from aeo.config import Config
from aeo.core.errors import InputError
from aeo.core.scaling import Limits, Member, decide, wanted
from aeo.embedded import children, local
from aeo.embedded.children import Crew, Part
from aeo.embedded.elastic import elastic, scaled
from aeo.scaling import Scaler, WorkerProvisioner
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import workers
from aeo.store.connection import connect

LIMITS = st.builds(
    lambda least, more, slots: Limits(least=least, most=least + more, slots=slots, idle_seconds=60, start_seconds=300),
    least=st.integers(0, 4),
    more=st.integers(0, 6),
    slots=st.integers(1, 5),
)
MEMBERS = st.lists(
    st.builds(
        lambda number, ready, busy, seconds, leaving: Member(
            id=f"w{number}", ready=ready, busy=busy if ready else 0, seconds=seconds, leaving=leaving
        ),
        number=st.integers(0, 99),
        ready=st.booleans(),
        busy=st.integers(0, 5),
        seconds=st.sampled_from([0.0, 59.0, 60.0, 299.0, 301.0]),
        leaving=st.booleans(),
    ),
    max_size=12,
    unique_by=lambda member: member.id,
)
PENDING = st.integers(0, 60)
ELSEWHERE = st.integers(0, 20)


@given(limits=LIMITS, members=MEMBERS, pending=PENDING, free=ELSEWHERE)
def test_the_limits_hold_and_nobody_who_works_is_destroyed(
    limits: Limits, members: list[Member], pending: int, free: int
) -> None:
    change = decide(limits, members, pending=pending, free_elsewhere=free)
    by_id = {member.id: member for member in members}
    gone = [by_id[id] for id in change.destroy]
    assert len(set(change.destroy)) == len(gone)
    for member in gone:
        assert not member.leaving
        assert not member.busy
        dead = not member.ready and member.seconds > limits.start_seconds
        assert dead or (member.ready and member.seconds >= limits.idle_seconds)
    staying = [member for member in members if not member.leaving]
    # Never more than the most by what is created, never fewer than the least by what is destroyed.
    if change.create:
        dead_ones = [member for member in staying if not member.ready and member.seconds > limits.start_seconds]
        assert len(members) - len(dead_ones) + change.create <= limits.most
    idle_gone = [member for member in gone if member.ready]
    if idle_gone:
        assert len(staying) - len(gone) >= limits.least
        assert not change.create


@given(limits=LIMITS, members=MEMBERS, pending=PENDING, free=ELSEWHERE)
def test_what_was_done_needs_no_more(limits: Limits, members: list[Member], pending: int, free: int) -> None:
    change = decide(limits, members, pending=pending, free_elsewhere=free)
    after = [replace(member, leaving=member.leaving or member.id in change.destroy) for member in members]
    after += [Member(id=f"new{number}", ready=False) for number in range(change.create)]
    again = decide(limits, after, pending=pending, free_elsewhere=free)
    assert again.destroy == ()
    assert again.create == 0 or change.destroy


@given(limits=LIMITS, busy=st.integers(0, 20), pending=PENDING, free=ELSEWHERE)
def test_more_work_never_wants_fewer(limits: Limits, busy: int, pending: int, free: int) -> None:
    now = wanted(limits, busy, pending, free)
    assert limits.least <= now <= limits.most
    assert wanted(limits, busy, pending + 1, free) >= now
    assert wanted(limits, busy + 1, pending, free) >= now
    assert wanted(limits, busy, pending, free + 1) <= now


@given(limits=LIMITS, pending=PENDING)
def test_what_is_wanted_is_reached_from_nothing(limits: Limits, pending: int) -> None:
    assert decide(limits, [], pending=pending).create == wanted(limits, 0, pending)


def test_a_short_gap_costs_no_worker_and_the_longest_idle_goes_first() -> None:
    limits = Limits(least=1, most=4, slots=2, idle_seconds=60)
    idle = [Member(id="a", seconds=59), Member(id="b", seconds=80), Member(id="c", seconds=70)]
    assert decide(limits, idle, pending=0).destroy == ("b", "c")
    assert decide(limits, [*idle, Member(id="d", busy=1)], pending=4).destroy == ("b",)
    assert decide(limits, [replace(member, seconds=1) for member in idle], pending=0).destroy == ()


def test_one_that_never_shows_itself_is_replaced() -> None:
    limits = Limits(least=2, most=2, slots=1, start_seconds=300)
    change = decide(limits, [Member(id="a", ready=False, seconds=301), Member(id="b")], pending=0)
    assert (change.create, change.destroy) == (1, ("a",))


# The loop.


@dataclass
class Noted:
    """A provisioner that only notes."""

    site: Site
    made: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    broken: bool = False

    def create(self) -> str:
        if self.broken:
            raise RuntimeError("no quota")
        id = f"p{len(self.made)}"
        self.made.append(id)
        return id

    def destroy(self, id: str) -> None:
        self.ended.append(id)

    def existing(self) -> list[str]:
        return [id for id in self.made if id not in self.ended]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(scaling, "clock", lambda: now[0])
    return now


def test_the_pool_follows_the_work(site: Site, clock: list[float]) -> None:
    noted: WorkerProvisioner = Noted(site)
    assert isinstance(noted, Noted)
    limits = Limits(least=1, most=3, slots=2, idle_seconds=60, start_seconds=300)
    scaler = Scaler(lambda: connect(site.config.broker_url), limits, noted)
    scaler.round()
    assert noted.made == ["p0"]
    engine.register(site, "p0")
    scaler.round()
    assert noted.made == ["p0"]
    evaluation = engine.submit(site, {"name": "n", "tasks": 9, "seconds": 0})
    scaler.round()
    scaler.round()
    assert noted.made == ["p0", "p1", "p2"]
    # A paused one's trials wait for a person, not for a worker.
    store.move(site.db, evaluation.id, store.EvaluationState.PAUSED)
    engine.register(site, "p1")
    engine.register(site, "p2")
    scaler.round()
    clock[0] += 59
    scaler.round()
    assert noted.ended == []
    clock[0] += 1
    scaler.round()
    assert sorted(noted.ended) == ["p0", "p1"]
    # Workers that were there already take theirs first.
    engine.register(site, "other", slots=9)
    store.move(site.db, evaluation.id, store.EvaluationState.RUNNING)
    for id in noted.ended:
        workers.remove(site.db, id)
    scaler.round()
    assert len(noted.made) == 3


def test_a_provisioner_that_fails_is_asked_again(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    noted = Noted(site, broken=True)
    scaler = Scaler(lambda: connect(site.config.broker_url), Limits(least=1, most=1, slots=1), noted)
    stop = threading.Event()
    monkey = pytest.MonkeyPatch()
    with monkey.context() as patch:
        patch.setattr(scaling, "ROUND_SECONDS", 0.01)
        thread = threading.Thread(target=scaler.run, args=(stop,))
        thread.start()
        try:
            eventually(lambda: "no quota" in caplog.text)
            noted.broken = False
            eventually(lambda: noted.made == ["p0"])
        finally:
            stop.set()
            thread.join()


def test_a_plug_in_gets_what_its_workers_need(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[scaling.Offer] = []
    point = EntryPoint(name="cloud", value="tests:none", group=scaling.GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda _: given.append)
    monkeypatch.setattr(scaling, "entry_points", lambda group: [point] if group == scaling.GROUP else [])
    with pytest.raises(InputError, match="Installed: cloud, local"):
        elastic(Limits(least=1, most=2, slots=3), "nobody")
    wanted = elastic(Limits(least=1, most=2, slots=3), "cloud")
    running = SimpleNamespace(url="http://c", config=Config(auth_token=TOKEN))
    wanted.make(running)  # type: ignore[arg-type]
    assert given == [scaling.Offer(controller_url="http://c", auth_token=TOKEN, slots=3)]
    assert TOKEN not in repr(given)


# Real processes.


@pytest.fixture
def crew(monkeypatch: pytest.MonkeyPatch) -> Iterator[Crew]:
    """Children that sleep, or as their role says."""
    popen = children.subprocess.Popen

    def start(arguments: list[str], **options: object) -> object:
        return popen([sys.executable, "-c", arguments[-1]], **options)  # type: ignore[call-overload]

    monkeypatch.setattr(children.subprocess, "Popen", start)
    with Crew() as made:
        yield made


def test_a_child_told_to_end_finishes_and_is_not_started_again(crew: Crew, tmp_path: Path) -> None:
    # It takes a while to end, and a second signal would be noted.
    script = (
        "import signal, sys, time, pathlib\n"
        f"noted = pathlib.Path({str(tmp_path / 'signals')!r})\n"
        "signal.signal(signal.SIGTERM, lambda *_: noted.open('a').write('x'))\n"
        f"pathlib.Path({str(tmp_path / 'up')!r}).touch()\n"
        "while not noted.exists(): time.sleep(0.01)\n"
        "time.sleep(0.5)\n"
    )
    crew.start(Part(name="slow", role=script, config=Config(), patience=None))
    crew.start(Part(name="other", role="import time; time.sleep(60)", config=Config()))
    eventually((tmp_path / "up").exists, 30)
    crew.end("slow")
    crew.end("slow")
    crew.end("nobody")
    assert crew.names() == ["slow", "other"]
    eventually(lambda: crew.names() == ["other"], 30)
    assert (tmp_path / "signals").read_text() == "x"
    assert not crew.failed.is_set()


def test_workers_of_this_machine_come_and_go(tmp_path: Path) -> None:
    port = free_port()
    config = Config(
        shared_root=tmp_path / "data", port=port, auth_token=TOKEN, poll_interval=0.5, stop_seconds=2, slots=1
    )
    with local.controller(config, logs=tmp_path) as running:
        wanted = elastic(Limits(least=1, most=2, slots=1, idle_seconds=1.0))
        api = Api(running.url)
        with scaled(running, wanted), closing(api):
            api.await_worker("elastic-1", timeout=60)
            id = api.submit({"executor": "sleep", "name": "n", "tasks": 6, "seconds": 1.5})
            api.await_worker("elastic-2", timeout=60)
            eventually(lambda: api.status(id)["state"] == "succeeded", 60)
            eventually(lambda: len(running.added()) == 1, 60)
            # It has said goodbye: nobody takes it for lost.
            eventually(lambda: len(api.get("/api/workers")["workers"]) == 1, 30)
            assert api.status(id)["outcomes"]["scored"] == 6


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["--min-workers", "2"], "--max-workers"),
        (["--min-workers", "3", "--max-workers", "2"], "--max-workers"),
        (["--max-workers", "2", "--workers", "1"], "--workers"),
        (["--max-workers", "0"], "--max-workers"),
        (["--max-workers", "2", "--provisioner", "nobody"], "--provisioner"),
    ],
)
def test_limits_that_cannot_be_are_named(arguments: list[str], place: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["up", "--shared-root", str(tmp_path / "x"), *arguments])
    assert result.exit_code == 2
    assert place in result.output
    assert not list(tmp_path.iterdir())
