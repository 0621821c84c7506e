"""`aeo doctor --store` and `aeo recover` on a real server, beside a running engine and after a wipe."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from engine import closed, logged, register, running, submit
from waiting import eventually

from aeo import audit
from aeo.cli import main
from aeo.config import Config
from aeo.core.errors import Unavailable
from aeo.core.model import EvaluationState
from aeo.embedded import server as embedded
from aeo.site import Site, open_site
from aeo.store import evaluations as store
from aeo.store import events, trials


@pytest.fixture
def here(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """The site as commands on this machine find it, with a worker."""
    monkeypatch.setenv("AEO_SHARED_ROOT", str(site.shared.root))
    monkeypatch.setenv("AEO_BROKER_URL", site.config.broker_url)
    monkeypatch.setattr(audit, "BETWEEN_SECONDS", 0.05)
    register(site, "a")
    return site


def aeo(*args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def finished(site: Site, tmp_path: Path, name: str = "mine", **config: Any) -> str:
    evaluation = submit(site, {"name": name, "trials": 4, **config})
    with running(site, tmp_path, "a"):
        closed(site, evaluation.id)
    return evaluation.id


def test_all_is_right_while_it_runs_and_when_it_ended(here: Site, tmp_path: Path) -> None:
    evaluation = submit(here, {"name": "mine", "trials": 40, "seconds": [0.0, 0.05]})
    with running(here, tmp_path, "a"):
        looks = 0
        while store.get(here.db, evaluation.id).done < 40:
            (found,) = audit.check(here)
            assert found.faults == ()
            looks += 1
        assert looks > 3
        closed(here, evaluation.id)
    assert aeo("doctor", "--store").stdout == f"mine ({evaluation.id}) succeeded: ok\n"
    report = json.loads(aeo("doctor", "--store", "mine", "--json").stdout)
    assert report["evaluations"] == [
        {"evaluation": evaluation.id, "name": "mine", "state": "succeeded", "faults": [], "note": ""}
    ]


def test_what_is_wrong_in_store_log_and_job_folder_is_printed(here: Site, tmp_path: Path) -> None:
    id = finished(here, tmp_path)
    other = submit(here, {"name": "other", "trials": 1}).id
    job, names = here.shared.job("mine"), list(trials.states(here.db, id))
    shutil.rmtree(job / names[0])
    (job / "copy of it").mkdir()
    logged(here, id)
    events.emit(here.db, id, "committed", trial=names[1], token="again", attempt=2, row="{}")
    here.db.client.hincrby(f"aeo:e:{id}", "done", 1)
    result = aeo("doctor", "--store", code=1)
    lines = result.stdout.splitlines()
    assert f"other ({other}) running: ok" in lines
    wrong = [line for line in lines if line.startswith(f"mine ({id}) succeeded: FAULT: ")]
    assert len(wrong) == len(lines) - 1 == 4, result.stdout
    for text in (
        f"trial {names[0]} is committed, but its folder is not in the job folder",
        "no trial is named copy of it, but a folder of it is in the job folder",
        f"trial {names[1]} was committed 2 times",
        "the counter done says 5, a recount 4",
    ):
        assert text in result.stdout
    # The same when the second commit has come to disk.
    logged(here, id)
    assert len(json.loads(aeo("doctor", "--store", id, "--json", code=1).stdout)["evaluations"][0]["faults"]) == 4
    aeo("doctor", "--store", "other")


def test_a_job_folder_taken_away_after_the_end_is_no_fault(here: Site, tmp_path: Path) -> None:
    finished(here, tmp_path)
    here.shared.job("mine").rename(tmp_path / "archive")
    assert "was taken away, so it is not compared" in aeo("doctor", "--store").stdout


def test_a_fault_that_passes_is_not_told(here: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A look between a commit's rename and its step of the store."""
    id = submit(here, {"name": "mine", "trials": 1}).id
    (name,) = trials.states(here.db, id)
    place = here.shared.job("mine") / name
    place.mkdir()
    monkeypatch.setattr(audit.time, "sleep", lambda _: shutil.rmtree(place))
    assert audit.check(here)[0].faults == ()
    monkeypatch.setattr(audit.time, "sleep", lambda _: None)
    place.mkdir()
    assert audit.check(here)[0].faults == (f"trial {name} is not committed, but a folder of it is in the job folder",)


def test_doctor_reads_only(here: Site, tmp_path: Path) -> None:
    finished(here, tmp_path)
    submit(here, {"name": "other", "trials": 3})

    def picture() -> Any:
        kept = {name: here.db.client.dump(name) for name in here.db.client.scan_iter(count=1000)}
        return kept, sorted(str(path) for path in here.shared.root.rglob("*"))

    before = picture()
    aeo("doctor", "--store")
    assert picture() == before


def test_a_wiped_store_is_seen_and_recovered(here: Site, tmp_path: Path) -> None:
    ended = finished(here, tmp_path, "ended")
    half = submit(here, {"name": "half", "trials": 30, "seconds": [0.0, 0.0, 0.05]}).id
    with running(here, tmp_path, "a"):
        eventually(lambda: store.get(here.db, half).done >= 5)
    kept = sum(path.is_dir() for path in here.shared.job("half").iterdir())
    arrived = len(list(here.shared.inbox.glob("*/*.json")))
    here.db.client.flushall()

    told = aeo("doctor", "--store", code=1).stdout
    assert f"half ({half}): FAULT: it is on disk, but the store does not know it" in told
    done = json.loads(aeo("recover", "--json").stdout)["recovered"]
    assert done == {
        "wiped": True,
        "known": 0,
        "entered": sorted([ended, half]),
        "damaged": [],
        "adopted": 4 + kept,
        "arrived": arrived,
    }
    assert aeo("doctor", "--store").stdout.count(": ok") == 2
    again = aeo("recover").stdout
    assert "known: 2; entered again: 0" in again
    assert "entered from job folders: 0" in again

    register(here, "b")
    with running(here, tmp_path, "b"):
        # Beside the running controller, and wiped once more.
        eventually(lambda: store.get(here.db, half).done > kept)
        here.db.client.flushall()
        register(here, "b")
        aeo("recover")
        assert closed(here, half).state is EvaluationState.SUCCEEDED
    for id in (ended, half):
        logged(here, id)
    assert aeo("doctor", "--store").stdout.count(": ok") == 2


def test_damaged_files_are_told_by_both(here: Site) -> None:
    id = submit(here, {"name": "mine", "trials": 1}).id
    here.db.client.flushall()
    (here.shared.evaluation(id) / "trials.jsonl").write_text("{")
    assert f"{id}: FAULT: it cannot be read from disk" in aeo("doctor", "--store", code=1).stdout
    assert id in aeo("recover", code=1).stderr
    assert json.loads(aeo("recover", "--json", code=1).stdout)["recovered"]["damaged"] == [id]


def test_an_evaluation_without_its_folder_is_a_fault(here: Site) -> None:
    id = submit(here, {"name": "mine", "trials": 1}).id
    shutil.rmtree(here.shared.evaluation(id))
    assert f"{id} running: FAULT: it cannot be read from disk" in aeo("doctor", "--store", code=1).stdout


def test_wrong_input(here: Site, tmp_path: Path) -> None:
    assert "--store" in aeo("doctor", "mine", code=2).stderr
    assert "nobody" in aeo("doctor", "--store", "nobody", code=2).stderr
    for command in (("doctor", "--store"), ("recover",)):
        result = aeo(*command, "--shared-root", str(tmp_path / "elsewhere"), code=2)
        assert "is no controller's folder" in result.stderr
        assert not (tmp_path / "elsewhere").exists()
    assert "No evaluations." in aeo("doctor", "--store").stderr


def test_the_embedded_servers_address_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AEO_BROKER_URL", raising=False)
    monkeypatch.setattr(audit, "BETWEEN_SECONDS", 0.05)
    root = tmp_path / "shared"
    with pytest.raises(Unavailable):
        embedded.address(root / "redis")
    running_server = embedded.start(root / "redis")
    try:
        assert embedded.address(root / "redis") == running_server.url
        site = open_site(Config(shared_root=root, broker_url=running_server.url))
        register(site, "a")
        submit(site, {"name": "mine", "trials": 2})
        assert aeo("doctor", "--store", "--shared-root", str(root)).stdout.endswith("running: ok\n")
        assert "known: 1" in aeo("recover", "--shared-root", str(root)).stdout
        site.db.close()
    finally:
        embedded.stop(running_server)
    result = aeo("doctor", "--store", "--shared-root", str(root), code=1)
    password = (root / "redis" / "password").read_text()
    assert result.stderr.startswith("Error: The store at 127.0.0.1:")
    assert password not in result.output
