"""Named users from the command line through the API to store and disk, on a real server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from engine import register
from served import served

from aeo import event_log, records, recovery, registration, users, workers
from aeo.cli import main
from aeo.config import Config
from aeo.core.errors import Forbidden
from aeo.site import Site, open_site
from aeo.store import evaluations as store
from aeo.users import Role

TOKEN = "token-of-this-test"
CONFIG = "executor: sleep\ntasks: 2\nname: {}\n"


class Controller:
    def __init__(self, site: Site, url: str, patch: pytest.MonkeyPatch):
        self.site = site
        self.url = url
        self._patch = patch

    def aeo(self, token: str, *args: str, code: int = 0, **more: Any) -> Any:
        """Run the command line as whoever has ``token``."""
        self._patch.setenv("AEO_TOKEN", token)
        result = CliRunner().invoke(main, args, **more)
        assert result.exit_code == code, result.output
        return result


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        yield Controller(site, url, monkeypatch)


def test_a_user_from_the_first_token_to_the_last(controller: Controller) -> None:
    aeo = controller.aeo
    made = aeo(TOKEN, "user", "add", "alice", "--role", "member")
    alice = made.stdout.strip()
    assert alice.startswith(users.PREFIX)
    assert "alice (member)" in made.stderr
    assert alice not in made.stderr
    assert "alice" in aeo(TOKEN, "user", "list").stdout
    assert json.loads(aeo(TOKEN, "user", "list", "--json").stdout)["users"][0]["role"] == "member"

    said = aeo(alice, "user", "list", code=2).stderr
    assert "alice is a member here; this needs an admin. Ask an administrator" in said
    assert "AEO_TOKEN" not in said
    assert "already" in aeo(TOKEN, "user", "add", "Alice", "--role", "admin", code=2).stderr
    assert "--role" in aeo(TOKEN, "user", "add", "bob", code=2).stderr
    assert "king" in aeo(TOKEN, "user", "add", "bob", "--role", "king", code=2).stderr
    assert "no user 'bob'" in aeo(TOKEN, "user", "remove", "bob", code=2).stderr
    assert aeo(TOKEN, "user", "renew", "../x", code=2).stderr.startswith("Error: ")

    renewed = json.loads(aeo(TOKEN, "user", "renew", "alice", "--json").stdout)["token"]
    assert "The token is wrong" in aeo(alice, "status", code=2).stderr
    aeo(renewed, "status")
    assert "alice is removed" in aeo(TOKEN, "user", "remove", "alice").stdout
    assert "The token is wrong" in aeo(renewed, "status", code=2).stderr
    assert "No named users" in aeo(TOKEN, "user", "list").stderr


def test_a_removal_elsewhere_ends_session_and_token_here_at_once(controller: Controller) -> None:
    token = users.add(controller.site.shared, "bob", Role.MEMBER)
    with httpx.Client(base_url=controller.url) as browser:
        assert browser.get("/", params={"token": token}).headers["Location"] == "/"
        assert browser.get("/api/workers").status_code == 200
        users.remove(controller.site.shared, "bob")
        assert browser.get("/api/workers").status_code == 401
        assert browser.get("/").headers["Location"].startswith("/sign-in")
    assert httpx.get(f"{controller.url}/api/workers", headers={"Authorization": f"Bearer {token}"}).status_code == 401


def test_what_each_may_do_to_an_evaluation_is_kept_with_who_did_it(controller: Controller) -> None:
    site, aeo = controller.site, controller.aeo
    register(site, "w1")
    alice = users.add(site.shared, "alice", Role.MEMBER)
    bob = users.add(site.shared, "bob", Role.MEMBER)
    carl = users.add(site.shared, "carl", Role.VIEWER)
    assert "this needs a member" in aeo(carl, "submit", "-", input=CONFIG.format("x"), code=2).stderr

    made = json.loads(aeo(alice, "submit", "-", "--json", input=CONFIG.format("hers")).stdout)["evaluation"]
    id = made["id"]
    assert made["owner"] == "alice"
    assert records.read(site.shared.evaluation(id)).evaluation.owner == "alice"
    for token in (bob, carl):
        for command in ("pause", "resume", "cancel"):
            aeo(token, command, "hers", code=2)
        aeo(token, "status", "hers")
    assert "this needs an admin" in aeo(alice, "workers", "drain", "w1", code=2).stderr
    assert store.get(site.db, id).state.value == "running"

    assert "paused by alice: lunch" in aeo(alice, "pause", "hers", "--reason", "lunch").stdout
    aeo(TOKEN, "resume", "hers")
    aeo(alice, "cancel", "hers")
    assert store.get(site.db, id).reason == "cancelled by alice"
    event_log.write(site)
    told = [
        (event["kind"], event.get("state", ""), event.get("by", ""), event.get("reason", ""))
        for event in event_log.read(site.shared.events(id))
        if event["kind"] in ("submitted", "moved")
    ]
    assert told[:4] == [
        ("submitted", "", "alice", ""),
        ("moved", "paused", "alice", "paused by alice: lunch"),
        ("moved", "running", "operator", "resumed by operator"),
        ("moved", "cancelling", "alice", "cancelled by alice"),
    ]


def test_a_wiped_store_still_knows_whose_an_evaluation_is(controller: Controller) -> None:
    site, aeo = controller.site, controller.aeo
    register(site, "w1")
    alice = users.add(site.shared, "alice", Role.MEMBER)
    id = json.loads(aeo(alice, "submit", "-", "--json", input=CONFIG.format("hers")).stdout)["evaluation"]["id"]
    site.db.client.flushall()
    recovery.recover(site)
    assert store.get(site.db, id).owner == "alice"
    assert "paused by alice" in aeo(alice, "pause", id).stdout


def test_a_worker_is_registered_by_an_admin_only(controller: Controller, tmp_path: Path) -> None:
    config = Config(controller_url=controller.url, worker_id="w9", local_root=tmp_path / "w9")
    info = workers.info(config, boot="b", instance="i")

    def come(role: Role) -> registration.Addresses:
        token = users.add(controller.site.shared, f"w-{role.value}", role)
        return registration.register(Config(controller_url=controller.url, auth_token=token), info)

    for role in (Role.VIEWER, Role.MEMBER):
        with pytest.raises(Forbidden, match=r"this needs an admin.*controller's own token"):
            come(role)
    assert come(Role.ADMIN).broker_url
