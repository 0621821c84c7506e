"""Fetching ahead of a run: through API, pages and command line, by a worker that has the controller's disk by rsync."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
import time
from collections import namedtuple
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import browsing
import pytest
from click.testing import CliRunner
from engine import register, worker_site
from flask.testing import FlaskClient
from needs import require
from rsync_hosts import PASSWORD, free_port, missing, rsync_daemon
from served import served
from waiting import eventually

from aeo import cleaning, contents, datasets, prefetching, users, workers
from aeo.cli import dataset_prefetch as commands
from aeo.cli import main
from aeo.config import Config
from aeo.core.errors import AeoError, ExecutorFailed, Unavailable
from aeo.core.model import ContentFolder, Plan, PlannedTrial, WorkerState
from aeo.executors import TaskInfo
from aeo.executors.harbor.datasets import HarborDatasets
from aeo.executors.harbor.executor import HarborExecutor
from aeo.executors.supplies import Image, Needed
from aeo.site import Site, WorkerSite, open_site
from aeo.store import access, health, held, prefetches
from aeo.store import workers as worker_store
from aeo.store.connection import connect
from aeo.transfer import move, remote
from aeo.users import Role

TOKEN = "token-of-this-test"
NAMES = ("cut", "git-log", "git-merge", "sort")
HARBOR = {"executors": {"harbor": "0"}}
Usage = namedtuple("Usage", "total used free percent")


def key(name: str) -> str:
    return sha256(name.encode()).hexdigest()


class Supply:
    """Images of a machine that has no engine: each task needs its own, and all one base."""

    def __init__(self, place: Path):
        self.place = place
        self.here: set[str] = set()
        self.brought: list[str] = []
        self.refuses: dict[str, str] = {}
        #: Images that take until the event is set.
        self.slow: dict[str, threading.Event] = {}
        self.at_once = self.most = 0
        self.away = ""
        self.lock = threading.Lock()

    def needed(self, folders: Sequence[Path]) -> Needed:
        if self.away:
            raise Unavailable(self.away)
        assert all((folder / "task.toml").is_file() for folder in folders)
        own = [Image(name=f"hb__{folder.name}", built=True) for folder in folders]
        return Needed(images=(Image(name="base:1"), *own))

    def places(self) -> Sequence[Path]:
        return (self.place,)

    def is_here(self, image: Image) -> bool:
        return image.name in self.here

    def bring(self, image: Image, stop: threading.Event) -> None:
        with self.lock:
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        try:
            gate = self.slow.get(image.name)
            while gate is not None and not gate.wait(0.01):
                if stop.is_set():
                    raise ExecutorFailed("it was stopped")
            if image.name in self.refuses:
                raise ExecutorFailed(f"could not pull {image.name}: {self.refuses[image.name]}")
            self.here.add(image.name)
            self.brought.append(image.name)
        finally:
            with self.lock:
                self.at_once -= 1


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    require(not missing("rsync"), missing("rsync"))
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN, clean_above=1.0))
    monkeypatch.setattr(HarborDatasets, "tasks", staticmethod(read))
    for where, name, seconds in (
        (commands, "POLL_SECONDS", 0.02),
        (prefetching, "LOOK_SECONDS", 0.02),
        (prefetching, "TICK_SECONDS", 0.02),
        (prefetching, "AGAIN_SECONDS", 0.05),
        (contents, "BRING_SECONDS", 0.0),
    ):
        monkeypatch.setattr(where, name, seconds)
    folder = tmp_path / "mini"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "task.toml").write_text(name * 1000)
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        datasets.add(site.shared, "mini", path=str(folder))
        yield site


def read(path: Path) -> tuple[TaskInfo, ...]:
    found = []
    for folder in sorted(item for item in path.iterdir() if item.is_dir()):
        text = (folder / "task.toml").read_text() if (folder / "task.toml").exists() else ""
        problem = "" if text else "it has no task.toml."
        about = {"content": key(folder.name), "digest": key(text)} if text else {}
        found.append(TaskInfo(name=folder.name, folder=folder.name, problem=problem, **about))
    return tuple(found)


@pytest.fixture
def supply(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Supply:
    made = Supply(tmp_path)
    monkeypatch.setattr(HarborExecutor, "supplies", made)
    return made


@pytest.fixture
def far(controller: Site, tmp_path: Path) -> Iterator[WorkerSite]:
    """A worker that reaches the controller's disk only by an rsync daemon."""
    with rsync_daemon(controller.shared.root, tmp_path / "rsyncd") as daemon:
        yield at(controller, tmp_path, "far", daemon.url)


def at(site: Site, root: Path, id: str, url: str) -> WorkerSite:
    register(site, id, **HARBOR)
    made = worker_site(site, root, id)
    made.local.tasks.mkdir(parents=True)
    config = replace(made.config, transfer_password=PASSWORD)
    return replace(made, config=config, remote=remote.parse(url))


@contextmanager
def fetching(*sites: WorkerSite) -> Iterator[threading.Event]:
    stop = threading.Event()
    threads = [threading.Thread(target=prefetching.keep, args=(site, stop)) for site in sites]
    for thread in threads:
        thread.start()
    try:
        yield stop
    finally:
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()


def aeo(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, ("datasets", *args))
    assert result.exit_code == code, result.output
    return result


def rows(site: Site, name: str = "mini") -> dict[str, datasets.WorkerPrefetch]:
    return {row.worker: row for row in datasets.prefetch.show(site, name).workers}


def ended(site: Site, worker: str = "far") -> datasets.WorkerPrefetch:
    def look() -> datasets.WorkerPrefetch | None:
        row = rows(site).get(worker)
        return row if row and row.state.final else None

    found = eventually(look, 20)
    assert found is not None
    return found


def fetch(site: WorkerSite, name: str) -> Path | None:
    """What a trial of a task does before it runs."""
    content = ContentFolder(digest=key(name), source="", name=name)
    plan = Plan(trials=(), contents=(content,))
    return contents.fetch(site, plan, PlannedTrial(name=name, task=name, content=key(name)))


def test_tasks_and_images_are_there_before_the_run_which_sends_nothing(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    supply.here.add("base:1")
    with fetching(far):
        followed = aeo("prefetch", "mini", "--wait")
    assert "tasks 4 of 4, images 5 of 5" in followed.stderr
    assert re.search(r"far +done +4/4 +5/5 +-", followed.stdout)
    assert sorted(supply.brought) == [f"hb__{name}" for name in NAMES]
    assert {path.parent.name for path in far.local.tasks.glob("*/*/task.toml")} == set(NAMES)
    assert held.which(controller.db, ["far"], [key(name) for name in NAMES])["far"] == {key(name) for name in NAMES}

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("something was sent")

    monkeypatch.setattr(move, "fetch", never)
    assert all(fetch(far, name) == far.local.task(key(name), name) for name in NAMES)
    # Again: nothing is fetched, nothing is built.
    supply.brought.clear()
    with fetching(far):
        again = json.loads(aeo("prefetch", "mini", "--wait", "--json").stdout)["prefetch"]["workers"]
    assert [(row["state"], row["tasks_done"], row["images_done"]) for row in again] == [("done", 4, 5)]
    assert supply.brought == []
    assert "0 of" not in aeo("check", "mini").stdout


def test_only_some_tasks_to_some_workers_without_images(
    controller: Site, far: WorkerSite, supply: Supply, tmp_path: Path
) -> None:
    near = at(controller, tmp_path, "near", str(controller.shared.root))
    register(controller, "stranger", executors={"command": ""})
    register(controller, "paused", **HARBOR)
    worker_store.set_state(controller.db, "paused", WorkerState.PAUSED, "")
    with fetching(far, near):
        aeo("prefetch", "mini", "--task", "git-*", "--worker", "far", "--no-images", "--wait")
        assert set(rows(controller)) == {"far"}
        assert {path.parent.name for path in far.local.tasks.glob("*/*/task.toml")} == {"git-log", "git-merge"}
        assert not list(near.local.tasks.glob("*"))
        assert supply.brought == []
        # All willing ones: not the paused one, nor one without the executor.
        aeo("prefetch", "mini", "--wait")
        assert set(rows(controller)) == {"far", "near"}
    for arguments, words in (
        (("nothing",), "no dataset"),
        (("mini", "--worker", "nobody"), "no worker 'nobody'"),
        (("mini", "--worker", "stranger"), "cannot run the executor"),
        (("mini", "--task", "svn-*"), "none of the 4 tasks matches"),
        (("terminal-bench-2",), "aeo datasets download terminal-bench-2"),
        (("mini", "--show", "--cancel"), "--show"),
    ):
        assert words in aeo("prefetch", *arguments, code=2).stderr


def test_an_image_that_cannot_be_had_is_named_for_its_worker(controller: Site, far: WorkerSite, supply: Supply) -> None:
    supply.refuses = {"base:1": "no such host"}
    with fetching(far):
        failed = aeo("prefetch", "mini", "--wait", code=1)
        assert "far: image base:1: could not pull base:1: no such host" in failed.stdout
        assert (ended(controller).images_done, ended(controller).failed) == (4, 1)
        supply.away = "docker is not installed"
        assert "far: images: docker is not installed" in aeo("prefetch", "mini", "--wait", code=1).stdout
        supply.away, supply.refuses = "", {}
        aeo("prefetch", "mini", "--wait")
    assert supply.most <= prefetching.IMAGES_ALONE
    assert aeo("prefetch", "mini", "--show").stdout.split()[5:8] == ["far", "done", "4/4"]


def test_beside_trials_one_image_at_a_time_and_none_while_memory_is_short(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefetching, "messages_running", lambda: ("one",))
    short = ["memory is short"]
    crowded = replace(far, crowded=lambda: short[0])
    supply.slow = {f"hb__{name}": threading.Event() for name in NAMES}
    with fetching(crowded):
        datasets.prefetch.start(controller, "mini")
        eventually(lambda: "memory is short" in rows(controller)["far"].note)
        assert supply.at_once == 0
        short[0] = ""
        for name in NAMES:
            supply.slow[f"hb__{name}"].set()
        assert ended(controller).state is prefetches.PrefetchState.DONE
    assert supply.most == 1


def test_ctrl_c_stops_it_and_the_same_command_goes_on(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    supply.slow = {"hb__sort": threading.Event()}

    def interrupt(_seconds: float) -> None:
        if supply.at_once and len(supply.brought) == 4:
            raise KeyboardInterrupt
        real(0.01)

    real = time.sleep
    with fetching(far):
        with monkeypatch.context() as patch:
            patch.setattr(commands.time, "sleep", interrupt)
            stopped = aeo("prefetch", "mini", "--wait", code=130)
        assert "Stopped. What came stays" in stopped.stderr
        assert ended(controller).state is prefetches.PrefetchState.CANCELLED
        eventually(lambda: supply.at_once == 0)
        supply.slow["hb__sort"].set()
        aeo("prefetch", "mini", "--wait")
    assert len(supply.brought) == 5
    assert not list(far.local.tasks.glob("*/.*.part"))


def test_a_worker_that_was_stopped_goes_on_by_itself(controller: Site, far: WorkerSite, supply: Supply) -> None:
    supply.slow = {"hb__sort": threading.Event()}
    with fetching(far):
        datasets.prefetch.start(controller, "mini")
        eventually(lambda: len(supply.brought) == 4)
    row = rows(controller)["far"]
    assert (row.state, row.tasks_done) == (prefetches.PrefetchState.RUNNING, 4)
    supply.slow["hb__sort"].set()
    with fetching(far):
        assert ended(controller).state is prefetches.PrefetchState.DONE
    assert len(supply.brought) == 5


def test_a_controller_out_of_reach_is_waited_for(controller: Site, supply: Supply, tmp_path: Path) -> None:
    port = free_port()
    away = at(controller, tmp_path, "far", f"rsync://aeo@127.0.0.1:{port}/aeo")
    with fetching(away):
        datasets.prefetch.start(controller, "mini")
        eventually(lambda: "trying again" in rows(controller)["far"].note, 20)
        with rsync_daemon(controller.shared.root, tmp_path / "rsyncd", port=port):
            assert ended(controller).state is prefetches.PrefetchState.DONE


def test_a_disk_without_room_takes_nothing_and_says_what_is_missing(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    tight = replace(far, config=replace(far.config, clean_above=0.85))
    gib = 1024 * workers.MIB
    monkeypatch.setattr(prefetching.psutil, "disk_usage", lambda _path: Usage(100 * gib, 90 * gib, 10 * gib, 90.0))
    with fetching(tight):
        failed = aeo("prefetch", "mini", "--wait", code=1)
    assert "1 MiB to come, 15360 MiB have to stay free and 10240 MiB are; 5121 MiB are missing" in failed.stdout
    assert not list(far.local.tasks.glob("*/*"))
    assert supply.brought == []


def test_what_was_fetched_ahead_outlives_a_clean_up_for_a_day_and_gives_way_to_a_full_disk(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    health.mark_recovered(controller.db)
    with fetching(far):
        datasets.prefetch.start(controller, "mini")
        ended(controller)
    used = fetch(far, "sort")
    assert used is not None
    # Clean-up by age, where everything unused for a quarter of an hour goes.
    for name, hours in (("cut", 2), ("sort", 2), ("git-log", 30)):
        os.utime(far.local.tasks / key(name), (time.time() - hours * 3600,) * 2)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    eager = replace(far, config=replace(far.config, clean_above=1e-9, clean_days=0.01))
    assert set(cleaning.clean(eager).tasks) == {key("sort"), key("git-log")}
    assert fetch(far, "git-merge") == far.local.task(key("git-merge"), "git-merge")
    assert prefetching.give_way(far) == ()
    monkeypatch.setattr(workers, "low_disk", lambda _root: "disk nearly full")
    # What a trial has used is not for this to take.
    assert prefetching.give_way(far) == (key("cut"),)
    assert {path.name for path in far.local.tasks.iterdir()} == {key("git-merge")}


def test_what_a_trial_takes_while_it_is_fetched_is_not_removed_under_it(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = threading.Event(), threading.Event()
    real = move.fetch

    def slowly(*args: Any, **more: Any) -> None:
        begun.set()
        assert go.wait(20)
        real(*args, **more)

    monkeypatch.setattr(contents.move, "fetch", slowly)
    monkeypatch.setattr(workers, "low_disk", lambda _root: "disk nearly full")
    with fetching(far):
        datasets.prefetch.start(controller, "mini", tasks=["sort"], images=False)
        assert begun.wait(20)
        trial = threading.Thread(target=fetch, args=(far, "sort"))
        trial.start()
        eventually(lambda: not far.local.ahead_mark(key("sort")).exists(), 20)
        go.set()
        trial.join(20)
        assert ended(controller).state is prefetches.PrefetchState.DONE
    assert prefetching.give_way(far) == ()
    assert far.local.task(key("sort"), "sort").is_dir()


def test_an_order_that_breaks_is_ended_and_holds_up_none(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = prefetching._bring_folders

    def broken(work: Any, folders: Any) -> None:
        if len(folders) == 1:
            raise PermissionError("not this user's")
        real(work, folders)

    monkeypatch.setattr(prefetching, "_bring_folders", broken)
    datasets.prefetch.start(controller, "mini", tasks=["sort"])
    with fetching(far):
        row = ended(controller)
        assert row.state is prefetches.PrefetchState.FAILED
        assert row.failures[0].why == "PermissionError: not this user's"
        assert not prefetches.open_orders(controller.db, "far")


def test_room_is_looked_at_while_an_order_runs(
    controller: Site, far: WorkerSite, supply: Supply, monkeypatch: pytest.MonkeyPatch
) -> None:
    ways: list[str] = []
    monkeypatch.setattr(prefetching, "ROOM_SECONDS", 0.0)
    monkeypatch.setattr(prefetching, "give_way", lambda site: ways.append(threading.current_thread().name))
    answers = iter([""])
    monkeypatch.setattr(prefetching, "lacking", lambda *_: next(answers, "no room"))
    stop = threading.Event()
    datasets.prefetch.start(controller, "mini", images=False)
    (order,) = prefetches.open_orders(controller.db, "far")
    progress = prefetching.carry_out(far, order, stop)
    assert (progress.tasks_done, progress.failed, progress.failures[0].why) == (0, 4, "no room")
    ways.clear()
    prefetching._Work(far, order, stop).tick()
    assert ways == ["MainThread"]


def test_a_withdrawn_order_is_over_whoever_was_at_it(controller: Site, far: WorkerSite, supply: Supply) -> None:
    datasets.prefetch.start(controller, "mini")
    (order,) = prefetches.open_orders(controller.db, "far")
    running = prefetches.Progress(order=order.id, state=prefetches.PrefetchState.RUNNING, tasks_total=4)
    prefetches.tell(controller.db, "far", "mini", running)
    assert datasets.prefetch.show(controller, "mini").running
    datasets.prefetch.cancel(controller, "mini")
    # It lives on, but died in between and does not know of it.
    assert rows(controller)["far"].state is prefetches.PrefetchState.CANCELLED
    assert not datasets.prefetch.show(controller, "mini").running


def test_an_order_anew_leaves_nothing_of_the_former(controller: Site, far: WorkerSite, supply: Supply) -> None:
    for _ in range(2):
        datasets.prefetch.start(controller, "mini")
    assert len(controller.db.client.keys("*:order:*")) == 1


def test_a_lost_worker_is_told_apart_and_does_not_hold_up(controller: Site, supply: Supply, tmp_path: Path) -> None:
    gone = at(controller, tmp_path, "gone", str(controller.shared.root))
    datasets.prefetch.start(controller, "mini", workers=["gone"], by="ada")
    controller.db.client.delete("aeo:w:gone:beat")
    found = datasets.prefetch.show(controller, "mini")
    assert (found.running, found.by, found.workers[0].alive) == (False, "ada", False)
    assert "waiting (lost)" in aeo("prefetch", "mini", "--show", code=1).stdout
    # Back, it does what it was asked for.
    with fetching(gone):
        assert ended(controller, "gone").state is prefetches.PrefetchState.DONE


def test_everything_is_below_the_workers_own_keys(controller: Site, far: WorkerSite, supply: Supply) -> None:
    before = set(controller.db.client.keys("*"))
    datasets.prefetch.start(controller, "mini")
    with fetching(far):
        ended(controller)
    new = set(controller.db.client.keys("*")) - before
    assert new
    assert all(name.startswith("aeo:w:far:") for name in new)
    assert all(controller.db.client.ttl(name) > 0 for name in new)


def test_a_workers_own_user_may_do_all_of_it_and_nothing_of_anothers(
    controller: Site, far: WorkerSite, supply: Supply
) -> None:
    access.put(controller.db, "far", sha256(b"its-password").hexdigest(), ())
    parts = urlsplit(controller.config.broker_url)
    own = connect(f"redis://{access.user_of('far')}:its-password@{parts.hostname}:{parts.port}")
    progress = prefetches.Progress(order="x", state=prefetches.PrefetchState.DONE)
    try:
        datasets.prefetch.start(controller, "mini")
        with fetching(replace(far, db=own)):
            assert ended(controller).state is prefetches.PrefetchState.DONE
        for refused in (
            lambda: prefetches.open_orders(own, "other"),
            lambda: prefetches.tell(own, "other", "mini", progress),
        ):
            with pytest.raises(AeoError):
                refused()
    finally:
        own.close()
        access.drop(controller.db, "far")


# Check


def test_a_check_names_what_changed_is_missing_new_and_broken(controller: Site, far: WorkerSite) -> None:
    folder = Path(datasets.get(controller.shared, "mini").path)
    sound = aeo("check", "mini").stdout
    assert "mini: sound, 4 tasks" in sound
    assert "on far (online): 0 of 4" in sound
    cut = folder / "cut" / "task.toml"
    before = cut.stat()
    cut.write_text("x" * before.st_size)
    # As bits that rot, it has kept size and time.
    os.utime(cut, ns=(before.st_atime_ns, before.st_mtime_ns))
    shutil.rmtree(folder / "sort")
    shutil.copytree(folder / "git-log", folder / "new")
    (folder / "empty").mkdir()
    assert fetch_published(controller, far, "git-log")
    report = json.loads(aeo("check", "mini", "--json", code=1).stdout)["reports"][0]
    assert report["recorded"] == {"changed": ["cut"], "missing": ["sort"], "added": ["empty", "new"]}
    assert report["broken"] == [{"name": "empty", "problem": "it has no task.toml."}]
    assert report["workers"] == [
        {"worker": "far", "state": "online", "held": 1, "missing": ["cut", "git-merge", "new"]}
    ]
    said = aeo("check", code=1).stdout
    for words in ("changed (since", "cut", "missing (since", "cannot be run: empty: it has no", "lacks cut, git-merge"):
        assert words in said
    assert "terminal-bench-2: not on the controller" in said
    shutil.rmtree(folder / "empty")
    assert "sound" in aeo("check", "mini", "--accept").stdout
    assert "sound" in aeo("check", "mini").stdout
    assert "no dataset" in aeo("check", "nothing", code=2).stderr
    assert "not on the controller" in aeo("check", "terminal-bench-2", code=1).stdout
    assert "--accept" in aeo("check", "--accept", code=2).stderr


def fetch_published(site: Site, worker: WorkerSite, name: str) -> Path | None:
    source = Path(datasets.get(site.shared, "mini").path) / name
    contents.publish(site.shared, ContentFolder(digest=key(name), source=str(source), name=name))
    return fetch(worker, name)


def test_a_check_compares_with_what_the_registry_listed(controller: Site, tmp_path: Path) -> None:
    folder = controller.shared.dataset("terminal-bench-2")
    shutil.copytree(tmp_path / "mini", folder)
    known = aeo("check", "terminal-bench-2", code=1).stdout
    assert "4 tasks are here, 89 are listed" in known
    tasks = dict.fromkeys(NAMES, "") | {"git-log": key("git-log" * 1000), "cut": "f" * 64, "gone": ""}
    (folder / "dataset.json").write_text(json.dumps({"name": "x", "metrics": [], "tasks": tasks}))
    report = json.loads(aeo("check", "terminal-bench-2", "--json", code=1).stdout)["reports"][0]
    assert report["listed_by"] == "its registry, at the download"
    assert report["listed"] == {"changed": ["cut"], "missing": ["gone"], "added": []}
    assert report["recorded"] == {"changed": [], "missing": [], "added": []}


# Pages and roles


def browser(site: Site, token: str = TOKEN) -> FlaskClient:
    return browsing.browser(site, token)


def send(client: FlaskClient, page: str, /, **form: str) -> tuple[int, str]:
    answer = browsing.post(client, page, **form)
    return answer.status_code, answer.text


def test_the_page_starts_it_and_shows_it_live(controller: Site, far: WorkerSite, supply: Supply) -> None:
    member = browser(controller, users.add(controller.shared, "mia", Role.MEMBER))
    page = member.get("/datasets/mini").text
    assert "Prefetch to workers" in page
    assert "part=dataset_prefetch" not in page
    supply.slow = {"hb__sort": threading.Event()}
    supply.refuses = {"base:1": "no such host"}
    status, _ = send(member, "/datasets/mini/prefetch", do="prefetch", workers="far", images="1")
    assert status == 303
    part = member.get("/datasets/mini?part=dataset_prefetch")
    assert (part.status_code, "part=dataset_prefetch" in part.text) == (200, True)
    assert "waits" in part.text
    with fetching(far):
        eventually(lambda: "3/5" in member.get("/datasets/mini?part=dataset_prefetch").text, 20)
        supply.slow["hb__sort"].set()
        eventually(lambda: member.get("/datasets/mini?part=dataset_prefetch").status_code == 286, 20)
        # Who has which task stands elsewhere on the page.
        assert member.get("/datasets/mini?part=dataset_prefetch").headers["HX-Refresh"] == "true"
    text = member.get("/datasets/mini").text
    for words in ("something is missing", "4/4", "4/5", "base:1", "no such host", "by mia"):
        assert words in text
    assert send(member, "/datasets/mini/prefetch", do="cancel")[0] == 303
    assert send(member, "/datasets/mini/prefetch", do="prefetch", tasks="svn-*")[0] == 422
    assert send(member, "/datasets/mini/prefetch", do="prefetch", workers="nobody")[0] == 404
    assert send(member, "/datasets/nothing/prefetch", do="prefetch")[0] == 404
    assert send(member, "/datasets/mini/prefetch", do="other")[0] == 422
    viewer = browser(controller, users.add(controller.shared, "vic", Role.VIEWER))
    assert (
        '<form class="line start" method="post" action="/datasets/mini/prefetch"'
        not in viewer.get("/datasets/mini").text
    )
    assert send(viewer, "/datasets/mini/prefetch", do="prefetch")[0] == 403


def test_who_only_looks_has_no_files_read(controller: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AEO_TOKEN", users.add(controller.shared, "vic", Role.VIEWER))
    assert "needs a member" in aeo("check", "mini", code=2).stderr
    assert "needs a member" in aeo("check", code=2).stderr
    monkeypatch.setenv("AEO_TOKEN", users.add(controller.shared, "mia", Role.MEMBER))
    assert "sound" in aeo("check", "mini").stdout


def test_a_look_at_a_dataset_does_not_fail_for_what_cannot_be_recorded(
    controller: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(datasets.checking.folders, "write", full)
    assert datasets.checking.check(controller, "mini").verdict is not datasets.checking.Verdict.FAULTY
    with pytest.raises(OSError, match="No space"):
        datasets.checking.accept(controller, "mini")
