"""What `aeo doctor` makes of what it measured; rotation of the files that our own children write."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from waiting import eventually

from aeo.config import Config
from aeo.core.condition import Condition, Level, fault, ok, warning
from aeo.embedded import log_files
from aeo.executors.harbor import engine, images
from aeo.executors.harbor.engine import Engine
from aeo.health import broker, clock, controller, disk, examination, files, folder, port, program
from aeo.health.broker import Broker
from aeo.health.controller import Answer
from aeo.health.disk import Room
from aeo.health.examination import Machine
from aeo.health.port import Port
from aeo.store.server import Server

GIB = 1024**3


def levels(conditions: object) -> dict[str, Level]:
    return {item.about: item.level for item in conditions}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("free", "total", "level"),
    [
        (50 * GIB, 100 * GIB, Level.OK),
        (10 * GIB, 100 * GIB, Level.WARNING),
        (1 * GIB - 1, 100 * GIB, Level.FAULT),
        # Small disks count by their share.
        (GIB // 2, GIB, Level.OK),
        (GIB // 25, GIB, Level.FAULT),
        (0, 0, Level.WARNING),
    ],
)
def test_room(free: int, total: int, level: Level) -> None:
    (found,) = disk.judge(Room(path=Path("/"), free=free, total=total), watermark=0.85, fix="x")
    assert (found.about, found.level) == ("disk", level)


@pytest.mark.parametrize(("free", "level"), [(50, Level.OK), (9, Level.WARNING), (1, Level.FAULT), (0, Level.FAULT)])
def test_inodes(free: int, level: Level) -> None:
    room = Room(path=Path("/"), free=GIB, total=GIB, inodes_free=free, inodes_total=100)
    assert levels(disk.judge(room, watermark=0.85, fix="x"))["inodes"] is level


def test_the_disk_of_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    assert disk.measure(tmp_path / "a" / "b").path == tmp_path


@pytest.mark.parametrize(
    ("ahead", "level"), [(0, Level.OK), (-4, Level.OK), (6, Level.WARNING), (-31, Level.FAULT), (86400, Level.FAULT)]
)
def test_clocks(ahead: float, level: Level) -> None:
    assert clock.judge(ahead, "the controller").level is level


def test_roots(tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("x")
    token.chmod(0o600)
    assert levels(folder.judge(folder.measure(tmp_path, (token,)), about="root", flag="--root")) == {"root": Level.OK}
    token.chmod(0o640)
    found = list(folder.judge(folder.measure(tmp_path, (token,)), about="root", flag="--root"))
    assert found[1] == fault("secrets", f"{token} can be read by other users of this machine", f"chmod 600 {token}")
    (no_folder,) = folder.judge(folder.measure(token), about="root", flag="--root")
    assert (no_folder.level, no_folder.fix) == (Level.FAULT, "Name another one with --root.")
    (new,) = folder.judge(folder.measure(tmp_path / "new"), about="root", flag="--root")
    assert new.level is Level.OK


def test_programs_and_pythons() -> None:
    assert program.judge(program.measure("sh", "nothing works")).level is Level.OK
    assert "openssh-client" in program.judge(program.Program(name="ssh", path="", without="no")).fix
    assert levels(program.python((3, 9, 1))) == {"python": Level.FAULT}
    assert levels(program.python((3, 10, 0))) == {"python": Level.OK}


def test_open_files() -> None:
    assert files.judge(1024, 4).level is Level.OK
    assert "LimitNOFILE" in files.judge(1024, 64).fix
    assert files.judge(-1, 1000).level is Level.OK  # no limit


@pytest.mark.parametrize(
    ("error", "fix"), [(errno.EADDRINUSE, "Stop that"), (errno.EACCES, "1023"), (errno.EADDRNOTAVAIL, "--host")]
)
def test_ports(error: int, fix: str) -> None:
    (found,) = port.judge(Port(host="10.0.0.1", port=80, error=error))
    assert found.level is Level.FAULT
    assert fix in found.fix


@pytest.mark.parametrize(
    ("error", "text"),
    [
        ("Error 111 connecting to h:1. Connection refused.", "nothing listens at h:1"),
        ("WRONGPASS invalid username-password pair", "h:1 refuses the password"),
        ("Error -2 connecting to h:1. Name or service not known.", "the host of h:1 is not known"),
        ("Timeout connecting to server", "Timeout connecting to server"),
    ],
)
def test_brokers_that_are_away(error: str, text: str) -> None:
    (found,) = broker.judge(Broker(place="h:1", error=error))
    assert (found.level, found.text) == (Level.FAULT, text)
    assert found.fix


def test_brokers_that_would_lose_something() -> None:
    def about(**fields: object) -> dict[str, Level]:
        told = {"version": "9", "policy": "noeviction", "written": True, "used": 1, "limit": 0, **fields}
        return levels(broker.judge(Broker(place="h:1", server=Server(**told))))  # type: ignore[arg-type]

    assert about() == {"broker": Level.OK}
    assert about(policy="allkeys-lru")["broker memory"] is Level.FAULT
    assert about(used=95, limit=100)["broker memory"] is Level.WARNING
    assert about(written=False)["broker disk"] is Level.FAULT


def test_controllers() -> None:
    def about(**fields: object) -> dict[str, Level]:
        told = {"url": "http://c", "status": 200, "entry": 200, "version": "1.0", "ahead": 0.1, **fields}
        return levels(controller.judge(Answer(**told), "1.0"))  # type: ignore[arg-type]

    assert set(about().values()) == {Level.OK}
    assert about(error="refused") == {"controller": Level.FAULT}
    assert about(version="")["controller"] is Level.FAULT
    assert about(status=503)["controller"] is Level.FAULT
    assert about(version="1.1")["version"] is Level.WARNING
    assert about(entry=401)["token"] is Level.FAULT
    assert about(entry=0)["token"] is Level.FAULT
    assert "clock" not in about(ahead=None)


def test_engines() -> None:
    sound = {"version": "28", "compose": "2.26", "pools": 31, "networks": 3}

    def about(slots: int = 4, **fields: object) -> dict[str, Level]:
        return levels(engine.judge(Engine(**{**sound, **fields}), slots))  # type: ignore[arg-type]

    assert set(about().values()) == {Level.OK}
    assert about(slots=16)["address pools"] is Level.WARNING
    assert about(networks=31)["address pools"] is Level.FAULT
    assert about(compose="")["compose"] is Level.FAULT
    assert about(orphans=("abc",))["orphans"] is Level.FAULT
    assert about(installed=False) == {"docker": Level.WARNING}
    (denied,) = engine.judge(Engine(error="permission denied while trying to connect to the Docker daemon socket"), 1)
    assert "usermod" in denied.fix
    (away,) = engine.judge(Engine(error="Cannot connect to the Docker daemon at unix:///run/d.sock. Is it up?"), 1)
    assert away.text == "the engine does not answer at unix:///run/d.sock"


@pytest.mark.parametrize(
    ("pools", "networks"),
    [
        (None, 31),
        ([{"Base": "172.20.0.0/14", "Size": 24}], 1024),
        ([{"Base": "10.0.0.0/16", "Size": 16}, {"Base": "10.1.0.0/16", "Size": 20}], 17),
        ([{"Base": "odd"}], 0),
    ],
)
def test_address_pools(pools: list[dict[str, object]] | None, networks: int) -> None:
    assert engine.room(pools) == networks


def test_images_that_tasks_ask_for(tmp_path: Path) -> None:
    for name, text in (
        ("a", '[environment]\ndocker_image = "registry.example/a:1"\n'),
        ("b", "[environment]\ndocker_image='b'\n"),
        ("c", '# docker_image = "no"\n[environment]\ncpus = 1\n'),
    ):
        (tmp_path / "digest" / name).mkdir(parents=True)
        (tmp_path / "digest" / name / "task.toml").write_text(text)
    used = (tmp_path / "digest").stat().st_mtime
    assert images.named(tmp_path) == {"b:latest": used, "registry.example/a:1": used}


def test_the_worst_of_all() -> None:
    found: list[Condition] = [ok("a", "")]
    assert examination.worst(found) is Level.OK
    found.append(warning("b", "", ""))
    assert examination.worst(found) is Level.WARNING
    found.append(fault("c", "", ""))
    assert examination.worst(found) is Level.FAULT


def test_a_log_that_is_written_is_put_aside_and_written_on(tmp_path: Path) -> None:
    path = tmp_path / "web.log"
    assert not log_files.rotate(path, most=10)
    with path.open("ab", buffering=0) as writer:
        for number in range(6):
            writer.write(f"line number {number}\n".encode())
            assert log_files.rotate(path, most=10, kept=3)
        writer.write(b"short\n")
        assert not log_files.rotate(path, most=10, kept=3)
    assert path.read_text() == "short\n"
    kept = [tmp_path / f"web.log.{number}" for number in (1, 2, 3)]
    assert [old.read_text() for old in kept] == [f"line number {number}\n" for number in (5, 4, 3)]
    assert sorted(tmp_path.iterdir()) == [path, *kept]


def test_logs_are_kept_short_while_their_processes_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_files, "LOOK_SECONDS", 0.02)
    path, away = tmp_path / "control.log", tmp_path / "nowhere" / "x.log"
    with path.open("wb") as file:
        file.truncate(log_files.MOST_BYTES)
    with log_files.kept_short(lambda: [away, path]):
        eventually(lambda: (tmp_path / "control.log.1").exists() and path.stat().st_size == 0)


def test_a_plug_in_that_breaks_is_a_fault_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Broken:
        def conditions(self, local_root: Path, slots: int) -> list[Condition]:
            raise RuntimeError("no")

        def folders(self) -> list[Path]:
            return []

    class Plugin:
        care = Broken()

    monkeypatch.setattr(examination.executors, "installed", lambda: ("broken", "without"))
    monkeypatch.setattr(examination.executors, "load", lambda name: Plugin() if name == "broken" else object())
    (tmp_path / "root").mkdir()
    config = Config(local_root=tmp_path, shared_root=tmp_path / "root", port=0)
    found = list(examination.examine(Machine(config=config, roles=frozenset({"controller"}))))
    assert [item.text for item in found if item.about == "broken"] == ["the executor cannot look at this machine: no"]
    assert "disk" in {item.about for item in found}
