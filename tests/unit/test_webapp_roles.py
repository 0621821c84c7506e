"""Who may do what on which endpoint; the sessions of named users; what a body must be."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from apiflask import APIFlask
from flask.testing import FlaskClient
from store_samples import an_evaluation, stored
from werkzeug.routing import Rule

from aeo import users
from aeo.config import Config
from aeo.layout import Shared
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.connection import Db
from aeo.users import Role
from webapp import create_app, invalid
from webapp.auth import OPEN, SAFE, needed
from webapp.security import HideTokens

TOKEN = "s3cret-token-of-this-test"
#: Writes that are of everyone who signed in.
OF_EVERYONE = {"auth.sign_in", "auth.sign_out"}
#: What is looked at by administrators only.
LOOKED_AT_BY_ADMINS = {"users.index", "users_page.index", "secrets.index", "machines_page.show"}
#: Forms of what viewers may not submit.
LOOKED_AT_BY_MEMBERS = {"new_page.show", "new_page.count", "datasets.check", "datasets.check_all"}
#: Below these, every change is an administrator's; but who may evaluate may let workers fetch ahead.
ADMINISTERED = re.compile(r"/(api/)?(workers|users|datasets|limits|secrets)\b(?!.*/prefetch$)")


@pytest.fixture
def web_site(tmp_path: Path, fake_db: Db) -> Site:
    return Site(config=Config(auth_token=TOKEN), shared=Shared(tmp_path, tmp_path / "jobs"), db=fake_db)


@pytest.fixture
def app(web_site: Site) -> APIFlask:
    return create_app(web_site)


@pytest.fixture
def tokens(web_site: Site) -> dict[str, str]:
    """Tokens of a user of each role, who is named like it."""
    return {role.value: users.add(web_site.shared, role.value, role) for role in Role}


def bearer(app: APIFlask, token: str) -> FlaskClient:
    client = app.test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {token}"
    return client


def signed_in(app: APIFlask, token: str) -> FlaskClient:
    client = app.test_client()
    answer = client.get("/", query_string={"token": token})
    assert (answer.status_code, answer.headers["Location"]) == (303, "/")
    return client


def csrf(client: FlaskClient, path: str = "/") -> str:
    found = re.search(r'name="csrf_token" value="([^"]+)"', client.get(path).text)
    assert found
    return found[1]


def endpoints(app: APIFlask) -> Iterator[tuple[Rule, str, str]]:
    """Every endpoint with a method of it, and an address that leads there."""
    for rule in app.url_map.iter_rules():
        path = re.sub(r"<[^>]+>", "x", rule.rule)
        for method in sorted((rule.methods or set()) - {"OPTIONS", "HEAD"}):
            yield rule, method, path


def test_every_write_endpoint_refuses_a_viewer(app: APIFlask, tokens: dict[str, str]) -> None:
    client, tried = bearer(app, tokens["viewer"]), 0
    for rule, method, path in endpoints(app):
        if method in SAFE or rule.endpoint in OF_EVERYONE:
            continue
        answer = client.open(path, method=method)
        assert answer.status_code == 403, f"{method} {rule} lets a viewer write"
        assert "viewer" in answer.text
        tried += 1
    assert tried > 10


def test_each_admin_endpoint_refuses_a_member(app: APIFlask, tokens: dict[str, str]) -> None:
    client, tried = bearer(app, tokens["member"]), set()
    for rule, method, path in endpoints(app):
        wanted = ADMINISTERED.match(rule.rule) and method not in SAFE
        if wanted or rule.endpoint in LOOKED_AT_BY_ADMINS:
            assert needed(app, rule.endpoint, method) is Role.ADMIN, f"{method} {rule} is not of administrators"
        if rule.endpoint in OPEN or needed(app, rule.endpoint, method) is not Role.ADMIN:
            continue
        answer = client.open(path, method=method)
        assert answer.status_code == 403, f"{method} {rule} lets a member in"
        assert "this needs an admin" in answer.text
        tried.add(rule.endpoint)
    assert {"users.add", "users_page.change", "workers.register", "workers.remove", "workers.drain"} <= tried


def test_whoever_has_a_token_may_look(app: APIFlask, tokens: dict[str, str]) -> None:
    client = bearer(app, tokens["viewer"])
    for rule, method, _ in endpoints(app):
        if method in SAFE and rule.endpoint not in LOOKED_AT_BY_ADMINS | LOOKED_AT_BY_MEMBERS:
            assert needed(app, rule.endpoint, method) is Role.VIEWER, f"{method} {rule}"
    for path in ("/", "/api/workers", "/api/evaluations", "/api/dashboard/tasks"):
        assert client.get(path).status_code == 200


def test_the_controllers_own_token_may_everything(app: APIFlask) -> None:
    client = bearer(app, TOKEN)
    assert client.get("/api/users").json == {"users": []}
    assert client.get("/users").status_code == 200


def test_a_refusal_says_who_needs_to_be_asked(app: APIFlask, tokens: dict[str, str]) -> None:
    answer = bearer(app, tokens["member"]).get("/api/users")
    assert answer.status_code == 403
    assert answer.content_type == "application/problem+json"
    assert answer.json["problems"] == [
        {
            "message": "member is a member here; this needs an admin.",
            "field": "",
            "fix": "Ask an administrator of this controller.",
        }
    ]
    page = signed_in(app, tokens["member"]).get("/users")
    assert page.status_code == 403
    assert "this needs an admin" in page.text


def test_an_admin_adds_lists_renews_and_removes(app: APIFlask, tokens: dict[str, str]) -> None:
    admin = bearer(app, tokens["admin"])
    made = admin.post("/api/users", json={"name": "alice", "role": "member"})
    assert made.status_code == 201
    assert set(made.json["user"]) == {"name", "role", "created_at"}
    first = made.json["token"]
    assert bearer(app, first).get("/api/workers").status_code == 200
    assert [user["name"] for user in admin.get("/api/users").json["users"]] == ["admin", "alice", "member", "viewer"]
    assert first not in admin.get("/api/users").text
    second = admin.post("/api/users/alice/renew").json["token"]
    assert bearer(app, first).get("/api/workers").status_code == 401
    assert bearer(app, second).get("/api/workers").status_code == 200
    assert admin.delete("/api/users/alice").json["user"]["name"] == "alice"
    assert bearer(app, second).get("/api/workers").status_code == 401
    assert admin.delete("/api/users/alice").status_code == 404
    assert admin.post("/api/users/alice/renew").status_code == 404
    assert admin.post("/api/users", json={"name": "member", "role": "viewer"}).status_code == 409


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"name": "a"}, "role"),
        ({"name": "a", "role": "king"}, "role"),
        ({"name": "operator", "role": "admin"}, "name"),
        ({"name": "a b", "role": "admin"}, "name"),
        ({"name": "x" * 65, "role": "admin"}, "name"),
        ({"name": "a", "role": "admin", "token": "mine"}, "token"),
    ],
)
def test_a_user_of_the_wrong_shape_names_the_field(app: APIFlask, body: dict[str, str], field: str) -> None:
    answer = bearer(app, TOKEN).post("/api/users", json=body)
    assert answer.status_code == 422
    assert [item["field"] for item in answer.json["problems"]] == [field]
    assert answer.json["problems"][0]["fix"]


def test_the_form_takes_any_users_token(app: APIFlask, tokens: dict[str, str]) -> None:
    for name, token in tokens.items():
        client = app.test_client()
        form = {"csrf_token": csrf(client, "/sign-in"), "token": f" {token} "}
        assert client.post("/sign-in", data=form).headers["Location"] == "/"
        page = client.get("/").text
        assert f">{name}<" in page
        assert ('href="/users"' in page) == (name == "admin")
        cookie = client.get_cookie("aeo_session_7380")
        assert cookie
        assert token not in cookie.value


@pytest.mark.parametrize("change", [users.remove, users.renew])
def test_a_session_ends_at_once_with_the_token_it_began_with(
    app: APIFlask, web_site: Site, tokens: dict[str, str], change: Any
) -> None:
    mine, others = signed_in(app, tokens["member"]), signed_in(app, tokens["viewer"])
    assert mine.get("/api/workers").status_code == 200
    change(web_site.shared, "member")
    assert mine.get("/api/workers").status_code == 401
    assert mine.get("/").status_code == 303
    assert others.get("/api/workers").status_code == 200


def test_a_name_that_is_given_again_brings_no_session_back(
    app: APIFlask, web_site: Site, tokens: dict[str, str]
) -> None:
    client = signed_in(app, tokens["admin"])
    users.remove(web_site.shared, "admin")
    users.add(web_site.shared, "admin", Role.ADMIN)
    assert client.get("/api/users").status_code == 401


def test_a_live_part_of_a_page_whose_session_ended_brings_the_form(
    app: APIFlask, web_site: Site, tokens: dict[str, str]
) -> None:
    client = signed_in(app, tokens["member"])
    users.remove(web_site.shared, "member")
    headers = {"HX-Request": "true", "HX-Current-URL": "http://localhost/?offset=25"}
    answer = client.get("/?part=x", headers=headers)
    assert (answer.status_code, answer.headers["HX-Redirect"]) == (401, "/sign-in?next=/?offset%3D25")
    for address in ("https://evil.example/x", "http://[", "javascript:x", ""):
        answer = client.get("/", headers={**headers, "HX-Current-URL": address})
        assert answer.headers["HX-Redirect"] == "/sign-in?next=/"


def test_a_bearer_counts_more_than_a_session(app: APIFlask, tokens: dict[str, str]) -> None:
    client = signed_in(app, tokens["admin"])
    assert client.get("/api/users").status_code == 200
    assert client.get("/api/users", headers={"Authorization": f"Bearer {tokens['viewer']}"}).status_code == 403
    assert client.get("/api/users", headers={"Authorization": "Bearer wrong"}).status_code == 401
    assert client.get("/api/users", headers={"Authorization": ""}).status_code == 401


def test_a_damaged_file_of_users_keeps_them_out_and_the_operator_in(
    app: APIFlask, web_site: Site, tokens: dict[str, str]
) -> None:
    member, operator = signed_in(app, tokens["member"]), signed_in(app, TOKEN)
    web_site.shared.users.write_text("{")
    for path in ("/", "/api/workers"):
        assert member.get(path).status_code == 503
        assert bearer(app, tokens["member"]).get(path).status_code == 503
        assert operator.get(path).status_code == 200
        assert bearer(app, TOKEN).get(path).status_code == 200
    client = app.test_client()
    form = {"csrf_token": csrf(client, "/sign-in"), "token": tokens["member"]}
    assert client.post("/sign-in", data=form).status_code == 503


def owned(db: Db, id: str, owner: str) -> None:
    evaluation = replace(an_evaluation(["t"], id=id, name=f"job-{id}"), owner=owner, parent="before")
    store.save(db, evaluation, {}, {})


def test_a_member_changes_their_own_evaluations_and_an_admin_all(
    app: APIFlask, fake_db: Db, tokens: dict[str, str]
) -> None:
    owned(fake_db, "mine", "member")
    owned(fake_db, "theirs", "admin")
    stored(fake_db, {"b": ["t"]}, id="nobodys", name="job-nobodys")
    member = bearer(app, tokens["member"])
    shown = member.get("/api/evaluations").json["evaluations"]
    assert {(item["id"], item["owner"], item["parent"]) for item in shown} == {
        ("mine", "member", "before"),
        ("theirs", "admin", "before"),
        ("nobodys", "", ""),
    }
    for id in ("theirs", "nobodys", "job-theirs"):
        for action, body in (("pause", {}), ("resume", None), ("cancel", None)):
            answer = member.post(f"/api/evaluations/{id}/{action}", json=body)
            assert answer.status_code == 403
            assert "only their own" in answer.json["detail"]
        assert store.find(fake_db, id).state.value == "running"
    assert member.post("/api/evaluations/job-mine/pause", json={}).json["evaluation"]["state"] == "paused"
    assert member.post("/api/evaluations/mine/resume").json["evaluation"]["state"] == "running"
    answer = bearer(app, tokens["admin"]).post("/api/evaluations/mine/pause", json={"reason": "night"})
    assert answer.json["evaluation"]["reason"] == "paused by admin: night"
    assert member.post("/api/evaluations/nothing/cancel").status_code == 404


def test_the_page_of_users_adds_renews_and_removes(app: APIFlask, tokens: dict[str, str]) -> None:
    admin = signed_in(app, tokens["admin"])
    proof = csrf(admin, "/users")
    assert admin.post("/users", data={"do": "add", "name": "eve", "role": "admin"}).status_code == 403

    def post(**form: str) -> Any:
        return admin.post("/users", data={"csrf_token": proof, **form})

    made = post(do="add", name="bob", role="viewer")
    assert made.status_code == 200
    [first] = set(re.findall(users.PREFIX + r"[\w-]{40,}", made.text))
    assert made.headers["Cache-Control"] == "no-store"
    assert first not in admin.get("/users").text
    assert bearer(app, first).get("/api/workers").status_code == 200
    again = post(do="add", name="bob", role="viewer")
    assert again.status_code == 409
    assert "there is a user" in again.text
    [second] = set(re.findall(users.PREFIX + r"[\w-]{40,}", post(do="renew", name="bob").text))
    assert [bearer(app, token).get("/api/workers").status_code for token in (first, second)] == [401, 200]
    assert post(do="remove", name="bob").status_code == 303
    assert "bob is removed" in admin.get("/users").text
    assert bearer(app, second).get("/api/workers").status_code == 401
    for form, status in (
        ({"do": "remove", "name": "bob"}, 404),
        ({"do": "add", "name": "carl", "role": "king"}, 422),
        ({"do": "add", "name": "<img src=x>", "role": "viewer"}, 422),
        ({"do": "burn", "name": "member"}, 422),
        ({}, 422),
    ):
        answer = post(**form)
        assert answer.status_code == status
        assert "<img" not in answer.text
        assert 'role="alert"' in answer.text


@pytest.mark.parametrize(
    "kind", [None, "text/plain", "application/x-www-form-urlencoded", "application/x+json", "multipart/form-data", "j"]
)
def test_a_json_body_that_says_to_be_something_else_is_refused(app: APIFlask, kind: str | None) -> None:
    answer = bearer(app, TOKEN).post("/api/users", data=b'{"name": "a", "role": "viewer"}', content_type=kind)
    assert answer.status_code == 415
    assert "application/json" in answer.json["problems"][0]["fix"]
    assert bearer(app, TOKEN).get("/api/users").json == {"users": []}


@pytest.mark.parametrize("kind", ["application/json", "application/json; charset=utf-8", "Application/JSON"])
def test_a_json_body_that_says_so_is_taken(app: APIFlask, kind: str) -> None:
    answer = bearer(app, TOKEN).post("/api/users", data=b'{"name": "a", "role": "viewer"}', content_type=kind)
    assert answer.status_code == 201


@pytest.mark.parametrize(
    ("path", "body", "key"),
    [
        ("/api/users", '{"name": "a", "role": "viewer", "role": "admin"}', "role"),
        ("/api/evaluations", '{"config": {"tasks": [{"a": 1, "a": 1}]}}', "a"),
        ("/api/evaluations", '{"config": {"a": {}, "b": 1, "a": []}}', "a"),
    ],
)
def test_a_key_said_twice_is_refused(app: APIFlask, path: str, body: str, key: str) -> None:
    answer = bearer(app, TOKEN).post(path, data=body, content_type="application/json")
    assert answer.status_code == 422
    [problem] = answer.json["problems"]
    assert problem["field"] == "body"
    assert f"the key {key!r} is there twice" in problem["message"]


@pytest.mark.parametrize(
    ("path", "body", "fix"),
    [
        ("/api/users", {"nam": "a", "name": "a", "role": "viewer"}, "Did you mean 'name'?"),
        ("/api/users", {"zzz": 1, "name": "a", "role": "viewer"}, "Leave it out. Known: name, role."),
        ("/api/users", {"role": "viewer"}, "Give it."),
        ("/api/users", {"name": 1, "role": "viewer"}, 'Give a text ("…").'),
        ("/api/users", {"name": "", "role": "viewer"}, "Give at least 1 character."),
        ("/api/users", {"name": "a", "role": "king"}, "Give 'viewer', 'member' or 'admin'."),
        ("/api/users", [], "Give an object ({…})."),
        ("/api/workers/w/weight", {"weight": -1}, "Give 0 or more."),
        ("/api/workers/w/weight", {"weight": "1"}, "Give a number."),
        ("/api/evaluations", {"config": []}, "Give an object ({…})."),
        ("/api/evaluations", {"file_name": "x" * 5000}, "Give at most 4096 characters."),
    ],
)
def test_a_fault_of_a_body_says_what_to_do(app: APIFlask, path: str, body: Any, fix: str) -> None:
    method = "PUT" if path.endswith("weight") else "POST"
    [problem] = bearer(app, TOKEN).open(path, method=method, json=body).json["problems"]
    assert problem["fix"] == fix


def test_a_fault_inside_an_object_knows_the_names_there(app: APIFlask) -> None:
    capacity = {"slots": 1, "cpus": 1, "memory_mb": 1, "memory": 1}
    body = {"id": "w", "display_name": "", "host": "h", "capacity": capacity, "boot": "b", "instance": "i"}
    [problem] = bearer(app, TOKEN).post("/api/workers", json=body).json["problems"]
    assert (problem["field"], problem["fix"]) == ("capacity.memory", "Did you mean 'memory_mb'?")


@pytest.mark.parametrize(
    ("query", "fix"),
    [
        ("limit=0", "Give 1 or more."),
        ("limit=x", "Give a whole number."),
        ("limits=1", "Did you mean 'limit'?"),
        ("state=asleep", "Give 'running', 'paused'"),
    ],
)
def test_a_fault_of_a_query_says_what_to_do(app: APIFlask, query: str, fix: str) -> None:
    [problem] = bearer(app, TOKEN).get(f"/api/evaluations?{query}").json["problems"]
    assert problem["fix"].startswith(fix)
    assert problem["fix"] != invalid.SEE


def test_headers_keep_others_out(app: APIFlask) -> None:
    client = bearer(app, TOKEN)
    for path in ("/", "/users", "/api/workers", "/nothing"):
        headers = client.get(path).headers
        rules = dict(rule.strip().partition(" ")[::2] for rule in headers["Content-Security-Policy"].split(";"))
        assert rules == {
            "default-src": "'none'",
            "script-src": "'self'",
            "style-src": "'self'",
            "img-src": "'self' data:",
            "connect-src": "'self'",
            "form-action": "'self'",
            "object-src": "'none'",
            "base-uri": "'none'",
            "frame-ancestors": "'none'",
        }
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert "camera=()" in headers["Permissions-Policy"]
        assert "Strict-Transport-Security" not in headers
    assert "max-age=" in client.get("/", base_url="https://localhost").headers["Strict-Transport-Security"]


def test_a_users_token_is_in_no_log(app: APIFlask, tokens: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    signed_in(app, tokens["member"])
    bearer(app, TOKEN).post("/api/users/member/renew")
    assert users.PREFIX not in caplog.text
    record = logging.LogRecord("x", logging.ERROR, "f", 1, "it is %s.", (tokens["member"],), None)
    assert HideTokens(TOKEN).filter(record)
    assert record.getMessage() == "it is [hidden]."


def test_the_document_tells_who_may(app: APIFlask) -> None:
    paths = app.test_client().get("/api/openapi.json").json["paths"]
    assert "403" in paths["/api/users"]["get"]["responses"]
    assert "403" in paths["/api/evaluations/{id_or_name}/cancel"]["post"]["responses"]
    assert "403" not in paths["/api/workers"]["get"]["responses"]
    assert {"413", "415"} <= set(paths["/api/users"]["post"]["responses"])
