"""Where assets lie on a worker while a trial runs, and what is left of them afterwards."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
from needs import require
from rsync_hosts import PASSWORD, missing, rsync_daemon

from aeo import assets, contents
from aeo.config import Config
from aeo.core.model import Asset, ContentFolder, Plan
from aeo.layout import Local, Shared
from aeo.site import WorkerSite
from aeo.store.connection import Db
from aeo.transfer.remote import Remote, parse

SECRET = "KEY=sk-0123456789abcdefghijklmnop\n"


@pytest.fixture
def shared(tmp_path: Path) -> Shared:
    made = Shared(root=tmp_path / "shared", jobs_dir=tmp_path / "jobs")
    made.tasks.mkdir(parents=True)
    return made


@pytest.fixture(params=["local", "rsync"])
def remote(request: pytest.FixtureRequest, shared: Shared, tmp_path: Path) -> Iterator[Remote]:
    if request.param == "local":
        yield parse(str(shared.root))
        return
    require(not missing("rsync"), missing("rsync"))
    with rsync_daemon(shared.root, tmp_path / "rsyncd") as daemon:
        yield parse(daemon.url)


@pytest.fixture
def site(remote: Remote, fake_db: Db, tmp_path: Path) -> WorkerSite:
    config = Config(worker_id="w", transfer_password=PASSWORD)
    return WorkerSite(config=config, local=Local(tmp_path / "worker"), db=fake_db, remote=remote)


@pytest.fixture
def plan(shared: Shared, tmp_path: Path) -> Plan:
    """A folder, one that may be written to, and a file with secrets; published."""
    for name in ("given", "notes"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "file").write_text(name)
        (tmp_path / name / "deep" / "file").chmod(0o600)
    (tmp_path / "given" / "run").write_text("#!/bin/sh\n")
    (tmp_path / "given" / "run").chmod(0o700)
    (tmp_path / ".env").write_text(SECRET)
    made = []
    for name, digest in (("given", ""), ("notes", ""), (".env", "d" * 64)):
        path = tmp_path / name
        look = assets.reading.look_at(path, assets.reading.Room())
        digest = digest or assets.reading.digest_of(name, look)
        made.append(Asset(path=str(path), digest=digest, name=name, writable=name == "notes", private=name == ".env"))
    folders = tuple(ContentFolder(digest=one.digest, source=one.path, name="asset") for one in made)
    found = Plan(trials=(), contents=folders, assets=tuple(made))
    assets.moving.publish(shared, found, lambda _: None)
    return found


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_each_lies_where_its_kind_may(site: WorkerSite, plan: Plan, tmp_path: Path) -> None:
    given, notes, secret = (one.path for one in plan.assets)
    batch = site.local.batch("b1") / "assets"
    batch.parent.mkdir(parents=True)
    before = os.umask(0)
    try:
        with assets.placed(site, plan, batch, "run.1", gives_up=lambda: False) as places:
            assert places[given] == site.local.task(plan.assets[0].digest, "asset") / "given"
            assert (places[given] / "deep" / "file").read_text() == "given"
            # Any user of a container can read it, and run what could be run.
            assert mode(places[given] / "deep" / "file") == 0o644
            assert mode(places[given] / "run") == 0o755
            assert places[notes] == batch / "run.1" / "1" / "notes"
            assert mode(places[notes] / "deep" / "file") == 0o666
            (places[notes] / "deep" / "file").write_text("changed")
            (places[notes] / "new").touch()
            assert places[secret].read_text() == SECRET
            assert mode(places[secret]) == 0o600
            assert [mode(folder) for folder in places[secret].parents[1:3]] == [0o700, 0o700]
            first = places[secret].stat().st_ino
    finally:
        os.umask(before)
    assert not (batch / "run.1").exists()
    kept = site.local.task(plan.assets[1].digest, "asset") / "notes"
    assert (kept / "deep" / "file").read_text() == "notes"
    assert sorted(path.name for path in kept.iterdir()) == ["deep"]
    with assets.placed(site, plan, batch, "run.2", gives_up=lambda: False) as places:
        assert (places[notes] / "deep" / "file").read_text() == "notes"
        assert places[secret].stat().st_ino == first
    assert not [path for path in site.local.tasks.rglob("*") if path.name == ".env"]
    assert not (tmp_path / "worker" / "tasks" / plan.assets[2].digest).exists()


def test_what_is_here_is_not_fetched_again(site: WorkerSite, plan: Plan, shared: Shared) -> None:
    batch = site.local.batch("b1")
    with assets.placed(site, plan, batch, "run.1", gives_up=lambda: False):
        pass
    for path in shared.tasks.iterdir():
        path.rename(shared.root / f"gone.{path.name}")
    with assets.placed(site, plan, batch, "run.2", gives_up=lambda: False) as places:
        assert all(place.exists() for place in places.values())


def test_they_are_dropped_as_task_copies(site: WorkerSite, plan: Plan) -> None:
    with assets.placed(site, plan, site.local.batch("b1"), "run.1", gives_up=lambda: False) as places:
        here = places[plan.assets[0].path]
    assert not contents.drop(site.local, plan.assets[0].digest, here.stat().st_mtime - 1e6)
    assert contents.drop(site.local, plan.assets[0].digest, here.stat().st_mtime + 1e9)
    assert not here.exists()
