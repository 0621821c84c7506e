"""`aeo prune` and `aeo keep` beside a real store, also killed half-way; the clean-up of a worker's disk."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from engine import closed, register, running, submit, worker_site
from needs import require
from programs import Program, free_port
from waiting import eventually

from aeo import cleaning, contents, evaluations, recovery, retention, summaries
from aeo.cli import main
from aeo.core.errors import NotFound, Unavailable
from aeo.core.model import ContentFolder, EvaluationState, Plan, PlannedTrial
from aeo.site import Site, WorkerSite
from aeo.store import connection, health
from aeo.store import evaluations as store
from aeo.summaries import standing

DAY = 86400
#: More than a prune of one evaluation and one task has.
MOST_STEPS = 16


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site as commands on this machine find it, with a worker."""
    monkeypatch.setenv("AEO_SHARED_ROOT", str(site.shared.root))
    monkeypatch.setenv("AEO_BROKER_URL", site.config.broker_url)
    # Images of this machine are not these tests'.
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    register(site, "a")
    health.mark_recovered(site.db)
    return site


def aeo(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def finished(site: Site, tmp_path: Path, *names: str, days: float = 40) -> list[str]:
    """Evaluations that ended so long ago."""
    ids = []
    with running(site, tmp_path, "a"):
        for name in names:
            ids.append(submit(site, {"name": name, "trials": 2}).id)
            closed(site, ids[-1])
    for id in ids:
        age(site, id, days)
    return ids


def age(site: Site, id: str, days: float) -> None:
    moment = connection.now(site.db).timestamp() - days * DAY
    site.db.client.hset(f"aeo:e:{id}", "finished_at", round(moment * 1000))


def task(site: Site, digest: str, days: float) -> Path:
    folder = site.shared.task(digest, "one")
    folder.mkdir(parents=True)
    (folder / "file").write_text("x")
    os.utime(folder.parent, (time.time() - days * DAY,) * 2)
    return folder.parent


def left(site: Site, id: str, name: str) -> set[str]:
    """What is still there of an evaluation."""
    places = {
        "folder": site.shared.evaluation(id),
        "job": site.shared.job(name),
        "inbox": site.shared.inbox / id,
        "trash": site.shared.pruned / f"{id}.job",
        "hidden job": site.shared.jobs_dir / f".pruned.{id}",
    }
    found = {what for what, path in places.items() if path.exists()}
    if list(site.db.client.scan_iter(match=f"aeo:e:{id}*")) or id in store.ids(site.db):
        found.add("store")
    if standing.standing(site.book, id) is not None:
        found.add("summaries")
    return found


WHOLE = {"folder", "job", "store", "summaries"}


def test_old_ones_go_and_new_open_and_kept_ones_stay(here: Site, tmp_path: Path) -> None:
    old, kept, young = finished(here, tmp_path, "old", "kept", "young")
    age(here, young, 3)
    open_ = submit(here, {"name": "open", "trials": 1}).id
    superseded = here.shared.superseded(old, "trial", "token")
    superseded.mkdir(parents=True)
    (here.shared.inbox / old / "late.token").mkdir(parents=True)
    old_task, young_task = task(here, "a" * 64, 40), task(here, "b" * 64, 1)
    assert "is kept" in aeo("keep", "kept").stdout

    shown = aeo("prune", "--older-than", "30d", "--dry-run").stdout
    assert old in shown
    assert "1 old evaluation kept" in shown
    assert not any(id in shown for id in (kept, young, open_))
    assert left(here, old, "old") == WHOLE | {"inbox"}
    assert "--yes" in aeo("prune", "--older-than", "30d", code=2).stderr

    gone = json.loads(aeo("prune", "--older-than", "30d", "--yes", "--json").stdout)["pruned"]
    assert [one["id"] for one in gone["evaluations"]] == [old]
    assert gone["tasks"] == ["a" * 64]
    assert gone["kept"] == [kept]
    assert left(here, old, "old") == set()
    assert not old_task.exists()
    assert young_task.exists()
    for id, name in ((kept, "kept"), (young, "young"), (open_, "open")):
        assert left(here, id, name) >= {"folder", "job", "store"}
    # Nothing comes back, and the others are as they were.
    recovery.recover(here)
    assert left(here, old, "old") == set()
    assert sum(name in aeo("doctor", "--store").stdout for name in ("kept", "young", "open")) == 3

    assert "kept no longer" in aeo("keep", kept, "--no-keep").stdout
    aeo("prune", "--older-than", "30d", "--yes")
    assert left(here, kept, "kept") == set()
    assert "No evaluation" in aeo("keep", kept, code=2).stderr


def test_a_task_that_an_evaluation_needs_stays(here: Site, tmp_path: Path) -> None:
    (id,) = finished(here, tmp_path, "one")
    path = here.shared.evaluation(id) / "evaluation.json"
    record = json.loads(path.read_text())
    record["plan"]["contents"] = [{"digest": "c" * 64, "name": "one", "source": "/nowhere"}]
    path.write_text(json.dumps(record))
    from aeo import records

    records._header.cache_clear()
    needed = task(here, "c" * 64, 90)
    aeo("keep", id)
    aeo("prune", "--older-than", "30d", "--yes")
    assert needed.exists()
    # Damaged, nobody knows what it needs.
    path.write_text("{")
    records._header.cache_clear()
    assert "all tasks stay" in aeo("prune", "--older-than", "30d", "--yes").stderr
    assert needed.exists()
    path.write_text(json.dumps(record))
    aeo("keep", id, "--no-keep")
    aeo("prune", "--older-than", "30d", "--yes")
    assert not needed.exists()


def test_a_job_folder_that_is_anothers_by_now_stays(here: Site, tmp_path: Path) -> None:
    (first,) = finished(here, tmp_path, "same")
    shutil.move(here.shared.job("same"), tmp_path / "moved away")
    (second,) = finished(here, tmp_path, "same", days=1)
    aeo("prune", "--older-than", "30d", "--yes")
    assert not here.shared.evaluation(first).exists()
    assert left(here, second, "same") >= WHOLE
    assert (tmp_path / "moved away").exists()


def test_jobs_are_left_when_asked(here: Site, tmp_path: Path) -> None:
    (id,) = finished(here, tmp_path, "one")
    aeo("prune", "--older-than", "30d", "--yes", "--leave-jobs")
    assert left(here, id, "one") == {"job"}


def test_a_wiped_store_prunes_nothing(here: Site, tmp_path: Path) -> None:
    (id,) = finished(here, tmp_path, "one")
    here.db.client.flushall()
    assert "aeo recover" in aeo("prune", "--older-than", "30d", "--yes", code=1).stderr
    recovery.recover(here)
    # As far as anybody can tell it ended when its log was written last.
    aeo("prune", "--older-than", "30d", "--yes")
    assert here.shared.evaluation(id).exists()
    os.utime(here.shared.events(id), (time.time() - 40 * DAY,) * 2)
    aeo("prune", "--older-than", "30d", "--yes")
    assert left(here, id, "one") == set()


def killed_at(site: Site, step: int) -> int:
    """Prune in a process of its own that dies by SIGKILL at its n-th step that changes something; how it ended."""
    pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    left = step

    def counted(call: Callable[..., object]) -> Callable[..., object]:
        def one(*args: object, **options: object) -> object:
            nonlocal left
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return call(*args, **options)

        return one

    try:
        for owner, name in ((Path, "rename"), (shutil, "rmtree"), (store, "delete"), (summaries, "drop")):
            setattr(owner, name, counted(getattr(owner, name)))
        mine = replace(site, db=connection.connect(site.config.broker_url))
        retention.remove(mine, retention.find(mine, timedelta(days=30)))
        os._exit(0)
    finally:
        os._exit(1)


def cancelled(site: Site, name: str) -> str:
    """An evaluation that ended before any trial ran."""
    id = submit(site, {"name": name, "trials": 1}).id
    evaluations.cancel(site, id)
    for state in (EvaluationState.MERGING, EvaluationState.CANCELLED):
        store.move(site.db, id, state)
    assert store.get(site.db, id).state.final
    return id


def test_killed_at_any_step_the_next_call_ends_it(here: Site, tmp_path: Path) -> None:
    deaths = 0
    for step in range(MOST_STEPS):
        name = f"number-{step}"
        id = cancelled(here, name)
        age(here, id, 40)
        trash = task(here, "d" * 64, 40)
        ended = killed_at(here, step)
        assert ended in (0, -signal.SIGKILL)
        found = left(here, id, name)
        # What is still an evaluation is a whole one.
        assert "folder" not in found or found >= WHOLE, (step, found)
        recovery.recover(here)
        aeo("prune", "--older-than", "30d", "--yes")
        assert left(here, id, name) == set(), (step, found)
        assert not trash.exists()
        assert list(here.shared.pruned.iterdir()) == []
        if ended == 0:
            break
        deaths += 1
    assert 5 < deaths < MOST_STEPS


def test_one_that_is_kept_at_the_last_moment_stays(here: Site, tmp_path: Path) -> None:
    (id,) = finished(here, tmp_path, "one")
    found = retention.find(here, timedelta(days=30))
    assert [one.id for one in found.evaluations] == [id]
    retention.keep(here, "one")
    assert retention.remove(here, found).evaluations == ()
    assert left(here, id, "one") >= WHOLE


def test_wrong_input(here: Site, tmp_path: Path) -> None:
    for text in ("30", "d", "-1d", "30 days"):
        assert "30d" in aeo("prune", "--older-than", text, code=2).stderr
    elsewhere = str(tmp_path / "elsewhere")
    assert "no controller's folder" in aeo("prune", "--older-than", "1d", "--shared-root", elsewhere, code=2).stderr
    with pytest.raises(NotFound):
        retention.keep(here, "nobody")
    assert summaries.drop(here.book, "nobody")


def worker(site: Site, root: Path, *, above: float = 1e-9) -> WorkerSite:
    """A worker whose disk is above its watermark."""
    made = worker_site(site, root, "a")
    made.local.batches.mkdir(parents=True, exist_ok=True)
    return replace(made, config=replace(made.config, clean_above=above, clean_days=7))


def aged(path: Path, days: float) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "file").write_text("x")
    for item in (path / "file", path):
        os.utime(item, (time.time() - days * DAY,) * 2)
    return path


def test_a_worker_above_its_watermark_removes_what_nobody_needs(here: Site, tmp_path: Path) -> None:
    old, kept = finished(here, tmp_path, "old", "kept")
    open_ = submit(here, {"name": "open", "trials": 1}).id
    aeo("keep", kept)
    here_now = worker(here, tmp_path)
    local = here_now.local
    for id in (old, kept, open_):
        shutil.rmtree(local.evaluation(id), ignore_errors=True)
        shutil.copytree(here.shared.evaluation(id), local.evaluation(id))
        aged(local.evaluation(id), 10)
        aged(local.all_kept / id, 10)
        for path in local.evaluation(id).iterdir():
            os.utime(path, (time.time() - 10 * DAY,) * 2)
    record = local.evaluation(open_) / "evaluation.json"
    header = json.loads(record.read_text())
    header["plan"]["contents"] = [{"digest": "c" * 64, "name": "one", "source": "/nowhere"}]
    record.write_text(json.dumps(header))
    needed, unneeded = aged(local.tasks / ("c" * 64), 10), aged(local.tasks / ("d" * 64), 10)
    young = aged(local.tasks / ("e" * 64), 1)
    gone = aged(local.all_kept / "pruned-there", 10)

    low = worker(here, tmp_path, above=1.0)
    assert cleaning.clean(low).tasks == ()
    assert unneeded.exists()

    done = cleaning.clean(here_now)
    assert done.tasks == ("d" * 64,)
    assert sorted(done.kept) == sorted([old, gone.name])
    assert sorted(done.evaluations) == sorted([old, kept])
    assert needed.exists()
    assert young.exists()
    assert (local.all_kept / kept / "file").exists()
    assert (local.all_kept / open_ / "file").exists()
    assert local.evaluation(open_).exists()
    assert not any(local.aside.iterdir())


def test_a_worker_removes_nothing_while_nobody_knows_what_is_open(here: Site, tmp_path: Path) -> None:
    here_now = worker(here, tmp_path)
    old = aged(here_now.local.tasks / ("d" * 64), 10)
    here.db.client.flushall()
    with pytest.raises(Unavailable):
        cleaning.clean(here_now)
    assert old.exists()


def test_what_a_dead_worker_had_begun_to_remove_goes_at_the_next_start(here: Site, tmp_path: Path) -> None:
    here_now = worker(here, tmp_path, above=1.0)
    aged(here_now.local.aside / "tasks.x", 0)
    over = threading.Event()
    keeper = threading.Thread(target=cleaning.keep_clean, args=(here_now, over))
    keeper.start()
    eventually(lambda: not here_now.local.aside.exists())
    over.set()
    keeper.join()


def test_a_task_that_is_found_just_now_is_not_taken_away(here: Site, tmp_path: Path) -> None:
    here_now = worker(here, tmp_path)
    digest = "f" * 64
    aged(here_now.local.task(digest, "one"), 30)
    os.utime(here_now.local.tasks / digest, (time.time() - 30 * DAY,) * 2)
    plan = Plan(contents=(ContentFolder(digest=digest, name="one", source="/nowhere"),), version="", trials=())
    trial = PlannedTrial(name="t", task="t", content=digest, payload={})
    assert contents.fetch(here_now, plan, trial) == here_now.local.task(digest, "one")
    assert not contents.drop(here_now.local, digest, time.time() - 7 * DAY)
    assert contents.drop(here_now.local, digest, time.time() + 1)
    assert not (here_now.local.tasks / digest).exists()


def test_a_worker_cleans_up_at_its_start(tmp_path: Path) -> None:
    root = tmp_path / "aeo-data" / "workers" / "worker-1" / "tasks"
    old, young = aged(root / ("d" * 64), 10), aged(root / ("e" * 64), 1)
    environment = {
        "AEO_PORT": str(free_port()),
        "AEO_CLEAN_ABOVE": "0.000001",
        "DOCKER_HOST": "unix:///nowhere/docker.sock",
    }
    up = Program(["up"], tmp_path, environment)
    try:
        eventually(lambda: not old.exists(), 60, pause=0.2)
        assert young.exists()
        eventually(lambda: "task copies 1," in up.output)
    finally:
        up.terminate()
        up.destroy()


@pytest.mark.docker
def test_old_images_of_trials_go_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from aeo.executors.harbor import images, leftovers

    base = "debian:bookworm"
    require(shutil.which("docker") and docker("info", "--format", "{{.ServerVersion}}").strip(), "a Docker engine")
    require(docker("image", "ls", "--quiet", base).strip(), f"the image {base}")
    # Those of others on this machine are not this test's.
    monkeypatch.setattr(images, "BUILT", f"hb__{os.getpid()}")
    mine, used = f"{images.BUILT}mine", f"{images.BUILT}used"
    others, asked = f"others-{os.getpid()}", f"asked-{os.getpid()}"
    folder = tmp_path / "tasks" / "digest" / "task"
    folder.mkdir(parents=True)
    (folder / "task.toml").write_text(f'[environment]\ndocker_image = "{asked}"\n')
    names, container = (mine, others, used, asked), ""
    try:
        for name in names:
            (tmp_path / "Dockerfile").write_text(f"FROM {base}\nRUN echo {name} > /name\n")
            docker("build", "--quiet", "--tag", name, str(tmp_path))
        container = docker("create", used, "true").strip()
        assert images.reclaim(tmp_path, 3600) == ()
        later = time.time() + 10 * DAY
        monkeypatch.setattr(images.time, "time", lambda: later)
        scratch = leftovers.folder(tmp_path / "batches" / "one")
        scratch.mkdir(parents=True)
        leftovers.own(scratch)
        leftovers.note_trial(scratch, "starting", None)
        assert images.reclaim(tmp_path, 9 * DAY) == ()
        leftovers.forget_trial(scratch, "starting")
        assert sorted(images.reclaim(tmp_path, 9 * DAY)) == sorted([f"{mine}:latest", f"{asked}:latest"])
        left = docker("image", "ls", "--format", "{{.Repository}}").split()
        assert {name for name in names if name in left} == {others, used}
    finally:
        docker("rm", "--force", container)
        docker("image", "rm", *names)


def docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=False, timeout=60).stdout
