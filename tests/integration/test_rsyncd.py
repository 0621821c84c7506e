"""The controller's own rsync daemon: what a worker gets through it, and what it is refused, by trying with rsync."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from needs import require
from store_samples import SUBMITTED, a_worker, an_evaluation
from waiting import eventually

from aeo import contents, credentials, grants, outbox, records, workers
from aeo.config import Config
from aeo.core.errors import TransferFailed
from aeo.core.model import Claim, ContentFolder
from aeo.layout import Local, Shared
from aeo.rsyncd import daemon, modules
from aeo.rsyncd.daemon import Daemon
from aeo.rsyncd.modules import Rights
from aeo.site import Site, WorkerSite
from aeo.store import access
from aeo.transfer import move, remote, rsync
from aeo.transfer.remote import Remote

#: rsync's way to say no, one of these.
NO = (
    "auth failed",
    "Unknown module",
    "No such file",
    "excluded",
    "write only",
    "read only",
    "refuse",
    "Too many levels",
)


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    require(rsync.installed(), "rsync")
    root = tmp_path / "root"
    made = Shared(root, root / "jobs")
    for folder in (root, made.tasks, made.evaluations, made.inbox, made.jobs_dir):
        folder.mkdir(mode=0o700)
    for id in ("e1", "e2"):
        source = tmp_path / f"task-{id}"
        (source / "sub").mkdir(parents=True)
        (source / "sub" / "file").write_text(f"task of {id}")
        content = ContentFolder(digest=f"d-{id}", source=str(source), name="task")
        contents.publish(made, content)
        evaluation = an_evaluation(["t"], id=id)
        made.evaluation(id).mkdir()
        records.write(made.evaluation(id), replace(evaluation, plan=replace(evaluation.plan, contents=(content,))))
        made.events(id).write_text("event")
        (made.inbox / id / "other.token").mkdir(parents=True)
        (made.inbox / id / "other.token" / "result.json").write_text("another's")
    for name in ("token", "secrets.json", "credentials.json"):
        (root / name).write_text("secret")
    (made.jobs_dir / "job").mkdir()
    (made.jobs_dir / "job" / "result.json").write_text("result")
    return made


class Kept:
    """The daemon, kept up by a thread as the control process does it."""

    def __init__(self, shared: Shared):
        self.shared, self.stop = shared, threading.Event()
        self.daemon = Daemon(Config(shared_root=shared.root), shared, self.stop)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        eventually(self.pid, 20)
        eventually(self.greets, 20)

    def _run(self) -> None:
        while not self.stop.is_set():
            self.daemon.round()

    def pid(self) -> int:
        """The process that listens; 0 where there is none."""
        found = daemon.running(self.shared)
        return min((process.pid for process in found if process.ppid() == os.getpid()), default=0)

    def greets(self) -> bool:
        return not modules.is_free(modules.port(self.shared))

    def end(self) -> None:
        self.stop.set()
        self._thread.join(20)


@pytest.fixture
def kept(shared: Shared) -> Iterator[Kept]:
    made = Kept(shared)
    try:
        yield made
    finally:
        made.end()


def let_in(shared: Shared) -> dict[str, str]:
    """Workers a, of e1, and b, of both; their secrets."""
    secrets = {id: modules.issue(shared, id) for id in ("a", "b")}
    both = frozenset({"e1", "e2"})
    modules.tell(shared, {"a": Rights(evaluations=frozenset({"e1"})), "b": Rights(evaluations=both)})
    return secrets


def place(shared: Shared, id: str = "a") -> Remote:
    return remote.parse(modules.address(shared, id))


def run(secret: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "RSYNC_PASSWORD": secret, "LC_ALL": "C"}
    return subprocess.run(
        ["rsync", "--timeout=20", *arguments], env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_worker_fetches_what_it_has_a_share_in_and_sends_results(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    address, password = place(shared), secrets["a"]
    move.check(address, password=password)
    move.fetch(address, "tasks/d-e1/task", tmp_path / "task", password=password)
    assert (tmp_path / "task" / "sub" / "file").read_text() == "task of e1"
    names = (records.EVALUATION, records.TRIALS)
    move.fetch(address, "evaluations/e1", tmp_path / "record", only=names, password=password)
    assert {path.name for path in (tmp_path / "record").iterdir()} == set(names)
    for run_name in ("t.1", "t.2", "live-one"):
        (tmp_path / "out" / "e1" / run_name / "sub").mkdir(parents=True)
        (tmp_path / "out" / "e1" / run_name / "sub" / "result").write_text(run_name)
    (tmp_path / "out" / "e1" / "t.1.json").write_text("manifest")
    # The first push of an evaluation finds no folder.
    subprocess.run(["rm", "-r", str(shared.inbox / "e1")], check=True)
    move.push(address, tmp_path / "out/e1/live-one", "inbox/e1/live/t.1", password=password)
    move.push_all(address, tmp_path / "out", ["e1/t.1", "e1/t.2"], "inbox", password=password)
    move.push_all(address, tmp_path / "out", ["e1/t.1.json"], "inbox", password=password)
    came = {str(path.relative_to(shared.inbox)) for path in shared.inbox.rglob("*") if path.is_file()}
    assert came == {
        *("e1/live/t.1/sub/result", "e1/t.1/sub/result", "e1/t.2/sub/result", "e1/t.1.json"),
        "e2/other.token/result.json",
    }


HIDDEN = (
    *("tasks/d-e2/task/sub/file", "tasks/d-e2", "evaluations/e2/evaluation.json", "evaluations/e1/events.jsonl"),
    *("inbox/e1/other.token/result.json", "inbox", "jobs/job/result.json", "token", "secrets.json", "jobs"),
    *("credentials.json", "rsync/secrets", "tasks/../token", "tasks/d-e1/task/../../../token", "../root/token"),
    *("tasks/d-e1/task/link/token", "tasks/d-e1/task/away/file"),
)


def test_what_a_worker_may_not_read(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    # Even where somebody had made links.
    (shared.task("d-e1", "task") / "link").symlink_to(shared.root)
    (shared.task("d-e1", "task") / "away").symlink_to(shared.root / "tasks" / "d-e2" / "task" / "sub")
    name = f"{modules.HOST}:{modules.port(shared)}"
    for number, path in enumerate(HIDDEN):
        for module, options in (("out", ["-r"]), (("out", ["-rL"]), ("out", ["-rl"]), ("in", ["-r"]))[number % 3]):
            done = run(secrets["a"], *options, f"rsync://worker-a@{name}/aeo.{module}.a/{path}", f"{tmp_path}/got/")
            assert done.returncode, done
            assert any(word in done.stderr for word in NO), done.stderr
            assert not list((tmp_path / "got").rglob("*")), done
    done = run(secrets["a"], "-r", f"rsync://worker-a@{name}/aeo.out.a/tasks/d-e1/", f"{tmp_path}/got/")
    assert {str(path.relative_to(tmp_path / "got")) for path in (tmp_path / "got").rglob("*")} == {
        *("task", "task/sub", "task/sub/file")
    }


def test_what_can_be_listed_is_what_may_be_read(kept: Kept, shared: Shared) -> None:
    secrets = let_in(shared)
    name = f"rsync://worker-a@{modules.HOST}:{modules.port(shared)}"
    listed = run(secrets["a"], "-r", "--list-only", f"{name}/aeo.out.a/").stdout.splitlines()
    shown = {line.split()[-1] for line in listed}
    assert shown == {
        *(".", "tasks", "tasks/d-e1", "tasks/d-e1/task", "tasks/d-e1/task/sub", "tasks/d-e1/task/sub/file"),
        *("evaluations", "evaluations/e1", "evaluations/e1/evaluation.json", "evaluations/e1/trials.jsonl"),
    }
    assert run(secrets["a"], f"{name}/").stdout == ""


BARRED = (
    *(
        "tasks/d-e1/task/sub/file",
        "inbox/e1/x",
        "e2/t.1/",
        "e2/other.token/result.json",
        "e9/x",
        "token",
        "new",
        "new/",
    ),
    *("../tasks/d-e1/task/sub/file", "../tasks/d-e9/", "../evaluations/e1/keep", "../jobs/job/result.json", "../away"),
    *("e1/../../token", "e1/../e2/x", "e1/../../rsync/secrets", "../rsync/secrets", "e1/link/file", "e1/link/"),
)


def test_where_a_worker_may_not_write(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    (tmp_path / "file").write_text("mine")
    (shared.inbox / "e1" / "link").symlink_to(shared.tasks)
    before = _all(shared.root)
    places = [*((path, "in") for path in BARRED), ("tasks/d-e1/task/sub/file", "out"), ("inbox/e1/x", "out")]
    for path, module in places:
        url = f"rsync://worker-a@{modules.HOST}:{modules.port(shared)}/aeo.{module}.a/{path}"
        done = run(secrets["a"], "--inplace", str(tmp_path / "file"), url)
        assert done.returncode, done
        assert _all(shared.root) == before


def test_a_tree_for_the_root_leaves_only_what_may_be_there(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    for name in ("e2/other.token/result.json", "e2/new/x", "e1/t.1/x", "e9/x", "tasks/x", "token", "new/x"):
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_text("mine")
    before, issued = _all(shared.root), modules.issued(shared)
    root = f"rsync://worker-a@{modules.HOST}:{modules.port(shared)}/aeo.in.a/"
    for options in (
        ["-r"],
        ["-rR", "--inplace"],
        ["-r", "--checksum", "--force"],
        ["-r", "--append"],
        ["-rt", "--mkpath"],
    ):
        run(secrets["a"], *options, f"{tmp_path}/tree/./", root)
    for path in ("e9/x/", "e2/new/er/", "new/er/x"):
        done = run(secrets["a"], "-r", "--mkpath", f"{tmp_path}/tree/new/", root + path)
        assert done.returncode, done
    after = _all(shared.root)
    assert {path.removeprefix(f"{shared.root}/") for path in after.keys() - before.keys()} <= {
        *("inbox/e1/t.1", "inbox/e1/t.1/x")
    }
    assert {path: after[path] for path in before} == before
    assert modules.issued(shared) == issued


def test_options_that_remove_or_lead_away_are_refused(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "link").symlink_to("/etc/passwd")
    url = f"rsync://worker-a@{modules.HOST}:{modules.port(shared)}/aeo.in.a/e1/"
    options = ("--delete", "--links", "--copy-dest=../e2", "--link-dest=../../tasks", "--backup-dir=../../jobs", "-D")
    for option in (*options, "--temp-dir=../../tasks", "--partial-dir=../../tasks", "--keep-dirlinks", "-o", "-H"):
        done = run(secrets["a"], "-r", option, f"{tmp_path}/from/", url)
        assert "refuse" in done.stderr, (option, done)
    assert (shared.inbox / "e1" / "other.token" / "result.json").exists()
    assert not (shared.inbox / "e1" / "link").is_symlink()


def test_only_its_own_secret_opens_a_module(kept: Kept, shared: Shared) -> None:
    secrets = let_in(shared)
    name = f"{modules.HOST}:{modules.port(shared)}"
    for account, module, secret in (
        *(("b", "b", secrets["a"]), ("a", "b", secrets["a"]), ("b", "a", secrets["b"]), ("a", "a", "")),
        *(("a", "A", secrets["a"] + "x"), ("c", "c", secrets["a"])),
    ):
        for way in ("aeo.out.", "aeo.in."):
            done = run(secret, "-r", "--list-only", f"rsync://worker-{account}@{name}/{way}{module}/tasks/")
            assert done.returncode == 5, done
            assert done.stdout == ""


def test_ids_of_capitals_and_odd_letters_are_kept_apart(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    ids = ("gpu", "GPU", "gpu@x=1+2", "x.lock")
    secrets = {id: modules.issue(shared, id) for id in ids}
    rights = {id: Rights(evaluations=frozenset({"e1"} if id == "GPU" else set())) for id in ids}
    modules.tell(shared, rights)
    for id in ids:
        move.check(place(shared, id), password=secrets[id])
    move.fetch(place(shared, "GPU"), "tasks/d-e1/task", tmp_path / "got", password=secrets["GPU"])
    with pytest.raises(TransferFailed):
        move.fetch(place(shared, "gpu"), "tasks/d-e1/task", tmp_path / "none", password=secrets["gpu"])


def test_files_are_private_and_written_only_for_a_change(shared: Shared) -> None:
    let_in(shared)
    assert modules.has_mark(shared.root, modules.mark(shared))
    assert not modules.has_mark(shared.inbox, modules.mark(shared))
    assert not modules.has_mark(shared.inbox, "")
    modules.port(shared)
    both = frozenset({"e1", "e2"})
    rights = {"a": Rights(evaluations=frozenset({"e1"})), "b": Rights(evaluations=both)}
    before = {path: path.stat().st_ino for path in shared.rsync.iterdir()}
    modules.tell(shared, rights)
    assert {path: path.stat().st_ino for path in shared.rsync.iterdir()} == before
    assert stat.S_IMODE(shared.rsync.stat().st_mode) == 0o700
    for name in ("secrets", "rsyncd.conf", "read.a", "write.a", "port", "state"):
        assert stat.S_IMODE((shared.rsync / name).stat().st_mode) == 0o600, name
    modules.tell(shared, {"b": rights["b"]})
    assert "worker-a" not in (shared.rsync / "secrets").read_text() + (shared.rsync / "rsyncd.conf").read_text()
    assert not (shared.rsync / "read.a").exists()


def test_a_killed_daemon_is_back_at_its_port_and_never_two_run(kept: Kept, shared: Shared) -> None:
    secrets, port, first = let_in(shared), modules.port(shared), kept.pid()
    # Another control process waits as long as this one keeps it.
    second = Kept(shared)
    assert [process.pid for process in daemon.running(shared)] == [first]
    psutil.Process(first).kill()
    eventually(lambda: kept.pid() not in (0, first) and kept.greets(), 20)
    assert modules.port(shared) == port
    eventually(lambda: not _fails(shared, secrets["a"]), 20)
    kept.end()
    # The other takes over.
    eventually(lambda: second.pid() and second.greets(), 20)
    eventually(lambda: not _fails(shared, secrets["a"]), 20)
    second.end()
    assert daemon.running(shared) == []
    assert modules.is_free(port)


def _fails(shared: Shared, secret: str) -> bool:
    with suppress(TransferFailed):
        move.check(place(shared), password=secret)
        return False
    return True


def test_who_loses_its_secret_is_cut_off_in_the_middle(kept: Kept, shared: Shared, tmp_path: Path) -> None:
    secrets = let_in(shared)
    sent = []
    for id in ("a", "b"):
        (tmp_path / id).mkdir()
        (tmp_path / id / "large").write_bytes(b"x" * 8_000_000)
        url = f"rsync://worker-{id}@{modules.HOST}:{modules.port(shared)}/aeo.in.{id}/e1/{id}/"
        environment = {**os.environ, "RSYNC_PASSWORD": secrets[id]}
        command = ["rsync", "-r", "--inplace", "--whole-file", "--bwlimit=400", f"{tmp_path}/{id}/", url]
        sent.append(subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL))
    try:
        eventually(lambda: all((shared.inbox / "e1" / id / "large").exists() for id in ("a", "b")), 20)
        modules.tell(shared, {"b": Rights(evaluations=frozenset({"e1"}))})
        assert eventually(lambda: sent[0].poll(), 10)
        assert sent[1].poll() is None
    finally:
        for process in sent:
            process.kill()
            process.wait()


def _all(root: Path) -> dict[str, str]:
    """What lies there, aside the daemon's own."""
    found = (path for path in root.rglob("*") if path.parent != root / "rsync")
    return {str(path): path.read_text() if path.is_file() else "" for path in found if path != root / "rsync"}


def test_rights_follow_the_book(site: Site) -> None:
    require(rsync.installed(), "rsync")
    info = a_worker("a")
    workers.admit(site, info)
    given = credentials.issue(site, info)
    assert given.files
    assert given.files not in site.shared.credentials.read_text()
    read, write = site.shared.rsync / "read.a", site.shared.rsync / "write.a"
    assert "e1" not in read.read_text() + write.read_text()
    credentials.grant(site, "e1", ["a"])
    assert "+ /evaluations/e1/trials.jsonl\n" in read.read_text()
    assert "+ /e1/**\n" in write.read_text()
    credentials.grant_ahead(site, "set", ["d1"], ["a"])
    assert "+ /tasks/d1/***\n" in read.read_text()
    # The same process keeps its secret; the next gets another.
    assert (credentials.issue(site, info, again=True).files, modules.issued(site.shared)["a"]) == ("", given.files)
    assert credentials.issue(site, replace(info, boot="boot-2")).files not in ("", given.files)
    # It is over: nothing knows this evaluation, and its folder is not there.
    with credentials.held(site) as book:
        book.accounts["a"].evaluations["e1"] = 1.0
        book.accounts["a"].ahead["set"].at = 1.0
    grants.keep(site, {})
    assert "e1" not in read.read_text() + write.read_text()
    assert "d1" not in read.read_text()
    workers.revoke(site, "a")
    assert modules.issued(site.shared) == {}
    assert not read.exists()
    assert "aeo." not in (site.shared.rsync / "rsyncd.conf").read_text()
    access.drop(site.db, "a")


def test_who_shares_the_brokers_password_has_a_secret_for_files_too(site: Site) -> None:
    require(rsync.installed(), "rsync")
    ours = replace(site, config=replace(site.config, worker_credentials=credentials.SHARED))
    assert credentials.issue(ours, a_worker("a")).files
    assert "+ /tasks/***" in (site.shared.rsync / "read.a").read_text()
    credentials.revoke(ours, "a")
    assert modules.issued(site.shared) == {}


def test_what_a_worker_sends_late_it_asks_for(site: Site, tmp_path: Path) -> None:
    require(rsync.installed(), "rsync")
    info = a_worker("a")
    workers.admit(site, info)
    secret = credentials.issue(site, info).files
    config = replace(site.config, worker_id="a", transfer_password=secret)
    kept = Kept(site.shared)
    try:
        far = WorkerSite(config=config, local=Local(tmp_path / "local"), db=site.db, remote=place(site.shared))
        claim = Claim(evaluation="e1", batch="b1", trial="t", token="k", worker="a", attempt=1)
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "result").write_text("late")
        outbox.put(far, claim, tmp_path / "run", SUBMITTED, SUBMITTED)
        over = threading.Event()
        over.set()
        outbox.keep(far, over)
        assert access.asked_for(site.db, "a") == {"e1"}
        assert not (site.shared.inbox / "e1").exists()
        credentials.grant(site, "e1", ["a"])
        outbox.keep(far, over)
        assert (site.shared.inbox / "e1" / "t.k" / "result").read_text() == "late"
    finally:
        kept.end()
        access.drop(site.db, "a")
