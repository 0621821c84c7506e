"""Secrets between a controller's API and workers of this process: who gets them, and what becomes of them."""

from __future__ import annotations

import base64
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from engine import closed, logged, register, running, worker_site
from served import served
from waiting import eventually

from aeo import artifacts, checks, credentials, drafts, evaluations, executors, workers
from aeo.artifacts import windows
from aeo.cli import main
from aeo.cli import secrets as cli
from aeo.config import Config
from aeo.core.errors import ExecutorFailed, Forbidden, InputError, Unavailable
from aeo.core.model import Claim, Outcome, Plan, PlannedTrial, Spec
from aeo.executors import Session, TrialContext
from aeo.secrets import delivery, needs, vault
from aeo.site import Site, open_site
from aeo.store import evaluations as store
from aeo.store import trials, watched
from aeo.submission import Submission

TOKEN = "token-of-this-test"
VALUE = "sk-of-this-test/0123456789+abcdef"


@dataclass(frozen=True)
class Controller:
    site: Site
    root: Path

    def secret(self, name: str = "TEST_API_KEY", value: str = VALUE) -> None:
        vault.put(self.site, name, value, by="test")

    def submit(self, **config: Any) -> str:
        options = config.pop("options", {"secrets": ["TEST_API_KEY"]})
        request = Submission(config={"executor": "sleep", "name": "job", **config}, options=options)
        return evaluations.submit(self.site, request).evaluation.id

    def post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        return httpx.post(self.site.config.controller_url + path, json=body, headers=headers, trust_env=False)


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Controller]:
    config = Config(
        shared_root=tmp_path / "shared",
        broker_url=redis_url,
        auth_token=TOKEN,
        secrets_key_file=tmp_path / "keys" / "key",
        lease_seconds=5,
    )
    site = open_site(config)
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        yield Controller(replace(site, config=replace(config, controller_url=url)), tmp_path)


def instead(monkeypatch: pytest.MonkeyPatch, run: Callable[[PlannedTrial, TrialContext], None]) -> None:
    """Let the sessions of the `sleep` executor do this before they sleep."""
    executor = executors.load("sleep")
    session_type = type(executor.open(None, Path()))  # type: ignore[arg-type]
    sleeps = session_type.run

    def runs(self: Session, trial: PlannedTrial, context: TrialContext, on_event: Callable[[str], None]) -> None:
        run(trial, context)
        sleeps(self, trial, context, on_event)

    monkeypatch.setattr(session_type, "run", runs)


def test_every_executor_gets_them_with_the_trial(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, str]] = []
    instead(monkeypatch, lambda _trial, context: seen.append(dict(context.environment)))
    monkeypatch.setenv("OWN_API_KEY", "of the worker itself")
    monkeypatch.setenv("TEST_API_KEY", "the controller's wins")
    controller.secret()
    register(controller.site, "a", variables=("OWN_API_KEY",))
    with running(controller.site, controller.root, "a"):
        id = controller.submit(tasks=2, options={"secrets": ["TEST_API_KEY", "OWN_API_KEY"]})
        assert closed(controller.site, id).outcomes[Outcome.SCORED] == 2
    assert seen == [{"TEST_API_KEY": VALUE, "OWN_API_KEY": "of the worker itself"}] * 2
    assert os.environ["TEST_API_KEY"] == "the controller's wins"


def test_what_a_trial_writes_and_says_has_none_of_it(
    controller: Controller, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def leaks(trial: PlannedTrial, context: TrialContext) -> None:
        (context.trial_dir / "said.txt").write_text(f"it is {context.environment['TEST_API_KEY']}")
        encoded = base64.b64encode(f"user:{VALUE}".encode())
        (context.trial_dir / "header.bin").write_bytes(b"\0" + encoded)
        if trial.task != "task-1":
            kind = {"task-2": ExecutorFailed, "task-3": Unavailable, "task-4": ValueError}[trial.task]
            raise kind(f"with {VALUE} it does not work")

    instead(monkeypatch, leaks)
    controller.secret()
    site = controller.site
    with caplog.at_level(logging.DEBUG):
        register(site, "a")
        with running(site, controller.root, "a") as pool:
            ids = [controller.submit(tasks=[f"task-{n}"], name=f"job-{n}", max_requeues=0) for n in (1, 2)]
            for id in ids:
                closed(site, id)
            ids += [controller.submit(tasks=[f"task-{n}"], name=f"job-{n}") for n in (3, 4)]
            eventually(lambda: len(pool.broken) >= 2, 30)
            for id in ids[2:]:
                evaluations.cancel(site, id)
                closed(site, id)
    place = next(site.shared.job("job-1").glob("*/said.txt"))
    assert place.read_text() == "it is ${TEST_API_KEY}"
    assert b"*" * 30 in place.with_name("header.bin").read_bytes()
    said = repr(pool.broken) + repr([error.__cause__ for error in pool.broken])
    told = json.dumps([logged(site, id) for id in ids])
    assert "with ${TEST_API_KEY} it does not work" in told
    assert "with ${TEST_API_KEY} it does not work" in said
    kept = repr([site.db.client.dump(key) for key in site.db.client.scan_iter()])
    for text in (said, told, kept, repr([store.get(site.db, id) for id in ids])):
        assert VALUE not in text
    for path in controller.root.rglob("*"):
        assert not path.is_file() or VALUE.encode() not in path.read_bytes(), path


def test_one_that_is_gone_by_then_fails_the_trial_and_says_so(controller: Controller) -> None:
    controller.secret()
    site = controller.site
    register(site, "a")
    id = controller.submit(tasks=1, max_requeues=0)
    vault.remove(site, "TEST_API_KEY")
    with running(site, controller.root, "a"):
        assert closed(site, id).outcomes[Outcome.INFRA_ERROR] == 1
    (row,) = trials.rows_since(site.db, id, 0)
    assert row.summary.error_type == "SecretMissingError"
    assert row.summary.error_message.startswith("TEST_API_KEY: set neither on the controller")


def test_a_worker_that_is_refused_them_for_good_does_not_go_round_for_ever(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.secret()
    site = controller.site
    register(site, "a")
    monkeypatch.setattr(delivery, "REFUSED_SECONDS", 0.1)
    monkeypatch.setattr(delivery, "prove", lambda *_: "wrong")
    id = controller.submit(tasks=1, max_requeues=1)
    with running(site, controller.root, "a"):
        assert closed(site, id).outcomes[Outcome.INFRA_ERROR] == 1
    (row,) = trials.rows_since(site.db, id, 0)
    assert (row.summary.error_type, row.attempt) == ("SecretRefusedError", 2)
    assert "Not the worker a" in row.summary.error_message


def test_a_controller_that_is_away_is_waited_for(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    controller.secret()
    site = controller.site
    register(site, "a")
    id = controller.submit(tasks=1)
    key = site.config.secrets_key_file
    assert key
    key.rename(key.with_name("aside"))
    tried: list[int] = []
    ask = delivery._ask
    monkeypatch.setattr(delivery, "_ask", lambda *what: (tried.append(1), ask(*what))[1])
    with running(site, controller.root, "a"):
        eventually(lambda: tried)
        assert store.get(site.db, id).running == 1
        key.with_name("aside").rename(key)
        assert closed(site, id).outcomes[Outcome.SCORED] == 1


def asked(config: Config, claim: Claim) -> dict[str, str]:
    """What a worker sends."""
    return {
        "worker": claim.worker,
        "trial": claim.trial,
        "token": claim.token,
        "proof": delivery.prove(config, claim),
    }


def test_only_the_worker_that_runs_the_trial_gets_them(controller: Controller) -> None:
    controller.secret()
    controller.secret("OTHER_API_KEY", VALUE[::-1])
    site = controller.site
    register(site, "a")
    id = controller.submit(tasks=2)
    (batch,) = (item.batch for item in store.batches(site.db, id))
    claim = trials.claim(site.db, batch, token="t0k3n", lease_seconds=30)
    assert isinstance(claim, Claim)
    worker = worker_site(site, controller.root, "a")
    path, right = f"/api/evaluations/{id}/secrets", asked(worker.config, claim)
    answer = controller.post(path, right)
    # Only what the evaluation names.
    assert answer.json() == {"secrets": {"TEST_API_KEY": VALUE}}
    assert answer.headers["Cache-Control"] == "no-store"
    given = delivery.bring(worker, claim, ["TEST_API_KEY", "NO_KEY"], gives_up=lambda: True)
    assert (given.values, given.missing) == ({"TEST_API_KEY": VALUE}, ("NO_KEY",))
    assert VALUE not in repr(given)

    other = next(name for name in trials.pending(site.db, id))
    for wrong in ({"worker": "b"}, {"trial": other}, {"token": "other"}, {"trial": "nothing"}):
        answer = controller.post(path, asked(worker.config, replace(claim, **wrong)))
        assert answer.status_code == 403, wrong
        assert "does not run" in answer.json()["detail"]
    # Who has the token and knows of the run, but is no worker: an administrator.
    config = replace(worker.config, broker_url="redis://:guessed@127.0.0.1:1/0")
    for proof in ("", "0" * 64, right["proof"][:-1], asked(config, claim)["proof"]):
        answer = controller.post(path, {**right, "proof": proof})
        assert answer.status_code == 403
        assert "Not the worker a that asks" in answer.json()["detail"]
    assert controller.post(path, {**right, "worker": "a/../b"}).status_code == 422
    with pytest.raises(Forbidden):
        delivery.give(site, "e0", claim.trial, worker="a", token="t0k3n", proof=right["proof"])
    with pytest.raises(Unavailable, match=r"\(403\).*does not run"):
        delivery.bring(worker, replace(claim, token="other"), ["X_KEY"], gives_up=lambda: True)

    # By the password that is a worker's own, where it has one; not by another's.
    for name, status in (("a", 200), ("b", 403)):
        info = workers.info(replace(site.config, worker_id=name, local_root=controller.root), boot="x", instance=name)
        own = replace(worker.config, broker_url=credentials.issue(site, info).broker_url)
        assert own.broker_url != site.config.broker_url
        assert controller.post(path, asked(own, claim)).status_code == status
        if name == "a":
            # From then on by that alone.
            assert controller.post(path, right).status_code == 403
            right = asked(own, claim)

    # Neither when its lease has ended, nor when its result has come.
    renewed = trials.renew(site.db, claim, lease_seconds=0.001)
    assert renewed.value == "held"
    eventually(lambda: controller.post(path, right).status_code == 403)
    trials.renew(site.db, claim, lease_seconds=30)
    assert controller.post(path, right).status_code == 200
    trials.pushed(site.db, claim)
    assert controller.post(path, right).status_code == 403


def test_no_answer_of_the_api_has_a_value(controller: Controller) -> None:
    url, headers = controller.site.config.controller_url, {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=url, headers=headers, trust_env=False) as client:
        said = client.put("/api/secrets/TEST_API_KEY", json={"value": VALUE})
        assert said.status_code == 200
        (item,) = said.json()["secrets"]
        assert item.keys() == {"name", "set_at", "set_by", "used_by"}
        assert item["set_by"] == "operator"
        answers = [said, client.get("/api/secrets")]
        for body in (
            {"value": 12345678},
            {"value": VALUE, "more": VALUE},
            {"name": VALUE},
            [VALUE],
            {"value": "a\0" + VALUE},
        ):
            answers.append(client.put("/api/secrets/TEST_API_KEY", json=body))
            assert answers[-1].status_code == 422
        answers.append(client.put("/api/secrets/" + VALUE.replace("/", "_"), json={"value": VALUE}))
        assert answers[-1].status_code == 422
        answers.append(client.delete("/api/secrets/UNKNOWN"))
        assert answers[-1].status_code == 404
        answers += [client.post("/api/secrets/rekey"), client.delete("/api/secrets/TEST_API_KEY")]
    assert [answer.status_code for answer in answers[-2:]] == [200, 200]
    assert all(VALUE not in answer.text and "12345678" not in answer.text for answer in answers)


def test_what_is_done_is_not_answered_as_undone(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(_site: Site) -> dict[str, list[str]]:
        raise Unavailable("the store is away")

    monkeypatch.setattr(needs, "used", away)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=controller.site.config.controller_url, headers=headers, trust_env=False) as client:
        put = client.put("/api/secrets/TEST_API_KEY", json={"value": VALUE})
        assert (put.status_code, put.json()["secrets"][0]["used_by"]) == (200, None)
        assert client.get("/api/secrets").status_code == 503
        gone = client.delete("/api/secrets/TEST_API_KEY")
        assert (gone.status_code, gone.json()) == (200, {"secrets": []})


def test_what_a_person_has_to_mend_is_not_said_to_pass(controller: Controller) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    with httpx.Client(base_url=controller.site.config.controller_url, headers=headers, trust_env=False) as client:
        assert client.put("/api/secrets/TEST_API_KEY", json={"value": VALUE}).status_code == 200
        key = controller.site.config.secrets_key_file
        assert key is not None
        key.chmod(0o644)
        refused = client.put("/api/secrets/TEST_API_KEY", json={"value": VALUE})
        assert (refused.status_code, "Retry-After" in refused.headers) == (503, False)
        assert refused.json()["detail"].endswith("chmod 600 it.")
        key.chmod(0o600)


def test_from_the_command_line(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    def aeo(*arguments: str, code: int = 0, given: str | bytes | None = None) -> Any:
        result = CliRunner().invoke(main, ["secrets", *arguments], input=given)
        assert result.exit_code == code, result.output
        assert VALUE not in result.output
        return result

    assert "No secrets" in aeo("list").stderr
    assert "TEST_API_KEY is set" in aeo("set", "TEST_API_KEY", given=f"{VALUE}\r\n").stdout
    assert vault.values(controller.site) == {"TEST_API_KEY": VALUE}
    assert "must have" in aeo("set", "TEST_API_KEY", given="\n", code=2).stderr
    assert "UTF-8" in aeo("set", "TEST_API_KEY", given=b"\xff\xfe" * 9, code=2).stderr
    # The value where the name belongs is not said again.
    assert "NAME: is no name of a secret" in aeo("set", VALUE, code=2).stderr
    aeo("set", "TEST_API_KEY", given="-----BEGIN\nof several\nlines\n\n")
    assert vault.values(controller.site)["TEST_API_KEY"] == "-----BEGIN\nof several\nlines\n"

    # At a terminal it is asked for.
    with monkeypatch.context() as patch:
        patch.setattr(cli.sys.stdin, "isatty", lambda: True, raising=False)
        asked: list[dict[str, Any]] = []
        patch.setattr(cli.click, "prompt", lambda text, **how: (asked.append({"text": text, **how}), VALUE)[1])
        cli.set_.callback(name="TEST_API_KEY", as_json=True)  # type: ignore[misc]
    assert asked[0]["hide_input"] is True
    assert vault.values(controller.site) == {"TEST_API_KEY": VALUE}

    register(controller.site, "a")
    controller.submit(tasks=1, name="nightly")
    (row,) = (line for line in aeo("list").stdout.splitlines() if "TEST_API_KEY" in line)
    assert row.split()[-2:] == ["operator", "nightly"]
    assert "new key: 1" in aeo("rekey").stdout
    assert vault.values(controller.site) == {"TEST_API_KEY": VALUE}
    assert "is removed" in aeo("remove", "TEST_API_KEY").stdout
    assert "no secret of this name" in aeo("remove", "TEST_API_KEY", code=2).stderr


def test_what_is_missing_is_told_with_the_fix(controller: Controller) -> None:
    site = controller.site
    register(site, "a", variables=("A_API_KEY",))
    register(site, "b", variables=("B_API_KEY",))

    def check(*names: str, **config: Any) -> checks.Check:
        request = Submission(config={"executor": "sleep", "tasks": 2, "secrets": list(names), **config})
        return checks.check(site, request)

    assert check("A_API_KEY").problems == ()
    assert {item.worker: item.reason for item in check("A_API_KEY").unfit} == {
        "b": "has no A_API_KEY in its environment"
    }
    (problem,) = check("A_API_KEY", "NO_API_KEY").problems
    assert (problem.field, problem.message) == (
        "secrets",
        "NO_API_KEY is set neither on the controller nor on a, b.",
    )
    assert "`aeo secrets set NO_API_KEY`" in problem.fix
    (problem,) = check("A_API_KEY", "B_API_KEY").problems
    assert "a has no B_API_KEY" in problem.message
    (problem,) = check("A_API_KEY", workers=["b"]).problems
    assert "nor on b." in problem.message
    controller.secret("B_API_KEY")
    assert check("A_API_KEY", "B_API_KEY").problems == ()
    # Also beside a configuration that has other faults.
    assert {item.field for item in check("NO_API_KEY", seconds="x").problems} == {"seconds", "secrets"}
    (problem,) = check("not a name").problems
    assert problem.field == "secrets"
    with pytest.raises(InputError, match="NO_API_KEY is set neither"):
        controller.submit(tasks=1, options={"secrets": ["NO_API_KEY"]})


def test_what_tasks_refer_to_is_needed(controller: Controller) -> None:
    site = controller.site
    register(site, "a", variables=("A_API_KEY",))
    task = {"name": "t", "command": "true", "env": {"KEY": "Bearer ${NO_API_KEY}", "HERE": "${HOSTNAME}"}}
    config = {"executor": "command", "env": {"A": "${A_API_KEY}"}, "tasks": [task]}
    (problem,) = checks.check(site, Submission(config=config)).problems
    assert problem.message.startswith("NO_API_KEY, which tasks[0].env refers to, is set neither")
    controller.secret("NO_API_KEY")
    made = evaluations.submit(site, Submission(config={**config, "name": "job"})).evaluation
    assert made.spec.secrets == ("A_API_KEY", "NO_API_KEY")
    assert "secrets:\n- A_API_KEY\n- NO_API_KEY\n" in drafts.again(made, taken=lambda _: False)


def test_what_an_agent_usually_needs_is_suggested(controller: Controller) -> None:
    site = controller.site
    register(site, "a", variables=("CODEX_API_KEY",))
    register(site, "b")
    header = {
        "config": {"agents": [{"name": "codex", "model_name": "gpt-5", "env": {}}, {"name": "oracle"}]},
        "keys": [["OPENAI_API_KEY", "CODEX_API_KEY"], []],
    }
    executor, plan = executors.load("harbor"), Plan(trials=(), header=header)

    def advice(*names: str, on: Sequence[str] = ("a", "b"), env: dict[str, str] | None = None) -> str:
        agents = [{**header["config"]["agents"][0], "env": env or {}}, *header["config"]["agents"][1:]]
        spec = Spec(executor="harbor", name="job", secrets=names, config={"agents": agents})
        changed = replace(plan, header={**header, "config": {"agents": agents}})
        pool = [worker for worker in workers.store.all(site.db) if worker.info.id in on]
        return " ".join(needs.advice(site, executor, spec, changed, pool))

    assert advice().startswith("The agent codex with gpt-5 usually needs OPENAI_API_KEY or CODEX_API_KEY, which is ")
    assert "neither named nor told by b." in advice()
    assert advice(on=["a"]) == ""
    assert advice("CODEX_API_KEY") == ""
    assert advice(env={"OPENAI_API_KEY": "${MY_KEY}"}) == ""
    controller.secret("CODEX_API_KEY")
    assert "CODEX_API_KEY is set on the controller" in advice()
    assert "--secret CODEX_API_KEY" in advice()


def test_the_form_has_them(controller: Controller) -> None:
    text = "executor: sleep\ntasks: 1\nsecrets: [A_KEY, B_KEY]\n"
    draft = drafts.read(text)
    assert draft.secrets == "A_KEY, B_KEY"
    assert drafts.write(draft, text) == text
    assert "secrets:\n- A_KEY\n" in drafts.write(replace(draft, secrets=" A_KEY ,"), text)
    assert "secrets" not in drafts.write(replace(draft, secrets=""), text)
    assert drafts.word("line 3: secrets", "sleep") == "secrets"
    register(controller.site, "a")
    fields = {"mode": "form", "do": "check", "executor": "sleep", "own.tasks": "1", "secrets": "NO_API_KEY"}
    with httpx.Client(
        base_url=controller.site.config.controller_url, trust_env=False, follow_redirects=True
    ) as browser:
        page = browser.get("/evaluations/new", params={"token": TOKEN}).text
        fields["csrf_token"] = page.partition('name="csrf_token" value="')[2].partition('"')[0]
        shown = browser.post("/evaluations/new", data=fields)
    assert "NO_API_KEY is set neither on the controller nor on a." in shown.text


def test_a_worker_says_what_it_has_and_no_value(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", VALUE)
    config = replace(controller.site.config, worker_id="w", local_root=controller.root / "w")
    info = workers.info(config, boot="b", instance="i")
    assert "SOME_API_KEY" in info.variables
    assert VALUE not in repr(info)
    assert workers.info(replace(config, tell_secrets=("-",)), boot="b", instance="i").variables == ()


def test_a_log_that_is_watched_has_none_of_it(controller: Controller, monkeypatch: pytest.MonkeyPatch) -> None:
    def says(_trial: PlannedTrial, context: TrialContext) -> None:
        text = f"first\nit is {context.environment['TEST_API_KEY']}\nlast\n" + "x" * 100
        (context.trial_dir / "said.txt").write_text(text)

    instead(monkeypatch, says)
    controller.secret()
    site = controller.site
    register(site, "a")
    with running(site, controller.root, "a"):
        id = controller.submit(tasks=1, seconds=60)
        (name,) = trials.states(site.db, id)
        watched.watch(site.db, id, name, seconds=60)

        def shown() -> str:
            place = artifacts.find(site, id, name)
            assert place is not None
            assert place.live
            assert "said.txt" in place.listing().names
            return windows.before(place, "said.txt").text

        assert eventually(shown, 20).startswith("first\nit is ${TEST_API_KEY}\nlast\n")
        for path in site.shared.inbox.rglob("*"):
            assert not path.is_file() or VALUE.encode() not in path.read_bytes()
        evaluations.cancel(site, id)
        closed(site, id)
