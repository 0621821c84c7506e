"""What a bad network does: workers on hosts of their own behind `aeo tunnel`, and lines that are late or break."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import ExitStack

import harbor_tasks as tasks
import pytest
from chaos import hosts as on_hosts
from chaos import proxy
from chaos.conftest import Judge
from chaos.hosts import Hosts, Net
from chaos.proxy import Proxy
from chaos.stage import CROWDED, GRACE, LEASE, PATIENCE, Stage
from needs import require
from waiting import eventually

UNAWARE = "what is cut off runs on; its lease is void when the line is back, and the first result counts"


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hosts]:
    require(not on_hosts.missing(), on_hosts.missing())
    with Net("a", "b") as net:
        made = None
        try:
            made = Hosts(tmp_path_factory.mktemp("hosts"), net)
            yield made
        finally:
            if made is not None:
                made.destroy()


@pytest.fixture
def far(hosts: Hosts, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Two workers, each behind a tunnel."""
    for worker in hosts.net.addresses:
        hosts.net.heal(worker)
    hosts.ready("a", "b")
    yield hosts
    for path in sorted(hosts.folder.glob("*.log")):
        print(f"== {path.name}\n{path.read_text('utf-8', 'replace')[-2000:]}")  # noqa: T201


def test_over_hosts(far: Hosts, judge: Judge) -> None:
    run = far.submit(trials=16, seconds=0.5)
    run.strike()
    assert run.closed() == "succeeded"
    judge(run, "none: two hosts behind tunnels", seconds=None, note="results by rsync daemon and by ssh")
    assert {event["worker"] for event in run.of("committed")} == {"a", "b"}


def test_harbor_over_hosts(far: Hosts, judge: Judge) -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    tasks.passing(far.folder / "set" / "passing")
    config = {"n_attempts": 4, "environment": dict(tasks.HOST), "datasets": [{"path": str(far.folder / "set")}]}
    run = far.submit("harbor", **config)
    run.strike()
    assert run.closed() == "succeeded"
    judge(run, "none: Harbor on two hosts behind tunnels", seconds=None)
    assert {event["worker"] for event in run.of("committed")} == {"a", "b"}
    for worker in ("a", "b"):
        assert list((far.folder / worker).glob("tasks/*/*/task.toml"))


def test_cable_out_for_less_than_the_lease(far: Hosts, judge: Judge) -> None:
    run = far.submit(trials=16, seconds=1.0).until_running("a", "b", count=2)
    before = len(run.results())
    run.strike()
    far.net.cut("a")
    run.until(lambda: len(run.results()) >= before + 4)
    far.net.heal("a")
    assert run.closed() == "succeeded"
    judge(run, "a host cut off for less than the lease", seconds=run.since(["committed"], worker="a"))
    assert not run.of("requeued")


def test_cable_out_for_longer_than_the_grace(far: Hosts, judge: Judge) -> None:
    run = far.submit(trials=32, seconds=1.5).until_running("a", "b", count=2)
    held = run.running("a")
    run.strike()
    far.net.cut("a")
    run.until(lambda: held <= {event["trial"] for event in run.of("requeued")} | run.results())
    run.until(lambda: held <= run.running("b") | run.results())
    far.net.heal("a")
    assert run.closed() == "succeeded"
    row = judge(run, "a host cut off for longer than the grace", seconds=run.rerun(), twice=UNAWARE)
    assert row.run_twice <= len(held)
    assert row.seconds is not None
    assert row.seconds < 2 * on_hosts.GRACE + CROWDED
    far.await_worker("a")
    # Whatever it had finished meanwhile came home too, and waits there no more.
    eventually(lambda: not list((far.folder / "a").glob("outbox/*/*")), PATIENCE, pause=0.2)
    assert far.submit(trials=4, seconds=0.5, workers=["a"]).closed() == "succeeded"


def test_tunnel_breaks(far: Hosts, judge: Judge) -> None:
    run = far.submit(trials=16, seconds=1.0).until_running("a", "b", count=2)
    program = far.tunnels["a"]
    said = program.output.count("is up again")
    run.strike()
    for client in program.family():
        client.kill()
    assert run.closed() == "succeeded"
    judge(run, "kill -9 of a tunnel's ssh", seconds=run.since(["committed"], worker="a"))
    assert program.output.count("is up again") == said + 1
    assert not run.of("requeued")


def test_way_of_results_is_away(far: Hosts, judge: Judge) -> None:
    run = far.submit(trials=12, seconds=0.5).until_running("a", "b")
    run.strike()
    far.stop_rsync()
    run.until(lambda: "push of" in far.workers["a"].output)
    far.start_rsync()
    assert run.closed() == "succeeded"
    judge(run, "rsync daemon down while results wait, then up", seconds=run.since(["committed"], worker="a"))
    assert not run.of("requeued")


def test_way_of_tasks_is_away(far: Hosts, judge: Judge) -> None:
    far.stop_rsync()
    run = far.submit(trials=6, seconds=0.5, workers=["a"])
    run.strike()
    # More often than a worker may fail before it is paused.
    run.until(lambda: far.workers["a"].output.count("could not fetch") >= 4)
    far.start_rsync()
    assert run.closed() == "succeeded"
    judge(run, "rsync daemon down before the first batch, then up", seconds=run.since(["committed"], worker="a"))
    assert not run.of("requeued")
    assert far.api.worker("a")["state"] == "online"


class Lines:
    """A platform whose workers reach it through proxies: one for the API, one for the broker."""

    def __init__(self, stage: Stage, stack: ExitStack):
        self.stage = stage
        self.web = stack.enter_context(proxy.to(stage.port))
        port = int((stage.shared / "redis" / "port").read_text())
        self.broker = stack.enter_context(proxy.to(port))
        password = (stage.shared / "redis" / "password").read_text().strip()
        self.options = ("--controller-url", f"http://127.0.0.1:{self.web.port}")
        self.environment = {"AEO_BROKER_URL": f"redis://:{password}@127.0.0.1:{self.broker.port}/0"}

    @property
    def both(self) -> tuple[Proxy, Proxy]:
        return self.web, self.broker

    def set(self, *, delay: float = 0.0, refuses: bool = False) -> None:
        for line in self.both:
            line.delay, line.refuses = delay, refuses

    def cut(self) -> int:
        return sum(line.cut() for line in self.both)


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lines]:
    with ExitStack() as stack:
        stage = Stage(tmp_path_factory.mktemp("lines"))
        stack.callback(stage.destroy)
        stage.ready()
        yield Lines(stage, stack)


@pytest.fixture
def lines(wired: Lines) -> Iterator[Lines]:
    """Worker a behind the proxies, worker b beside the controller."""
    wired.set()
    for id, options, environment in (("a", wired.options, wired.environment), ("b", (), {})):
        if id not in wired.stage.workers:
            wired.stage.start_worker(id, *options, environment=environment)
    wired.stage.ready("a", "b")
    yield wired
    for path in sorted(wired.stage.folder.glob("*.log")):
        print(f"== {path.name}\n{path.read_text('utf-8', 'replace')[-2000:]}")  # noqa: T201


def test_late_line(lines: Lines, judge: Judge) -> None:
    # "Online" is its heartbeat; that it takes messages is told by the first it took.
    assert lines.stage.submit(trials=1, seconds=0, workers=["a"]).closed() == "succeeded"
    lines.set(delay=0.15)
    run = lines.stage.submit(trials=24, seconds=1.0)
    run.strike()
    assert run.closed() == "succeeded"
    judge(run, "300 ms latency to API and broker", seconds=run.since(["committed"], worker="a"))
    assert not run.of("requeued")
    assert {event["worker"] for event in run.of("committed")} == {"a", "b"}


def test_late_line_from_the_start(lines: Lines, judge: Judge) -> None:
    lines.stage.retire("a")
    lines.set(delay=0.15)
    lines.stage.start_worker("a", *lines.options, environment=lines.environment)
    lines.stage.await_worker("a")
    run = lines.stage.submit(trials=4, seconds=0.5, workers=["a"])
    run.strike()
    assert run.closed() == "succeeded"
    judge(run, "300 ms latency, also at the worker's start", seconds=run.since(["committed"], worker="a"))


def test_connections_dropped_again_and_again(lines: Lines, judge: Judge) -> None:
    chance = random.Random(3)  # the same moments each time, as far as the machine lets them be
    run = lines.stage.submit(trials=40, seconds=0.5).until_running("a")
    run.strike()
    dropped, cuts = 0, 0
    while cuts < 15 and not run.of("closed"):
        before = len(run.of("claimed"))
        # At a moment of work, and not always at the same place in it.
        wanted = before + chance.randint(1, 3)
        eventually(lambda wanted=wanted: len(run.of("claimed")) >= wanted or run.of("closed"), PATIENCE)
        dropped += lines.cut()
        cuts += 1
    assert run.closed() == "succeeded"
    assert dropped >= cuts
    judge(run, f"a worker's connections dropped {cuts} times", seconds=None, note=f"{dropped} connections")


def test_connections_refused_for_less_than_the_lease(lines: Lines, judge: Judge) -> None:
    run = lines.stage.submit(trials=16, seconds=0.5).until_running("a", "b", count=2)
    before = len(run.results())
    run.strike()
    lines.set(refuses=True)
    lines.cut()
    run.until(lambda: len(run.results()) >= before + 2)
    lines.set()
    assert run.closed() == "succeeded"
    judge(run, "API and broker refuse for less than the lease", seconds=run.since(["committed"], worker="a"))
    assert not run.of("requeued")
    assert LEASE < GRACE


def test_connections_refused_for_longer_than_the_grace(lines: Lines, judge: Judge) -> None:
    run = lines.stage.submit(trials=24, seconds=1.0).until_running("a", "b", count=2)
    held = run.running("a")
    run.strike()
    lines.set(refuses=True)
    lines.cut()
    run.until(lambda: held <= {event["trial"] for event in run.of("requeued")} | run.results())
    run.until(lambda: held <= run.running("b") | run.results())
    lines.set()
    assert run.closed() == "succeeded"
    row = judge(run, "API and broker refuse for longer than the grace", seconds=run.rerun(), twice=UNAWARE)
    assert row.run_twice <= len(held)
    lines.stage.await_worker("a")
    assert lines.stage.submit(trials=4, seconds=0.3, workers=["a"]).closed() == "succeeded"
