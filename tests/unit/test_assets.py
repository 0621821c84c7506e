"""What a configuration names is looked at whole before anything is made, and published by its content."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast

import pytest

from aeo import assets, records
from aeo.assets import reading
from aeo.config import Config
from aeo.core.errors import InputError, Problem
from aeo.core.model import Asset, Evaluation, Plan, PlannedTrial, Spec
from aeo.executors import SubmittedFile, load
from aeo.executors.variables import LARGEST
from aeo.layout import Shared
from aeo.site import Site
from aeo.store.connection import Db

PLAN = Plan(trials=(PlannedTrial(name="t", task="t"),))
SECRET = "sk-0123456789abcdefghijklmnop"


@pytest.fixture
def site(tmp_path: Path, fake_db: Db) -> Site:
    shared = Shared(root=tmp_path / "shared", jobs_dir=tmp_path / "shared" / "jobs")
    shared.tasks.mkdir(parents=True)
    shared.jobs_dir.mkdir()
    return Site(config=Config(max_asset_mb=1.0), shared=shared, db=fake_db)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "deep" / "empty").mkdir(parents=True)
    (folder / "deep" / "run.sh").write_text("#!/bin/sh\n")
    (folder / "deep" / "run.sh").chmod(0o755)
    (folder / "word").write_text("right")
    return folder


def mounting(*sources: Path | str, **more: Any) -> dict[str, Any]:
    mounts = [
        {"type": "bind", "source": str(one), "target": f"/in/{n}", "read_only": True} for n, one in enumerate(sources)
    ]
    return {"environment": {"mounts": mounts}, **more}


def joined(site: Site, config: Mapping[str, Any], *, folder: str = "", text: str = "") -> Plan:
    spec = Spec(executor="harbor", name="x", config=config)
    return assets.joined(site, load("harbor"), spec, SubmittedFile(name="job.yaml", folder=folder, text=text), PLAN)


def refused(site: Site, config: Mapping[str, Any], **more: Any) -> tuple[Problem, ...]:
    with pytest.raises(InputError) as caught:
        joined(site, config, **more)
    assert list(site.shared.tasks.iterdir()) == []
    return caught.value.problems


def digest(site: Site, path: Path) -> str:
    (asset,) = joined(site, mounting(path)).assets
    return asset.digest


def test_an_asset_travels_as_a_content_folder(site: Site, data: Path) -> None:
    plan = joined(site, mounting(data))
    (asset,), (content,) = plan.assets, plan.contents
    assert (asset.path, asset.name, asset.writable, asset.private) == (str(data), "data", False, False)
    assert (content.digest, content.name) == (asset.digest, "asset")
    assets.publish(site, plan)
    here = site.shared.tasks / asset.digest / "asset" / "data"
    assert assets.published(site.shared, asset) == here
    assert (here / "word").read_text() == "right"
    assert os.access(here / "deep" / "run.sh", os.X_OK)
    assert (here / "deep" / "empty").is_dir()
    before = here.stat().st_ino
    assets.publish(site, plan)
    assert here.stat().st_ino == before
    assert [path.name for path in site.shared.tasks.iterdir()] == [asset.digest]


def test_without_any_the_plan_stays(site: Site) -> None:
    assert joined(site, {"agents": []}) is PLAN


def test_one_content_has_one_digest_and_any_change_another(site: Site, data: Path, tmp_path: Path) -> None:
    first = digest(site, data)
    assert digest(site, data) == first
    seen = {first}

    def changed() -> None:
        now = digest(site, data)
        assert now not in seen
        seen.add(now)

    (data / "word").write_text("wrong")
    changed()
    (data / "word").rename(data / "other")
    changed()
    (data / "other").chmod(0o755)
    changed()
    (data / "deep" / "empty").rmdir()
    changed()
    (tmp_path / "there").mkdir()
    data.rename(tmp_path / "there" / "data")
    # Where it lies is no part of it, and a copy travels once.
    assert digest(site, tmp_path / "there" / "data") in seen
    plan = joined(site, mounting(tmp_path / "there" / "data", f"{tmp_path}/there/deep/../data"))
    assert len(plan.contents) == 1


def test_a_single_file_and_one_behind_a_link(site: Site, data: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(data / "word")
    plan = joined(site, mounting(data / "word", tmp_path / "link"))
    assets.publish(site, plan)
    assert [assets.published(site.shared, one).read_text() for one in plan.assets] == ["right", "right"]
    assert [one.name for one in plan.assets] == ["word", "link"]


def test_links_inside_travel_as_what_they_mean(site: Site, data: Path) -> None:
    (data / "same").symlink_to("word")
    (data / "folder").symlink_to("deep")
    plan = joined(site, mounting(data))
    assets.publish(site, plan)
    here = assets.published(site.shared, plan.assets[0])
    assert not [path for path in here.rglob("*") if path.is_symlink()]
    assert (here / "folder" / "run.sh").read_text() == "#!/bin/sh\n"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("/etc/hostname", "leads out of"),
        ("../shared", "leads out of"),
        ("nothing", "leads nowhere"),
        (".", "it lies in"),
    ],
)
def test_links_that_lead_elsewhere_are_refused(site: Site, data: Path, target: str, reason: str) -> None:
    (data / "x").symlink_to(target)
    (problem,) = refused(site, mounting(data))
    assert reason in problem.message
    assert str(data / "x") in problem.message


def test_what_is_no_file_is_refused_with_the_way_out(site: Site, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "sock"))
        (problem,) = refused(site, mounting(tmp_path / "sock"))
    assert "neither a file nor a folder" in problem.message
    assert "${NAME}" in problem.fix
    os.mkfifo(tmp_path / "pipe")
    assert "neither a file nor a folder" in refused(site, mounting(tmp_path / "pipe"))[0].message


def test_what_is_missing_is_told_with_its_line_and_where_it_must_be(site: Site, tmp_path: Path) -> None:
    text = f"environment:\n  mounts:\n    - type: bind\n      source: {tmp_path}/gone\n      target: /in\n"
    (problem,) = refused(site, mounting(tmp_path / "gone"), text=text)
    assert problem.field == "job.yaml:4: environment.mounts[0].source"
    assert problem.message == f"{tmp_path}/gone does not exist on the controller."
    assert "read on the controller, at this path" in problem.fix
    assert "job.yaml" in str(refused(site, {"env_file": "no.env"}, folder=str(tmp_path), text="env_file: no.env\n")[0])


def test_every_fault_is_told_at_once(site: Site, data: Path, tmp_path: Path) -> None:
    os.mkfifo(data / "pipe")
    config = mounting(data, tmp_path / "gone", agents=[{"name": "codex", "kwargs": {"config": "rel.toml"}}])
    problems = refused(site, config)
    assert [problem.field for problem in problems] == [
        "environment.mounts[0].source",
        "environment.mounts[1].source",
        "agents[0].kwargs.config",
    ]
    assert "relative" in problems[2].message


def test_all_together_may_not_be_too_large(site: Site, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"x" * 600_000)
    assert len(joined(site, mounting(tmp_path / "a")).assets) == 1
    (problem,) = refused(site, mounting(tmp_path / "a", tmp_path / "b"))
    assert problem.field == "environment.mounts[1].source"
    assert "too large" in problem.message
    assert "--max-asset-mb" in problem.fix


def test_files_are_counted_too(site: Site, data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_FILES", 3)
    assert "more than 3 files" in refused(site, mounting(data))[0].message


@pytest.mark.parametrize("where", ["shared", "shared/tasks", "shared/token", ".", "/"])
def test_the_controllers_own_folder_is_refused(site: Site, tmp_path: Path, where: str) -> None:
    (site.shared.root / "token").write_text("secret")
    (problem,) = refused(site, mounting(tmp_path / where))
    assert "the controller's own folder" in problem.message


@pytest.mark.parametrize("where", ["etc/aeo", "etc/aeo/secrets.key", "etc/aeo/worker.env", "etc", "keys/url", "keys"])
def test_the_controllers_secrets_are_refused(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    for name in ("etc/aeo/secrets.key", "etc/aeo/worker.env", "keys/url", "etc/mine/data"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("secret")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "etc"))
    monkeypatch.setenv("AEO_BROKER_URL", f"@{tmp_path / 'keys' / 'url'}")
    (problem,) = refused(site, mounting(tmp_path / where))
    assert "keeps secret" in problem.message
    (tmp_path / "link").symlink_to(tmp_path / where)
    assert "keeps secret" in refused(site, mounting(tmp_path / "link"))[0].message
    assert joined(site, mounting(tmp_path / "etc" / "mine")).assets


def test_a_key_file_that_was_named_is_refused_wherever_it_is(site: Site, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("secrets.key", "secrets.key.bak", "mine"):
        (keys / name).write_text("secret")
    named = replace(site, config=replace(site.config, secrets_key_file=keys / "secrets.key"))
    for path in (keys, keys / "secrets.key", keys / "secrets.key.bak"):
        assert "keeps secret" in refused(named, mounting(path))[0].message
    assert joined(named, mounting(keys / "mine")).assets


def test_what_takes_an_env_files_place_is_not_published(site: Site, tmp_path: Path) -> None:
    file = tmp_path / "my.env"
    file.write_text(f"KEY={SECRET}\n")
    plan = joined(site, {"env_file": str(file)})
    (site.shared.root / "token").write_text("secret")
    file.unlink()
    file.symlink_to(site.shared.root / "token")
    with pytest.raises(InputError, match="the controller's own folder"):
        assets.publish(site, plan)
    file.unlink()
    file.write_bytes(b"x" * (LARGEST + 1))
    with pytest.raises(InputError, match="was changed just now"):
        assets.publish(site, plan)
    assert list(site.shared.tasks.iterdir()) == []


@pytest.mark.parametrize("path", ["/proc/self/environ", "/proc", "/sys/kernel", "/dev/null", "/dev"])
def test_the_system_itself_is_no_file(site: Site, path: str) -> None:
    (problem,) = refused(site, {"env_file": path} if path == "/dev/null" else mounting(path))
    assert "the controller's system itself" in problem.message
    assert "${NAME}" in problem.fix


def test_what_the_plan_carries_is_asked_about_and_not_sent(site: Site, tmp_path: Path) -> None:
    (site.shared.root / "token").write_text("secret")
    config: dict[str, Any] = {
        "extra_instruction_paths": [str(tmp_path / "more.md")],
        "agents": [{"skills": ["org/skill", "./mine"]}],
    }
    assert joined(site, config, folder=str(tmp_path)) is PLAN
    config["extra_instruction_paths"].append(str(site.shared.root / "token"))
    (problem,) = refused(site, config, folder=str(tmp_path))
    assert problem.field == "extra_instruction_paths[1]"
    assert "the controller's own folder" in problem.message


def test_jobs_around_it_do_not_open_it(site: Site, tmp_path: Path) -> None:
    around = replace(site, shared=Shared(root=site.shared.root, jobs_dir=tmp_path))
    (site.shared.root / "token").write_text("secret")
    assert "the controller's own folder" in refused(around, mounting(site.shared.root / "token"))[0].message


def test_its_datasets_and_jobs_are_not(site: Site) -> None:
    for place in (site.shared.root / "datasets" / "d", site.shared.jobs_dir / "j"):
        place.mkdir(parents=True)
        assert len(joined(site, mounting(place)).assets) == 1


def test_what_may_not_be_read_is_told() -> None:
    # Not below the test's own folder: another user cannot get there.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "word").write_text("right")
        (folder / "word").chmod(0)
        pid = os.fork()
        if pid == 0:
            try:
                if os.getuid() == 0:
                    os.setgid(65534)
                    os.setuid(65534)
                look = reading.look_at(folder, reading.Room())
                os._exit(0 if any("may not be read" in reason for _, reason in look.faults) else 1)
            except BaseException:
                os._exit(2)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_changed_since_it_was_looked_at_is_not_published(site: Site, data: Path) -> None:
    plan = joined(site, mounting(data))
    (data / "word").write_text("wrong")
    with pytest.raises(InputError, match="changed just now"):
        assets.publish(site, plan)
    assert list(site.shared.tasks.iterdir()) == []


def test_a_file_of_variables_is_private(site: Site, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    config = mounting(tmp_path / ".env", env_file=".env")
    plan = joined(site, config, folder=str(tmp_path))
    (asset,) = plan.assets
    assert asset.private
    # Its key tells nothing of it, and it is another one each time.
    assert joined(site, config, folder=str(tmp_path)).assets[0].digest != asset.digest
    assets.publish(site, plan)
    here = assets.published(site.shared, asset)
    assert stat.S_IMODE(here.stat().st_mode) == 0o600
    found = assets.hidden(plan, {asset.path: here})
    assert found == {"OPENAI_API_KEY": SECRET}
    (tmp_path / ".env").write_bytes(b"x" * (LARGEST + 1))
    with pytest.raises(InputError, match="too large for a file of variables"):
        joined(site, config, folder=str(tmp_path))
    (tmp_path / "folder").mkdir()
    with pytest.raises(InputError, match="is no file"):
        joined(site, {"env_file": str(tmp_path / "folder")})


@pytest.mark.parametrize(
    ("line", "value"),
    [
        (f"A_TOKEN={SECRET}", SECRET),
        (f"  export A_TOKEN = {SECRET}   # the key", SECRET),
        (f"A_TOKEN='{SECRET} #1'", f"{SECRET} #1"),
        (f'A_TOKEN="{SECRET}\\n2"', f"{SECRET}\n2"),
        ('A_TOKEN="line one\nline two"', "line one\nline two"),
        ("A_TOKEN=${OTHER_TOKEN}", None),
        ("MODEL=openai/gpt-5", None),
        ("# A_TOKEN=commented-out", None),
        ("A_TOKEN=", None),
    ],
)
def test_values_of_secrets_are_read_and_others_stay_in_sight(tmp_path: Path, line: str, value: str | None) -> None:
    (tmp_path / "f").write_text(f"BEFORE=1\n{line}\nAFTER=2\n")
    plan = replace(PLAN, assets=(Asset(path="/f", digest="d", name="f", private=True),))
    assert assets.hidden(plan, {"/f": tmp_path / "f"}) == ({} if value is None else {"A_TOKEN": value})
    assert assets.hidden(plan, {"/f": tmp_path / "gone"}) == {}


def test_a_writable_one_is_told(site: Site, data: Path) -> None:
    config = mounting(data)
    del cast("dict[str, Any]", config["environment"])["mounts"][0]["read_only"]
    plan = joined(site, config)
    assert plan.assets[0].writable
    assert any("not brought back" in warning for warning in plan.warnings)


def test_what_is_another_content_than_before_is_named(site: Site, data: Path, tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("A=1\n")
    config = mounting(data, env_file=str(tmp_path / ".env"))
    before = joined(site, config)
    assert assets.changed(before, joined(site, config)) == ()
    (data / "word").write_text("wrong")
    (tmp_path / ".env").write_text("A=2\n")
    assert assets.changed(before, joined(site, config)) == (str(data),)


def test_what_could_not_be_stored_there_is_told(site: Site, data: Path) -> None:
    deep = data.joinpath(*["x" * 200] * 11)
    deep.mkdir(parents=True)
    assert "path that is too long" in refused(site, mounting(data))[0].message


def test_a_pipe_in_a_files_place_is_not_waited_for(site: Site, data: Path) -> None:
    plan = joined(site, mounting(data))
    (data / "word").unlink()
    os.mkfifo(data / "word")
    with pytest.raises(InputError, match="changed just now"):
        assets.publish(site, plan)
    assert list(site.shared.tasks.iterdir()) == []


def test_what_arrives_loses_an_evaluations_own_secrets(site: Site, tmp_path: Path) -> None:
    (tmp_path / "my.env").write_text(f"OPENAI_API_KEY={SECRET}\n")
    plan = joined(site, {"env_file": str(tmp_path / "my.env")})
    assets.publish(site, plan)
    (tmp_path / "my.env").unlink()
    spec, now = Spec(executor="harbor", name="x"), datetime.now(timezone.utc)
    for id, one in (("with", plan), ("without", PLAN)):
        site.shared.evaluation(id).mkdir(parents=True)
        records.write(site.shared.evaluation(id), Evaluation(id=id, spec=spec, plan=one, submitted_at=now))
    (redactor,) = assets.redactors(site, "with")
    assert redactor.text(f"the key is {SECRET}") == "the key is ${OPENAI_API_KEY}"
    assert list(assets.redactors(site, "without")) == list(assets.redactors(site, "nobodys")) == []
