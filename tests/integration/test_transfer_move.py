"""Pushes and fetches through real ends: this machine with and without rsync, an rsync daemon, an sshd."""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import psutil
import pytest
from needs import require
from programs import command_line, free_port
from rsync_hosts import PASSWORD, missing, rsync_daemon, ssh_server
from waiting import eventually

from aeo.core.errors import InputError, TransferFailed
from aeo.transfer import manifest, move, rsync
from aeo.transfer.remote import Remote, parse

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
KINDS = ("local", "copy", "rsync", "ssh")


@dataclass(frozen=True, kw_only=True)
class End:
    """One way to the same kind of folder."""

    remote: Remote
    #: The folder itself, to look at.
    root: Path
    password: str = ""

    def push(self, source: Path, target: str) -> None:
        move.push(self.remote, source, target, password=self.password)

    def fetch(self, source: str, target: Path, *, only: tuple[str, ...] = ()) -> None:
        move.fetch(self.remote, source, target, only=only, password=self.password)


@pytest.fixture(scope="module")
def ends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], End]]:
    """Each end is started once, when first asked for."""
    started: dict[str, End] = {}
    stack = ExitStack()

    def end(kind: str) -> End:
        if kind not in started:
            started[kind] = _start(kind, stack, tmp_path_factory.mktemp(kind))
        return started[kind]

    with stack:
        yield end


def _start(kind: str, stack: ExitStack, base: Path) -> End:
    root = base / "shared root"
    root.mkdir()
    if kind == "rsync":
        require(not missing("rsync"), missing("rsync"))
        url = stack.enter_context(rsync_daemon(root, base / "daemon")).url
        return End(remote=parse(url), root=root, password=PASSWORD)
    if kind == "ssh":
        require(not missing("rsync", "ssh", "sshd"), missing("rsync", "ssh", "sshd"))
        server = stack.enter_context(ssh_server(base / "sshd"))
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setenv("PATH", str(server.programs), prepend=os.pathsep)
        return End(remote=parse(server.url(root)), root=root)
    if kind == "local":
        require(not missing("rsync"), missing("rsync"))
    return End(remote=parse(str(root)), root=root)


@pytest.fixture(params=KINDS)
def end(request: pytest.FixtureRequest, ends: Callable[[str], End], monkeypatch: pytest.MonkeyPatch) -> End:
    if request.param == "copy":
        monkeypatch.setenv("PATH", "/nowhere")
    # What is small is copied on one machine; these tests want rsync there too.
    monkeypatch.setattr(move, "SMALL_FILES", -1)
    return ends(request.param)


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run's folder with everything odd that may lie in one."""
    root = tmp_path / "task__1.t0k"
    (root / "empty").mkdir(parents=True)
    (root / "result.json").write_text("{}")
    for name in (
        "#x",
        ";x",
        "- x",
        "+ x",
        "--delete",
        "a 'b' \"c\" $HOME `d` \\e *?[f]",
        "ünï 😀",
        "~",
        "x:y",
        "-",
        " ",
    ):
        (root / "odd").mkdir(exist_ok=True)
        (root / "odd" / name).write_text(name)
        (root / name).write_text(name)
    (root / "private").write_text("secret")
    (root / "private").chmod(0o600)
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o4711)
    (root / "empty").chmod(0o700)
    with (root / "sparse").open("wb") as file:
        file.truncate(3_000_000)
    (root / "line\nbreak").write_text("x")
    (root / os.fsdecode(b"latin\xe9")).write_text("x")
    (root / "bad\x1bfolder").mkdir()
    (root / "bad\x1bfolder" / "x").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (root / "link").symlink_to(outside / "secret")
    (root / "folder-link").symlink_to(outside)
    (root / "dangling").symlink_to("/nowhere")
    os.mkfifo(root / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(root / "socket"))
    os.link(root / "result.json", root / "hard-link")
    return root


def made(run_dir: Path) -> manifest.Manifest:
    return manifest.make(
        run_dir, evaluation="e1", trial="task__1", token="t0k", worker="w", attempt=1, started_at=TIME, finished_at=TIME
    )


def everything(root: Path) -> set[str]:
    return {str(path.relative_to(root)) for path in root.rglob("*")}


def test_a_push_moves_exactly_what_the_manifest_lists(end: End, run_dir: Path, request: pytest.FixtureRequest) -> None:
    target = f"inbox/{_unique(request)}/task__1.t0k"
    made_now = made(run_dir)
    manifest.save(made_now, run_dir.with_name("m.json"))
    end.push(run_dir, target)
    end.push(run_dir.with_name("m.json"), f"{target}.json")

    arrived = end.root / target
    manifest.verify(manifest.load(end.root / f"{target}.json"), arrived)
    assert everything(arrived) == {*made_now.files, "empty", "odd"}
    assert (arrived / "odd" / "#x").read_text() == "#x"
    assert (arrived / "sparse").stat().st_size == 3_000_000
    assert (arrived / "result.json").stat().st_mtime_ns == (run_dir / "result.json").stat().st_mtime_ns
    modes = {name: (arrived / name).stat().st_mode & 0o7777 for name in ("private", "run.sh", "empty", "odd/#x")}
    assert modes == {"private": 0o644, "run.sh": 0o755, "empty": 0o755, "odd/#x": 0o644}
    assert {path.name for path in arrived.parent.iterdir()} == {"task__1.t0k", "task__1.t0k.json"}


def test_several_results_go_together(end: End, tmp_path: Path, run_dir: Path, request: pytest.FixtureRequest) -> None:
    place = tmp_path / "outbox"
    names = [f"{_unique(request)}/{name}.t" for name in ("one", "two", "empty")]
    for name in names[:2]:
        shutil.copytree(run_dir, place / name, symlinks=True, ignore=lambda _, __: ["pipe", "socket"])
    (place / names[2]).mkdir()
    files = [f"{name}.json" for name in names]
    for file in files:
        (place / file).write_text(file)
    move.push_all(end.remote, place, names, "inbox", password=end.password)
    assert not any((end.root / "inbox" / file).exists() for file in files)
    move.push_all(end.remote, place, files, "inbox", password=end.password)
    for name, file in zip(names, files, strict=True):
        manifest.verify(made(place / name), end.root / "inbox" / name)
        assert (end.root / "inbox" / file).read_text() == file
    with pytest.raises(InputError):
        move.push_all(end.remote, place, [names[0], f"{names[0]}x"], "inbox", password=end.password)


def test_a_second_push_changes_nothing(end: End, run_dir: Path, request: pytest.FixtureRequest) -> None:
    target = f"inbox/{_unique(request)}/task__1.t0k"
    end.push(run_dir, target)
    (end.root / target / "result.json").write_text('{"half')
    (end.root / target / "#x").unlink()
    end.push(run_dir, target)
    manifest.verify(made(run_dir), end.root / target)


def test_a_second_push_leaves_what_arrived_as_it_is(end: End, run_dir: Path, request: pytest.FixtureRequest) -> None:
    """A controller that came up again may be reading it: its worker pushes once more when it did not learn of it."""
    target = f"inbox/{_unique(request)}/task__1.t0k"
    end.push(run_dir, target)
    before = {path: path.stat() for path in (end.root / target).rglob("*") if path.is_file()}
    end.push(run_dir, target)
    after = {path: path.stat() for path in (end.root / target).rglob("*") if path.is_file()}
    assert len(before) > 1
    assert {path: (it.st_ino, it.st_ctime_ns) for path, it in after.items()} == {
        path: (it.st_ino, it.st_ctime_ns) for path, it in before.items()
    }


def test_an_empty_folder_can_be_pushed(end: End, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    (tmp_path / "empty").mkdir()
    target = f"inbox/{_unique(request)}/task__1.t0k"
    end.push(tmp_path / "empty", target)
    assert everything(end.root / target) == set()


def test_a_fetch_brings_regular_files_and_keeps_who_may_run(
    end: End, run_dir: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = f"tasks/{_unique(request)}/task"
    shutil.copytree(run_dir, end.root / source, symlinks=True, ignore=shutil.ignore_patterns("pipe", "socket"))
    os.mkfifo(end.root / source / "pipe")
    target = tmp_path / "worker" / "tasks" / "digest" / "task"
    end.fetch(source, target)
    gone = {"link", "folder-link", "dangling", "pipe"}
    assert everything(target) == everything(end.root / source) - gone
    assert {path.name for path in target.parent.iterdir()} == {"task"}
    assert (target / "run.sh").stat().st_mode & 0o7777 == 0o755
    assert (target / "private").stat().st_mode & 0o7777 == 0o644
    assert (target / "line\nbreak").read_text() == "x"


def test_a_fetch_can_be_of_some_files_only(end: End, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = f"evaluations/{_unique(request)}"
    (end.root / source / "superseded").mkdir(parents=True)
    for name in ("evaluation.json", "trials.jsonl", "events.jsonl", "superseded/evaluation.json"):
        (end.root / source / name).write_text(name)
    end.fetch(source, tmp_path / "e1", only=("evaluation.json", "trials.jsonl"))
    assert everything(tmp_path / "e1") == {"evaluation.json", "trials.jsonl"}
    with pytest.raises(TransferFailed, match=r"none\.json is not there") as caught:
        end.fetch(source, tmp_path / "e2", only=("evaluation.json", "none.json"))
    assert caught.value.permanent
    assert not (tmp_path / "e2").exists()


def test_what_is_there_is_not_fetched_again(end: End, tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    end.fetch("tasks/digest/nothing-there", tmp_path / "task")
    assert everything(tmp_path / "task") == set()


def test_fetching_what_is_not_there_fails_for_good(end: End, tmp_path: Path) -> None:
    with pytest.raises(TransferFailed, match="could not fetch") as caught:
        end.fetch("tasks/digest/nothing-there", tmp_path / "task")
    assert caught.value.permanent
    assert not (tmp_path / "task").exists()


def test_a_left_over_of_a_killed_fetch_does_not_matter(
    end: End, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = f"tasks/{_unique(request)}/task"
    (end.root / source).mkdir(parents=True)
    (end.root / source / "task.toml").write_text("whole")
    (tmp_path / ".task.part").mkdir()
    (tmp_path / ".task.part" / "task.toml").write_text("ha")
    (tmp_path / ".task.part" / "stale").write_text("x")
    (tmp_path / ".task.lock").touch()
    end.fetch(source, tmp_path / "task")
    assert everything(tmp_path) == {"task", "task/task.toml"}
    assert (tmp_path / "task" / "task.toml").read_text() == "whole"


def test_many_may_fetch_one_folder_and_see_it_whole(end: End, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    source = f"tasks/{_unique(request)}/task"
    (end.root / source).mkdir(parents=True)
    for number in range(30):
        (end.root / source / f"{number}").write_text("x" * 1000)
    target, seen, stop = tmp_path / "task", set(), threading.Event()

    def watch() -> None:
        while not stop.is_set():
            with suppress(FileNotFoundError):
                seen.add(len(list(target.iterdir())))

    failures: list[BaseException] = []

    def fetch() -> None:
        try:
            end.fetch(source, target)
        except BaseException as error:
            failures.append(error)

    watcher = threading.Thread(target=watch)
    fetchers = [threading.Thread(target=fetch) for _ in range(3)]
    for thread in (watcher, *fetchers):
        thread.start()
    for thread in fetchers:
        thread.join()
    eventually(lambda: bool(seen))
    stop.set()
    watcher.join()
    assert failures == []
    assert seen == {30}
    assert {path.name for path in tmp_path.iterdir()} == {"task"}


@pytest.mark.parametrize("target", ["", "/etc", "../x", "inbox/../x", "inbox//x", "-x", "inbox/-x", "a b", "inbox/x/"])
def test_odd_targets_are_refused(end: End, run_dir: Path, tmp_path: Path, target: str) -> None:
    before = everything(end.root)
    with pytest.raises(InputError):
        end.push(run_dir, target)
    with pytest.raises(InputError):
        end.fetch(target, tmp_path / "fetched")
    assert everything(end.root) == before


def test_links_as_source_are_refused(end: End, run_dir: Path) -> None:
    for name in ("link", "folder-link", "pipe", "none"):
        with pytest.raises(InputError, match=name):
            end.push(run_dir / name, "inbox/e1/x")


def test_check_passes(end: End) -> None:
    move.check(end.remote, password=end.password)
    if end.remote.kind in ("rsync", "ssh"):
        assert (end.root / "inbox").is_dir()


@pytest.mark.parametrize("kind", ["local", "copy"])
def test_a_link_in_the_root_does_not_lead_out(
    ends: Callable[[str], End], kind: str, run_dir: Path, tmp_path: Path
) -> None:
    end = ends(kind)
    (tmp_path / "elsewhere").mkdir()
    (end.root / "way-out").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="leads out"):
        end.push(run_dir, "way-out/x")
    with pytest.raises(InputError, match="leads out"):
        end.fetch("way-out", tmp_path / "fetched")
    assert everything(tmp_path / "elsewhere") == set()


def test_without_rsync_a_remote_end_names_the_package(monkeypatch: pytest.MonkeyPatch, run_dir: Path) -> None:
    monkeypatch.setenv("PATH", str(run_dir / "empty"))
    for url in ("rsync://box.invalid/data", "ssh://box.invalid/srv"):
        for call in (
            lambda url=url: move.check(parse(url)),
            lambda url=url: move.push(parse(url), run_dir, "inbox/e1/x"),
        ):
            with pytest.raises(TransferFailed, match="Install the package rsync") as caught:
                call()
            assert caught.value.permanent


def test_without_ssh_the_package_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    require(not missing("rsync"), missing("rsync"))
    (tmp_path / "rsync").symlink_to(str(shutil.which("rsync")))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(TransferFailed, match="Install the package openssh-client") as caught:
        move.check(parse("ssh://box.invalid/srv"))
    assert caught.value.permanent


def test_a_local_root_that_is_missing_fails_for_good(tmp_path: Path, run_dir: Path) -> None:
    remote = parse(str(tmp_path / "none"))
    for call in (lambda: move.check(remote), lambda: move.push(remote, run_dir, "inbox/e1/x")):
        with pytest.raises(TransferFailed, match="no such folder") as caught:
            call()
        assert caught.value.permanent
    assert not (tmp_path / "none").exists()


def test_daemon_refusals_are_permanent_and_clear(ends: Callable[[str], End], tmp_path: Path, run_dir: Path) -> None:
    end = ends("rsync")
    other = parse(str(end.remote).replace("/aeo", "/other"))
    missing_folder = parse(f"{end.remote}/none")
    for remote, password, words in (
        (end.remote, "wrong-pass", "auth failed"),
        (end.remote, "", "auth failed"),
        (other, PASSWORD, "Unknown module"),
        (missing_folder, PASSWORD, "No such file"),
    ):
        with pytest.raises(TransferFailed, match=words) as caught:
            move.check(remote, password=password)
        assert caught.value.permanent
        assert "wrong-pass" not in str(caught.value)
    with pytest.raises(TransferFailed, match="auth failed") as caught:
        move.push(end.remote, run_dir, "inbox/e1/x", password="wrong-pass")
    assert caught.value.permanent


def test_a_read_only_module_is_found_by_check(tmp_path: Path) -> None:
    require(not missing("rsync"), missing("rsync"))
    (tmp_path / "root" / "inbox").mkdir(parents=True)
    with rsync_daemon(tmp_path / "root", tmp_path / "daemon", read_only=True) as daemon:
        with pytest.raises(TransferFailed, match="read only") as caught:
            move.check(parse(daemon.url), password=PASSWORD)
    assert caught.value.permanent


def test_a_root_that_is_gone_is_not_made_again(tmp_path: Path, run_dir: Path) -> None:
    require(not missing("rsync"), missing("rsync"))
    (tmp_path / "module" / "root").mkdir(parents=True)
    with rsync_daemon(tmp_path / "module", tmp_path / "daemon") as daemon:
        remote = parse(f"{daemon.url}/root")
        move.check(remote, password=PASSWORD)
        shutil.rmtree(tmp_path / "module" / "root")
        with pytest.raises(TransferFailed, match="No such file") as caught:
            move.push(remote, run_dir, "inbox/e1/task__1.t0k", password=PASSWORD)
    assert caught.value.permanent
    assert everything(tmp_path / "module") == set()


def test_a_key_restricted_to_the_root_is_enough(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require(not missing("rsync", "rrsync", "ssh", "sshd"), missing("rsync", "rrsync", "ssh", "sshd"))
    (tmp_path / "root").mkdir()
    with ssh_server(tmp_path / "sshd", forced=f"{shutil.which('rrsync')} {tmp_path}/root") as server:
        monkeypatch.setenv("PATH", str(server.programs), prepend=os.pathsep)
        remote = parse(server.url(Path("/")))
        move.check(remote)
        move.push(remote, run_dir, "inbox/e1/task__1.t0k")
        move.fetch(remote, "inbox/e1/task__1.t0k", tmp_path / "back")
    manifest.verify(made(run_dir), tmp_path / "root/inbox/e1/task__1.t0k")
    manifest.verify(made(run_dir), tmp_path / "back")


def test_nobody_there_is_temporary(run_dir: Path) -> None:
    require(not missing("rsync", "ssh"), missing("rsync", "ssh"))
    for scheme in ("rsync", "ssh"):
        with pytest.raises(TransferFailed, match="refused") as caught:
            move.push(parse(f"{scheme}://127.0.0.1:{free_port()}/data"), run_dir, "inbox/e1/x")
        assert not caught.value.permanent


def test_ssh_refusals_are_permanent(
    ends: Callable[[str], End], tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    end = ends("ssh")
    with pytest.raises(TransferFailed, match="No such file") as caught:
        move.check(parse(f"{end.remote}/none"))
    assert caught.value.permanent
    # The same server with another key of ours.
    (tmp_path / "ssh").write_text(
        f"#!/bin/sh\nexec {shutil.which('ssh', path='/usr/bin:/usr/local/bin')} -F /dev/null -o IdentitiesOnly=yes"
        f' -i {tmp_path}/none -o UserKnownHostsFile={tmp_path}/hosts "$@"\n'
    )
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(TransferFailed, match="Permission denied") as caught:
        move.push(end.remote, run_dir, "inbox/e1/x")
    assert caught.value.permanent


def test_a_password_is_in_no_argument_and_no_other_environment(
    ends: Callable[[str], End], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    end = ends("rsync")
    (tmp_path / "rsync").write_text(f'#!/bin/sh\necho "$@" >{tmp_path}/args; env >{tmp_path}/env; exit 5\n')
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("AEO_AUTH_TOKEN", "t0p-secret")
    monkeypatch.setenv("AEO_TRANSFER_PASSWORD", PASSWORD)
    with pytest.raises(TransferFailed):
        end.push(run_dir, "inbox/e1/x")
    assert PASSWORD not in (tmp_path / "args").read_text()
    environment = (tmp_path / "env").read_text()
    assert f"RSYNC_PASSWORD={PASSWORD}\n" in environment
    assert environment.count(PASSWORD) == 1
    assert "t0p-secret" not in environment
    monkeypatch.setattr(move, "SMALL_FILES", -1)
    with pytest.raises(TransferFailed):
        move.push(parse(str(tmp_path)), run_dir, "inbox/e1/x", password=PASSWORD)
    assert PASSWORD not in (tmp_path / "env").read_text()


def test_what_is_small_is_copied_on_one_machine(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "root" / "inbox").mkdir(parents=True)
    (tmp_path / "rsync").write_text("#!/bin/sh\nexit 5\n")
    (tmp_path / "rsync").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    here = parse(str(tmp_path / "root"))
    move.push(here, run_dir, "inbox/x")
    assert (tmp_path / "root" / "inbox" / "x" / "result.json").read_text() == "{}"
    monkeypatch.setattr(move, "SMALL_BYTES", 1)
    with pytest.raises(TransferFailed):
        move.push(here, run_dir, "inbox/y")


@pytest.mark.parametrize(
    ("code", "text", "permanent"),
    [
        (1, "ERROR: module is read only", True),
        (5, "@ERROR: auth failed on module aeo", True),
        (5, "@ERROR: max connections (4) reached -- try again later", False),
        (10, "failed to connect: Connection refused (111)", False),
        (11, "", False),
        (11, 'write failed on "x": No space left on device (28)', False),
        (12, "connection unexpectedly closed", False),
        (12, "bash: line 1: rsync: command not found", True),
        (23, 'mkstemp "x" failed: Permission denied (13)', True),
        (23, "some files could not be transferred", False),
        (24, "some files vanished", False),
        (30, "timeout in data send/receive", False),
        (35, "timeout waiting for daemon connection", False),
        (127, "sh: 1: rsync: not found", True),
        (255, "Host key verification failed.", True),
        (255, "me@box: Permission denied (publickey).", True),
        (255, "ssh: connect to host box port 22: Connection timed out", False),
        (-9, "", False),
    ],
)
def test_which_endings_are_permanent(code: int, text: str, permanent: bool) -> None:
    with pytest.raises(TransferFailed) as caught:
        rsync.Ending(code=code, text=text).check("could not copy")
    assert caught.value.permanent is permanent
    assert text in str(caught.value)
    assert ("Install the package rsync there" in str(caught.value)) == ("rsync: " in text and "not found" in text)


def test_a_message_that_was_lost_may_be_of_a_missing_folder() -> None:
    """Seen with rsync 3.2 over ssh: the other side says that it cannot make the folder, and hangs up."""
    assert rsync.Ending(code=11, text="").no_parent
    assert rsync.Ending(code=11, text='mkdir "/x/y" failed: No such file or directory (2)').no_parent
    assert not rsync.Ending(code=11, text='write failed on "x": No space left on device (28)').no_parent
    assert not rsync.Ending(code=0, text="").no_parent


@contextmanager
def narrow(port: int, limit: int) -> Iterator[tuple[int, threading.Event, threading.Event]]:
    """A way to ``port`` that stops after ``limit`` bytes; yields its own port, "it stopped", and "cut it now"."""
    stopped, cut = threading.Event(), threading.Event()
    listener = socket.create_server(("127.0.0.1", 0))
    open_sockets: list[socket.socket] = [listener]

    def forward(reading: socket.socket, writing: socket.socket, most: float) -> None:
        with suppress(OSError):
            while most > 0 and (data := reading.recv(65536)):
                writing.sendall(data)
                most -= len(data)
            if most <= 0:
                stopped.set()
                cut.wait(120)
            for end in (reading, writing):
                end.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                server = socket.create_connection(("127.0.0.1", port))
                open_sockets.extend((client, server))
                for way in ((client, server, limit), (server, client, float("inf"))):
                    threading.Thread(target=forward, args=way, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield listener.getsockname()[1], stopped, cut
    finally:
        cut.set()
        for one in open_sockets:
            with suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


@pytest.mark.parametrize("how", ["connection cut", "rsync killed"])
def test_an_interrupted_push_goes_on_where_it_stopped(
    ends: Callable[[str], End], tmp_path: Path, request: pytest.FixtureRequest, how: str
) -> None:
    end = ends("rsync")
    source = tmp_path / "task__1.t0k"
    source.mkdir()
    (source / "big").write_bytes(os.urandom(6_000_000))
    (source / "small").write_text("x")
    made_now = made(source)
    target = f"inbox/{_unique(request)}/task__1.t0k"
    arrived = end.root / target
    # The folder above is there, as it is in all pushes of an evaluation but the first.
    arrived.parent.mkdir(parents=True)
    failures: list[TransferFailed] = []

    with narrow(end.remote.port, 3_000_000) as (port, stopped, cut):
        hindered = parse(str(end.remote).replace(f":{end.remote.port}/", f":{port}/"))

        def push() -> None:
            try:
                move.push(hindered, source, target, password=end.password)
            except TransferFailed as error:
                failures.append(error)

        pushing = threading.Thread(target=push)
        pushing.start()
        assert stopped.wait(120)
        if how == "rsync killed":
            children = [child for child in psutil.Process().children() if f":{port}/" in " ".join(command_line(child))]
            assert len(children) == 1
            children[0].kill()
        cut.set()
        pushing.join(120)
        assert not pushing.is_alive()
    assert [error.permanent for error in failures] == [False]
    # The daemon's side ends by itself; what came stays under the final name.
    eventually(lambda: (arrived / "big").exists() and (arrived / "big").stat().st_size > 1_000_000)
    with pytest.raises(InputError):
        manifest.verify(made_now, arrived)
    inode = (arrived / "big").stat().st_ino

    with narrow(end.remote.port, 4_000_000) as (port, stopped, _):
        again = parse(str(end.remote).replace(f":{end.remote.port}/", f":{port}/"))
        move.push(again, source, target, password=end.password)
        assert not stopped.is_set(), "all of it was sent again"
    manifest.verify(made_now, arrived)
    assert (arrived / "big").stat().st_ino == inode
    assert everything(arrived) == {"big", "small"}


def test_a_restarted_daemon_takes_the_push(tmp_path: Path, run_dir: Path) -> None:
    require(not missing("rsync"), missing("rsync"))
    (tmp_path / "root").mkdir()
    with rsync_daemon(tmp_path / "root", tmp_path / "first") as daemon:
        remote = parse(daemon.url)
        move.push(remote, run_dir, "inbox/e1/task__1.t0k", password=PASSWORD)
    with pytest.raises(TransferFailed) as caught:
        move.push(remote, run_dir, "inbox/e1/task__1.t0k", password=PASSWORD)
    assert not caught.value.permanent
    with rsync_daemon(tmp_path / "root", tmp_path / "second", port=remote.port):
        move.push(remote, run_dir, "inbox/e1/task__1.t0k", password=PASSWORD)
    manifest.verify(made(run_dir), tmp_path / "root/inbox/e1/task__1.t0k")


def _unique(request: pytest.FixtureRequest) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in request.node.name).strip("_")
