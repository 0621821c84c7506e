"""A rerun takes over what is good, runs the rest, and leaves the earlier evaluation as it was."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from engine import closed, logged, register, result, running, submit
from flask.testing import FlaskClient

from aeo import (
    audit,
    checks,
    control,
    dispatch,
    evaluations,
    event_log,
    progress,
    reconciliation,
    recovery,
    rerun,
    summaries,
)
from aeo.core.errors import Conflict, InputError, NotFound, Unavailable
from aeo.core.model import EvaluationState, Outcome, TrialState
from aeo.core.rerun import Choice
from aeo.executors.folder import FlatCarrier
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import health, trials
from aeo.submission import Submission
from aeo.transfer import copy
from webapp import create_app

CONFIG: dict[str, Any] = {
    "name": "first",
    "tasks": 4,
    "attempts": 2,
    "reward": [1, 0.5],
    "fail": {"task-2": "infra", "task-3": "invalid"},
}
INFRA = Choice(outcomes=frozenset({Outcome.INFRA_ERROR}))
#: The same with task-2 repaired.
REPAIRED = {"executor": "sleep", **CONFIG, "fail": {"task-3": "invalid"}}


@pytest.fixture(autouse=True)
def _pool(site: Site) -> None:
    for id in ("a", "b"):
        register(site, id, slots=2)
    health.mark_recovered(site.db)


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconciliation, "RECLAIM_SECONDS", 0.0)
    monkeypatch.setattr(control, "REPAIR_SECONDS", 0.1)
    monkeypatch.setattr(control, "INBOX_WAIT", 0.05)


@pytest.fixture
def first(site: Site, tmp_path: Path) -> str:
    """An evaluation that ended with two infrastructure errors and two invalid results."""
    with running(site, tmp_path, "a", "b"):
        evaluation = submit(site, CONFIG, max_requeues=0)
        status = closed(site, evaluation.id)
    assert status.state is EvaluationState.FAILED
    logged(site, evaluation.id)
    return evaluation.id


def look(folder: Path) -> dict[str, tuple[int, int, bytes]]:
    """Everything of a folder by which a change would be seen."""
    found = {}
    for path in sorted(folder.rglob("*")):
        state = path.stat()
        if stat.S_ISREG(state.st_mode):
            found[str(path.relative_to(folder))] = (state.st_ino, state.st_mtime_ns, path.read_bytes())
    return found


def everything(site: Site) -> list[str]:
    """Whatever lies in the controller's folders and in the store, but for events and what remembers."""
    return sorted(
        [str(p.relative_to(site.shared.root)) for p in site.shared.root.rglob("*") if "summaries" not in p.name]
        + [key for key in site.db.client.keys("*") if not key.startswith(("aeo:w", "aeo:events", "aeo:recovered"))]
    )


def by_task(site: Site, id: str) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for view in progress.trials(site, id)[0]:
        found.setdefault(view.task, []).append(view)
    return found


def config_of(site: Site, **changes: Any) -> Submission:
    return Submission(config={**REPAIRED, **changes})


def test_only_what_was_chosen_runs_and_the_earlier_one_stays_as_it_is(site: Site, tmp_path: Path, first: str) -> None:
    job, before = site.shared.job("first"), look(site.shared.job("first"))
    record, status = look(site.shared.evaluation(first)), store.get(site.db, first)
    made = rerun.rerun(site, "first", INFRA, config_of(site), owner="alice")
    new = made.evaluation
    assert (new.parent, new.owner, new.spec.name) == (first, "alice", "first-2")
    assert (made.status.parent, made.status.done, made.status.pending) == (first, 6, 2)
    with running(site, tmp_path, "a", "b"):
        status_now = closed(site, new.id)
    assert status_now.state is EvaluationState.SUCCEEDED
    assert status_now.outcomes[Outcome.SCORED] == 6
    assert status_now.outcomes[Outcome.INVALID] == 2
    events = logged(site, new.id)
    kinds = {kind: Counter(e["trial"] for e in events if e["kind"] == kind) for kind in ("carried", "committed")}
    assert (len(kinds["carried"]), len(kinds["committed"])) == (6, 2)
    assert set((kinds["carried"] + kinds["committed"]).values()) == {1}
    assert {e["origin"].partition("/")[0] for e in events if e["kind"] == "carried"} == {first}
    ran = {view.trial for view in by_task(site, new.id)["task-2"]}
    assert set(kinds["committed"]) == ran
    # Nothing of the earlier one moved, in the store or on disk.
    assert look(job) == before
    assert look(site.shared.evaluation(first)) == record
    assert store.get(site.db, first) == status
    assert [finding.faults for finding in audit.check(site, [first, new.id])] == [(), ()]


def test_rows_are_those_of_the_earlier_runs_under_the_new_names(site: Site, first: str) -> None:
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    rows = {row.summary.trial: row for row in trials.rows_since(site.db, new.id, 0)}
    old = {row.summary.trial: row for row in trials.rows_since(site.db, first, 0)}
    assert len(rows) == 6
    for row in rows.values():
        evaluation, _, trial = row.origin.partition("/")
        was = old[trial]
        assert evaluation == first
        assert replace(row.summary, trial=trial) == was.summary
        assert (row.worker, row.attempt, row.committed_at) == (was.worker, was.attempt, was.committed_at)
    order = [(view.task, view.row and view.row.summary.rewards) for view in progress.trials(site, new.id)[0]]
    assert [rewards for task, rewards in order if task == "task-1"] == [{"reward": 1.0}] * 2


def test_copies_name_the_new_job_and_share_nothing_with_the_old(site: Site, first: str) -> None:
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    job, old_job = Path(new.job_dir), site.shared.job("first")
    old_files = {(path.stat().st_dev, path.stat().st_ino) for path in old_job.rglob("*") if path.is_file()}
    folders = [path for path in job.iterdir() if path.is_dir()]
    assert len(folders) == 6
    for folder in folders:
        document = json.loads((folder / "result.json").read_text())
        assert document["trial_name"] == folder.name
        assert document["trial_uri"] == folder.as_uri()
        assert document["config"] == json.loads((folder / "config.json").read_text())
        assert document["config"]["job_id"] == new.plan.header["job_id"]
        whole = (folder / "result.json").read_text() + (folder / "config.json").read_text()
        assert str(old_job) + "/" not in whole
        for path in folder.rglob("*"):
            assert (path.stat().st_dev, path.stat().st_ino) not in old_files
    assert list(site.shared.jobs_dir.glob(".*")) == []


def test_the_merged_job_is_that_of_one_evaluation(site: Site, tmp_path: Path, first: str) -> None:
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    with running(site, tmp_path, "a", "b"):
        closed(site, new.id)
        whole = submit(site, {**CONFIG, "name": "whole", "fail": {"task-3": "invalid"}})
        closed(site, whole.id)

    def stats(name: str) -> dict[str, Any]:
        tasks = {view.trial: view.task for view in progress.trials(site, name)[0]}
        text = json.dumps(result(site, name)["stats"])
        for trial, task in tasks.items():
            text = text.replace(trial, task)
        found: dict[str, Any] = json.loads(text)
        for group in found["evals"].values():
            for kinds in (*group["reward_stats"].values(), group["exception_stats"]):
                for names in kinds.values():
                    names.sort()
        return found

    assert stats("first-2") == stats("whole")
    assert result(site, "first-2")["n_total_trials"] == 8


def test_what_changed_runs_anew_and_the_warnings_say_so(site: Site, first: str) -> None:
    made = rerun.rerun(site, first, INFRA, config_of(site, tasks=5, attempts=1, reward=[1, 0.5, 1, 0.25]))
    assert made.warnings == (
        f"2 of 5 trials keep the result from first ({first}).",
        "1 trial to run: ended as infra_error.",
        "1 trial to run: a good result, but of another trial: reward is 0.25, was 0.5.",
        "1 trial to run: not part of it.",
        "Left behind: 3 trials with a good result, as nothing like that is planned now.",
    )
    assert made.evaluation.plan.warnings == made.warnings


def test_without_a_configuration_it_is_the_earlier_one(site: Site, first: str) -> None:
    made = rerun.rerun(site, first, Choice(errors=frozenset({"RewardFileNotFoundError"})))
    assert made.evaluation.spec.config["fail"] == CONFIG["fail"]
    assert made.evaluation.spec.max_requeues == 0
    assert (made.status.done, made.status.pending) == (6, 2)
    assert {view.task for view in progress.trials(site, made.evaluation.id, state=TrialState.PENDING)[0]} == {"task-3"}
    named = rerun.rerun(site, first, INFRA, Submission(options={"name": "other"}))
    assert named.evaluation.spec.name == "other"


def test_what_was_cancelled_is_run_without_being_chosen(site: Site, tmp_path: Path) -> None:
    cancelled = submit(site, {"name": "stopped", "tasks": 3})
    evaluations.cancel(site, cancelled.id)
    assert closed(site, cancelled.id).state is EvaluationState.CANCELLED
    made = rerun.rerun(site, "stopped", Choice())
    assert (made.status.done, made.status.pending) == (0, 3)
    with running(site, tmp_path, "a"):
        assert closed(site, made.evaluation.id).state is EvaluationState.SUCCEEDED


def test_a_rerun_is_rerun_and_knows_where_its_results_ran(site: Site, tmp_path: Path, first: str) -> None:
    second = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    with running(site, tmp_path, "a", "b"):
        closed(site, second.id)
    third = rerun.rerun(site, second.id, Choice(outcomes=frozenset({Outcome.INVALID})), Submission()).evaluation
    origins = Counter(row.origin.partition("/")[0] for row in trials.rows_since(site.db, third.id, 0))
    assert origins == {first: 4, second.id: 2}
    assert [(item.id, item.name) for item in progress.detail(site, second.id).reruns] == [(third.id, "first-3")]
    parent = progress.detail(site, third.id).parent
    assert parent is not None
    assert (parent.id, parent.name) == (second.id, "first-2")


def test_tables_and_charts_tell_what_ran_here_from_what_was_taken_over(site: Site, tmp_path: Path, first: str) -> None:
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    with running(site, tmp_path, "a", "b"):
        closed(site, new.id)
    detail = progress.detail(site, new.id)
    assert sum(share.done for share in detail.shares.values()) == 2
    assert (detail.scores[0].scored, detail.scores[0].planned) == (6, 8)
    assert {bar.trial for bar in summaries.timeline(site.book, new.id)} == {
        view.trial for view in by_task(site, new.id)["task-2"]
    }
    assert summaries.past_tasks(site.book, "sleep")["task-1"].runs == 2
    assert summaries.past_tasks(site.book, "sleep")["task-2"].runs == 4
    origins = [line.origin for line in summaries.each(site.book, new.id)]
    assert sum(bool(origin) for origin in origins) == 6


@pytest.mark.parametrize("flushed", [True, False])
def test_a_wiped_store_loses_nothing_of_it(site: Site, tmp_path: Path, first: str, flushed: bool) -> None:
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    rows = trials.rows_since(site.db, new.id, 0)
    if flushed:
        logged(site, new.id)
    site.db.client.flushall()
    for id in ("a", "b"):
        register(site, id, slots=2)
    recovery.recover(site)
    again = trials.rows_since(site.db, new.id, 0)
    assert sorted(again, key=lambda row: row.summary.trial) == sorted(rows, key=lambda row: row.summary.trial)
    status = store.get(site.db, new.id)
    assert (status.parent, status.done, status.pending) == (first, 6, 2)
    assert [item.id for item in progress.detail(site, first).reruns] == [new.id]
    with running(site, tmp_path, "a", "b"):
        assert closed(site, new.id).outcomes[Outcome.SCORED] == 6
    logged(site, new.id)
    assert audit.check(site, [new.id])[0].faults == ()


def failing(error: BaseException) -> Any:
    def fail(*_: object, **__: object) -> Any:
        raise error

    return fail


@pytest.mark.parametrize(
    ("place", "error", "expected"),
    [
        ((dispatch, "send"), Unavailable("broker"), Unavailable),
        ((store, "save"), Unavailable("store"), Unavailable),
        ((trials, "carry"), Unavailable("store"), Unavailable),
        ((copy, "folder"), OSError(28, "No space left on device"), Unavailable),
        ((FlatCarrier, "carry"), ValueError("NaN"), InputError),
    ],
)
def test_a_failure_on_the_way_leaves_nothing(
    site: Site,
    first: str,
    monkeypatch: pytest.MonkeyPatch,
    place: tuple[Any, str],
    error: Exception,
    expected: type[Exception],
) -> None:
    before = everything(site)
    monkeypatch.setattr(*place, failing(error))
    with pytest.raises(expected):
        rerun.rerun(site, first, INFRA, config_of(site))
    assert everything(site) == before


class Killed(BaseException):
    """The process died here: nothing after it runs."""


@pytest.mark.parametrize("place", [(trials, "carry"), (FlatCarrier, "carry"), (store, "save"), (dispatch, "send")])
def test_a_death_half_way_is_cleared_away(
    site: Site, first: str, monkeypatch: pytest.MonkeyPatch, place: tuple[Any, str]
) -> None:
    before = everything(site)
    with monkeypatch.context() as patch:
        patch.setattr(*place, failing(Killed()))
        # What would tidy up does not come to it.
        patch.setattr("aeo.evaluations.ExitStack", Forgetful)
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        with pytest.raises(Killed):
            rerun.rerun(site, first, INFRA, config_of(site))
    assert everything(site) != before
    event_log.write(site)
    recovery.recover(site)
    if place[0] is dispatch:
        # It was born: its folder stands, and the repairs send what was not sent.
        (new,) = set(store.open_ids(site.db))
        assert store.get(site.db, new).done == 6
        return
    reconciliation.reconcile(site)
    assert everything(site) == before


class Forgetful:
    """Of a process that died: nothing is undone."""

    def __enter__(self) -> Forgetful:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def callback(self, *_: object, **__: object) -> None:
        pass

    def pop_all(self) -> None:
        pass


def test_the_log_of_one_that_is_just_being_made_is_kept(
    site: Site, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry = trials.carry

    def carried_and_written(*arguments: Any) -> int:
        done = carry(*arguments)
        event_log.write(site)
        return done

    monkeypatch.setattr(trials, "carry", carried_and_written)
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    kinds = Counter(event["kind"] for event in logged(site, new.id))
    assert (kinds["submitted"], kinds["carried"]) == (1, 6)


def test_folders_that_are_gone_or_spoilt_are_run_and_told(site: Site, first: str) -> None:
    job = site.shared.job("first")
    gone, spoilt = (views[0].trial for task, views in by_task(site, first).items() if task in ("task-1", "task-4"))
    shutil.rmtree(job / gone)
    (job / spoilt / "result.json").write_text("{}")
    made = rerun.rerun(site, first, INFRA, config_of(site))
    assert made.status.done == 4
    assert "1 trial to run: the folder of its result is gone." in made.warnings
    assert "1 trial to run: its result cannot be read any more." in made.warnings
    shutil.rmtree(job)
    with pytest.raises(InputError, match="job folder of first is gone"):
        rerun.rerun(site, first, INFRA, config_of(site, name="third"))


def test_links_and_pipes_in_a_folder_are_not_followed(site: Site, tmp_path: Path, first: str) -> None:
    (tmp_path / "outside").write_text("not yours")
    trial = by_task(site, first)["task-1"][0].trial
    folder = site.shared.job("first") / trial
    (folder / "link").symlink_to(tmp_path / "outside")
    os.mkfifo(folder / "pipe")
    (folder / "agent").mkdir(exist_ok=True)
    (folder / "agent" / "own.txt").write_text("own")
    new = rerun.rerun(site, first, INFRA, config_of(site)).evaluation
    name = by_task(site, new.id)["task-1"][0].trial
    copied = Path(new.job_dir) / name
    assert (copied / "agent" / "own.txt").read_text() == "own"
    assert not os.path.lexists(copied / "link")
    assert not os.path.lexists(copied / "pipe")


def test_secrets_known_by_now_are_taken_out_of_the_copies(
    site: Site, first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = by_task(site, first)["task-1"][0].trial
    old = site.shared.job("first") / trial / "trial.log"
    old.write_text("the key is hunter2-hunter2\n")
    monkeypatch.setenv("SOME_KEY", "hunter2-hunter2")
    knowing = replace(site, config=replace(site.config, secret_names=("SOME_KEY",)))
    new = rerun.rerun(knowing, first, INFRA, config_of(site)).evaluation
    name = by_task(site, new.id)["task-1"][0].trial
    assert (Path(new.job_dir) / name / "trial.log").read_text() == "the key is ${SOME_KEY}\n"
    assert "hunter2" in old.read_text()


def test_what_cannot_be_rerun_is_refused_and_nothing_is_made(site: Site, first: str) -> None:
    before = everything(site)
    with pytest.raises(NotFound):
        rerun.rerun(site, "nothing", INFRA)
    with pytest.raises(InputError, match="no trial of first ended with 'Typo'") as error:
        rerun.rerun(site, first, Choice(errors=frozenset({"Typo"})))
    assert "EnvironmentStartTimeoutError, RewardFileNotFoundError" in str(error.value)
    with pytest.raises(InputError, match="nothing is left to run"):
        rerun.rerun(site, first, Choice())
    request = Submission(config={"executor": "command", "tasks": [{"name": "t", "command": "true"}]})
    with pytest.raises(InputError, match="its results are none of command"):
        rerun.rerun(site, first, INFRA, request)
    (site.shared.jobs_dir / "there").mkdir()
    with pytest.raises(Conflict, match="exists already"):
        rerun.rerun(site, first, INFRA, Submission(options={"name": "there"}))
    (site.shared.jobs_dir / "there").rmdir()
    assert everything(site) == before
    open_one = submit(site, {"name": "open", "tasks": 1})
    with pytest.raises(Conflict, match="open is running"):
        rerun.rerun(site, open_one.id, INFRA)


def test_a_check_tells_the_same_and_makes_nothing(site: Site, first: str) -> None:
    before = everything(site)
    request, inherit = rerun.prepared(site, first, INFRA, config_of(site))
    found = checks.check(site, request, inherit=inherit)
    assert found.problems == ()
    assert (found.name, found.trials, found.carried) == ("first-2", 8, 6)
    assert sum(share.trials for share in found.shares) == 2
    assert f"6 of 8 trials keep the result from first ({first})." in found.warnings
    request, inherit = rerun.prepared(site, first, Choice(), config_of(site, fail=CONFIG["fail"]))
    found = checks.check(site, request, inherit=inherit)
    assert [problem.message for problem in found.problems] == [
        f"nothing is left to run: every trial has a good result in first ({first})."
    ]
    assert everything(site) == before


TOKEN = "s3cret-token-of-this-test"


@pytest.fixture
def client(site: Site) -> FlaskClient:
    """A browser that signed in."""
    browser = create_app(replace(site, config=replace(site.config, auth_token=TOKEN))).test_client()
    assert browser.get(f"/?token={TOKEN}").status_code == 303
    return browser


def bearer(client: FlaskClient, path: str, body: object) -> Any:
    return client.post(path, json=body, headers={"Authorization": f"Bearer {TOKEN}"})


def test_by_the_api(client: FlaskClient, site: Site, first: str) -> None:
    body = {"outcomes": ["infra_error"], "config": {**REPAIRED, "name": "by-api"}}
    plan = bearer(client, f"/api/evaluations/{first}/rerun/plan", body)
    assert (plan.status_code, plan.json["carried"], plan.json["problems"]) == (200, 6, [])
    made = bearer(client, f"/api/evaluations/{first}/rerun", body)
    assert made.status_code == 201
    status = made.json["evaluation"]
    assert (status["name"], status["parent"], status["owner"], status["done"]) == ("by-api", first, "operator", 6)
    assert made.json["warnings"][0] == f"6 of 8 trials keep the result from first ({first})."
    told = client.get(f"/api/evaluations/{first}", headers={"Authorization": f"Bearer {TOKEN}"}).json
    assert told["reruns"] == [{"id": status["id"], "name": "by-api", "state": "running"}]
    told = client.get(f"/api/evaluations/{status['id']}", headers={"Authorization": f"Bearer {TOKEN}"}).json
    assert told["parent"] == {"id": first, "name": "first", "state": "failed"}
    again = bearer(client, f"/api/evaluations/{status['id']}/rerun", {"outcomes": ["infra_error"]})
    assert (again.status_code, again.json["problems"][0]["field"]) == (409, "id")
    for wrong in ({"outcomes": ["bad"]}, {"errors": "x"}, {"errors": ["Typo"]}, {}):
        assert bearer(client, f"/api/evaluations/{first}/rerun", wrong).status_code == 422
    assert bearer(client, "/api/evaluations/nobody/rerun", {}).status_code == 404


def test_on_the_page(client: FlaskClient, site: Site, first: str) -> None:
    page = client.get(f"/evaluations/new?rerun={first}&error=RewardFileNotFoundError").text
    ticked = dict(
        re.findall(r'<input type="checkbox" id="(?:error|outcome)-\d" name="\w+" value="(\w+)"( checked)?>', page)
    )
    assert ticked == {
        "infra_error": "",
        "invalid": "",
        "EnvironmentStartTimeoutError": "",
        "RewardFileNotFoundError": " checked",
    }
    csrf = re.search(r'name="csrf_token" value="([^"]+)"', page)
    assert csrf is not None
    text = yaml.safe_dump({**REPAIRED, "name": "first"})
    form = {"csrf_token": csrf[1], "mode": "yaml", "text": text, "rerun": first, "outcome": "infra_error"}
    checked = client.post("/evaluations/new", data={**form, "do": "check"}, headers={"Origin": "http://localhost"})
    assert checked.status_code == 200
    assert f"6 of 8 trials keep the result from first ({first})." in checked.text
    nothing = {key: value for key, value in form.items() if key != "outcome"} | {
        "text": yaml.safe_dump({"executor": "sleep", **CONFIG}),
        "do": "submit",
    }
    refused = client.post("/evaluations/new", data=nothing, headers={"Origin": "http://localhost"})
    assert refused.status_code == 422
    assert "nothing is left to run" in refused.text
    made = client.post("/evaluations/new", data={**form, "do": "submit"}, headers={"Origin": "http://localhost"})
    assert made.status_code == 303
    status = store.find(site.db, "first-2")
    assert (status.parent, status.done, status.owner) == (first, 6, "operator")
    assert f'href="/evaluations/{first}">first</a>' in client.get(made.headers["Location"]).text
    assert f'href="/evaluations/{status.id}">first-2</a>' in client.get(f"/evaluations/{first}").text
