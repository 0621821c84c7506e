"""The JSON API over the real engine and a real server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from datetime import datetime, timezone
from typing import Any

import pytest
from flask.testing import FlaskClient
from pydantic import BaseModel

from aeo import codec
from aeo.core.model import Batch, EvaluationState, Outcome, TrialRow, TrialSummary, WorkerInfo
from aeo.progress import EvaluationDetail, TrialView
from aeo.registration import Addresses
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store import trials
from aeo.store.evaluations import EvaluationStatus
from aeo.transfer import remote
from aeo.workers import WorkerView
from webapp import create_app
from webapp.api import schemas

TOKEN = "s3cret-token-of-this-test"
BROKER_PASSWORD = "told-to-workers-only"


def worker(id: str = "w1", **changes: Any) -> dict[str, Any]:
    return {
        "id": id,
        "display_name": f"Worker {id}",
        "host": "host-1",
        "capacity": {"slots": 2, "cpus": 4.0, "memory_mb": 8192},
        "boot": "boot-1",
        "instance": "instance-1",
        "executors": {"sleep": ""},
        "version": "0.1.0",
        **changes,
    }


@pytest.fixture
def web_site(site: Site) -> Site:
    config = replace(
        site.config,
        auth_token=TOKEN,
        worker_broker_url=f"redis://:{BROKER_PASSWORD}@broker.example:6379",
        transfer_url="rsync://aeo@files.example/aeo",
        transfer_password="of-rsync",
    )
    return replace(site, config=config)


@pytest.fixture
def client(web_site: Site) -> FlaskClient:
    client = create_app(web_site).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


@pytest.fixture
def submitted(client: FlaskClient) -> dict[str, Any]:
    """A submitted evaluation of 6 trials."""
    assert client.post("/api/workers", json=worker()).status_code == 200
    body = {"text": "executor: sleep\nname: first\ntasks: 3\nattempts: 2\nseconds: 0\n", "file_name": "job.yaml"}
    answer = client.post("/api/evaluations", json=body)
    assert answer.status_code == 201, answer.text
    status: dict[str, Any] = answer.json["evaluation"]
    assert answer.headers["Location"] == f"/api/evaluations/{status['id']}"
    return status


def finish_one(site: Site, id: str, outcome: Outcome = Outcome.SCORED) -> str:
    """Run one trial as a worker and control would."""
    batch = next(item.batch for item in store.batches(site.db, id) if item.left)
    claim = trials.claim(site.db, Batch(id=batch.id, evaluation=id, worker="w1"), token="t1", lease_seconds=60)
    assert claim
    now = datetime.now(timezone.utc)
    summary = TrialSummary(
        trial=claim.trial,
        task=claim.trial.partition("__")[0],
        outcome=outcome,
        rewards={"reward": 1.0} if outcome is Outcome.SCORED else {},
        started_at=now,
        finished_at=now,
    )
    assert trials.commit(site.db, id, TrialRow(summary=summary, worker="w1", attempt=1, committed_at=now), "t1")
    return claim.trial


def problems(answer: Any, status: int) -> list[Mapping[str, str]]:
    assert answer.status_code == status, answer.text
    assert answer.content_type == "application/problem+json"
    found: list[Mapping[str, str]] = answer.json["problems"]
    return found


def check_shape(shape: type[BaseModel], value: Any) -> None:
    """The answer is what the OpenAPI document says, with nothing more and nothing less."""
    described = shape.model_validate(value).model_dump(mode="json")
    assert _keys(described) == _keys(value)


def _keys(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _keys(item) for key, item in value.items()}
    return [_keys(item) for item in value] if isinstance(value, list) else None


def test_a_worker_registers_and_learns_the_addresses(client: FlaskClient, web_site: Site) -> None:
    answer = client.post("/api/workers", json=worker())
    addresses = codec.decode(Addresses, answer.json)
    assert addresses.broker_url.startswith("redis://worker-w1:")
    assert addresses.broker_url.endswith("@broker.example:6379")
    assert BROKER_PASSWORD not in answer.text
    assert addresses.transfer_url == "rsync://aeo@files.example/aeo"
    assert addresses.transfer_password == "of-rsync"
    assert (addresses.lease_seconds, addresses.grace_seconds) == (60.0, 60.0)
    assert answer.headers["Cache-Control"] == "no-store"
    check_shape(schemas.AddressesOut, answer.json)


def test_without_own_addresses_workers_get_the_controllers(site: Site) -> None:
    config = replace(site.config, auth_token=TOKEN, worker_credentials="shared")
    client = create_app(replace(site, config=config)).test_client()
    answer = client.post("/api/workers", json=worker(), headers={"Authorization": f"Bearer {TOKEN}"}).json
    assert answer["broker_url"] == site.config.broker_url
    place = remote.parse(answer["transfer_url"])
    assert (place.user, place.host, place.module) == ("worker-w1", "127.0.0.1", "aeo.out.w1")
    assert answer["transfer_password"]
    # A worker that finds the mark in that folder sees the shared root itself.
    assert answer["shared_root"] == str(site.shared.root)
    assert site.shared.mark.read_text() == answer["shared_mark"]


def test_without_rsync_workers_get_the_controllers_folder(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("aeo.transfer.rsync.installed", lambda: False)
    client = create_app(replace(site, config=replace(site.config, auth_token=TOKEN))).test_client()
    answer = client.post("/api/workers", json=worker(), headers={"Authorization": f"Bearer {TOKEN}"}).json
    assert (answer["transfer_url"], answer["transfer_password"]) == (str(site.shared.root), "")
    assert (answer["shared_root"], answer["shared_mark"]) == ("", "")


def test_an_id_in_use_is_a_conflict_and_a_restart_is_none(client: FlaskClient) -> None:
    assert client.post("/api/workers", json=worker()).status_code == 200
    assert client.post("/api/workers", json=worker(boot="boot-2")).status_code == 200
    found = problems(client.post("/api/workers", json=worker(instance="instance-2", host="host-2")), 409)
    assert "host-1" in found[0]["message"]


def test_workers_are_listed_as_the_engine_sees_them(client: FlaskClient) -> None:
    assert client.get("/api/workers").json == {"workers": [], "out": {}}
    for id in ("w2", "w1"):
        client.post("/api/workers", json=worker(id))
    answer = client.get("/api/workers").json
    views = [codec.decode(WorkerView, item) for item in answer["workers"]]
    assert [view.info.id for view in views] == ["w1", "w2"]
    said = worker("w1")
    capacity = {"disk_mb": 0, "overcommit": 1.0, **said["capacity"]}
    assert codec.encode(views[0].info) == {**said, "capacity": capacity, "variables": []}
    assert isinstance(views[0].info, WorkerInfo)
    check_shape(schemas.WorkersOut, answer)
    assert BROKER_PASSWORD not in client.get("/api/workers").text


def test_a_weight_is_set_and_taken_back(client: FlaskClient) -> None:
    client.post("/api/workers", json=worker())
    answer = client.put("/api/workers/w1/weight", json={"weight": 2.5})
    assert (answer.json["worker"]["weight"], answer.json["worker"]["weight_override"]) == (2.5, 2.5)
    check_shape(schemas.WorkerOut, answer.json)
    assert client.put("/api/workers/w1/weight", json={"weight": 0}).json["worker"]["weight"] == 0
    answer = client.put("/api/workers/w1/weight", json={"weight": None})
    assert (answer.json["worker"]["weight"], answer.json["worker"]["weight_override"]) == (2.0, None)
    problems(client.put("/api/workers/nobody/weight", json={"weight": 1}), 404)
    problems(client.put("/api/workers/../weight", json={"weight": 1}), 422)


def test_a_submission_is_seen_in_the_list(client: FlaskClient, submitted: dict[str, Any]) -> None:
    status = codec.decode(EvaluationStatus, submitted)
    assert (status.name, status.total, status.pending, status.state) == ("first", 6, 6, EvaluationState.RUNNING)
    answer = client.get("/api/evaluations").json
    assert answer == {"evaluations": [submitted], "total": 1}
    check_shape(schemas.EvaluationsOut, answer)
    assert client.get("/api/evaluations?state=running").json["total"] == 1
    assert client.get("/api/evaluations?state=succeeded").json == {"evaluations": [], "total": 0}
    assert client.get("/api/evaluations?offset=1&limit=1").json == {"evaluations": [], "total": 1}


def test_an_evaluation_is_found_by_id_and_name(client: FlaskClient, web_site: Site, submitted: dict[str, Any]) -> None:
    finish_one(web_site, submitted["id"])
    by_id = client.get(f"/api/evaluations/{submitted['id']}").json
    assert client.get("/api/evaluations/first").json == by_id
    detail = codec.decode(EvaluationDetail, by_id)
    assert detail.status.outcomes[Outcome.SCORED] == 1
    assert detail.shares["w1"].done == 1
    assert (detail.scores[0].scored, detail.scores[0].planned) == (1, 6)
    check_shape(schemas.DetailOut, by_id)
    for path in ("/api/evaluations/nobody", "/api/evaluations/nobody/trials", "/api/evaluations/nobody/trials/x"):
        problems(client.get(path), 404)
    problems(client.post("/api/evaluations/nobody/cancel"), 404)
    assert problems(client.get("/api/evaluations/a..b"), 422)[0]["field"] == "id"


def test_trials_are_paged_and_filtered(client: FlaskClient, web_site: Site, submitted: dict[str, Any]) -> None:
    path = f"/api/evaluations/{submitted['id']}/trials"
    done = [finish_one(web_site, submitted["id"]), finish_one(web_site, submitted["id"], Outcome.INFRA_ERROR)]
    everything = client.get(path).json
    check_shape(schemas.TrialsOut, everything)
    views = [codec.decode(TrialView, item) for item in everything["trials"]]
    assert (len(views), everything["total"]) == (6, 6)

    def names(query: str) -> list[str]:
        answer = client.get(f"{path}?{query}").json
        assert answer["total"] >= len(answer["trials"])
        return [item["trial"] for item in answer["trials"]]

    assert names("outcome=scored") == done[:1]
    assert names("outcome=infra_error&worker=w1") == done[1:]
    assert names("outcome=invalid") == []
    assert sorted(names("state=done")) == sorted(done)
    assert len(names("state=pending")) == 4
    assert names(f"task={views[0].task}") == [view.trial for view in views if view.task == views[0].task]
    assert names("limit=2&offset=1") == [view.trial for view in views][1:3]
    assert client.get(f"{path}?limit=2").json["total"] == 6
    assert names("worker=w2") == []


def test_one_trial_has_its_result(client: FlaskClient, web_site: Site, submitted: dict[str, Any]) -> None:
    name = finish_one(web_site, submitted["id"])
    answer = client.get(f"/api/evaluations/first/trials/{name}").json
    view = codec.decode(TrialView, answer)
    assert view.row
    assert (view.trial, view.row.summary.rewards, view.worker, view.attempt) == (name, {"reward": 1.0}, "w1", 1)
    check_shape(schemas.TrialOut, answer)
    problems(client.get("/api/evaluations/first/trials/nothing"), 404)
    assert problems(client.get("/api/evaluations/first/trials/..x"), 422)[0]["field"] == "name"


def test_an_evaluation_is_cancelled_once(client: FlaskClient, submitted: dict[str, Any], web_site: Site) -> None:
    answer = client.post(f"/api/evaluations/{submitted['name']}/cancel")
    status = codec.decode(EvaluationStatus, answer.json["evaluation"])
    assert (status.state, status.outcomes[Outcome.CANCELLED]) == (EvaluationState.CANCELLING, 6)
    check_shape(schemas.EvaluationOut, answer.json)
    assert client.post(f"/api/evaluations/{submitted['id']}/cancel").status_code == 200
    for state in (EvaluationState.MERGING, EvaluationState.CANCELLED):
        assert store.move(web_site.db, submitted["id"], state)
    assert "cancelled" in problems(client.post(f"/api/evaluations/{submitted['id']}/cancel"), 409)[0]["message"]


@pytest.mark.parametrize(
    ("body", "word"),
    [
        ({"text": "a: [1", "file_name": "job.yaml"}, "not valid YAML"),
        ({"text": ""}, "is empty"),
        ({"text": "- 1"}, "no mapping"),
        ({"text": "executor: nothing"}, "nothing"),
        ({"text": "executor: sleep\ntasks: 0"}, "tasks"),
        ({"text": "executor: sleep\ntasks: 1\nattempts: 0"}, "attempts"),
        ({"text": "executor: sleep\ntasks: 1\nname: ../up"}, "name"),
        ({"text": "executor: sleep\ntasks: 1", "options": {"colour": "red"}}, "options.colour"),
        ({"text": "executor: sleep\ntasks: 1", "options": {"workers": ["w9"]}}, "w9"),
        ({"config": {"executor": "sleep", "tasks": 1, "cpus": 99}}, "cpus"),
    ],
)
def test_what_cannot_run_is_told_and_leaves_nothing(
    client: FlaskClient, web_site: Site, body: dict[str, Any], word: str
) -> None:
    client.post("/api/workers", json=worker())
    before = sorted(web_site.shared.root.iterdir())
    assert word in str(problems(client.post("/api/evaluations", json=body), 422))
    assert client.get("/api/evaluations").json["total"] == 0
    assert not list(web_site.shared.evaluations.iterdir())
    assert not list(web_site.shared.jobs_dir.iterdir())
    assert sorted(web_site.shared.root.iterdir()) == before


def test_a_name_in_use_is_a_conflict(client: FlaskClient, submitted: dict[str, Any]) -> None:
    body = {"config": {"executor": "sleep", "name": submitted["name"], "tasks": 1}}
    assert problems(client.post("/api/evaluations", json=body), 409)[0]["field"] == "name"
    assert client.get("/api/evaluations").json["total"] == 1


def test_no_worker_online_is_told(client: FlaskClient) -> None:
    found = problems(client.post("/api/evaluations", json={"config": {"executor": "sleep", "tasks": 1}}), 422)
    assert found[0]["field"] == "workers"
    assert found[0]["fix"]


def test_the_dashboard_counts(client: FlaskClient, web_site: Site, submitted: dict[str, Any]) -> None:
    finish_one(web_site, submitted["id"])
    batch = store.batches(web_site.db, submitted["id"])[0].batch
    assert trials.claim(web_site.db, batch, token="t2", lease_seconds=60)
    answer = client.get("/api/dashboard/tasks").json
    check_shape(schemas.DashboardOut, answer)
    assert [item["id"] for item in answer["evaluations"]] == [submitted["id"]]
    assert answer["recent"] == []
    assert answer["slots"] == {"busy": 1, "total": 2}
    assert answer["queued_batches"] == len(store.batches(web_site.db, submitted["id"]))
    assert answer["pending_trials"] == 4
    assert answer["workers"] == {"online": 1}
    for state in (EvaluationState.MERGING, EvaluationState.SUCCEEDED):
        assert store.move(web_site.db, submitted["id"], state)
    answer = client.get("/api/dashboard/tasks").json
    assert answer["evaluations"] == []
    assert [item["id"] for item in answer["recent"]] == [submitted["id"]]


def test_names_are_shown_as_text(client: FlaskClient) -> None:
    client.post("/api/workers", json=worker(display_name="<script>alert(1)</script>"))
    page = client.get("/workers").text
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_the_shapes_name_every_field_of_the_model() -> None:
    for shape, model in ((schemas.DetailOut, EvaluationDetail), (schemas.TrialOut, TrialView)):
        properties = shape.model_json_schema()["$defs"][model.__name__]["properties"]
        assert set(properties) == {item.name for item in fields(model)}
