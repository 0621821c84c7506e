"""Limits of model providers: held over workers and evaluations, set from the command line and the API."""

from __future__ import annotations

import itertools
import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner
from engine import closed, register, running, submit
from served import served
from store_samples import SUBMITTED
from waiting import eventually

from aeo.cli import main
from aeo.config import Config
from aeo.core.choose import Answer
from aeo.core.errors import InputError, NotFound
from aeo.core.model import Batch, Claim, Evaluation, Plan, PlannedTrial, Spec
from aeo.core.pool import Limit
from aeo.site import Site, open_site
from aeo.store import evaluations, limits, trials
from aeo.store.connection import Db
from aeo.store.keys import key

TOKEN = "token-of-this-test"
_tokens = itertools.count()


def stored(db: Db, id: str, model: str, *, batches: int, each: int = 5) -> list[Batch]:
    """An evaluation whose trials use one model, its batches begun, each on a worker of its own."""
    made = [Batch(id=f"b{n}", evaluation=id, worker=f"w{n}") for n in range(batches)]
    names = {batch: [f"t{batch.id}-{n}" for n in range(each)] for batch in made}
    plan = Plan(
        trials=tuple(
            PlannedTrial(name=name, task=name, labels={"model": model}) for share in names.values() for name in share
        )
    )
    spec = Spec(executor="sleep", name=id)
    evaluations.save(db, Evaluation(id=id, spec=spec, plan=plan, submitted_at=SUBMITTED), names, {})
    for batch in made:
        evaluations.start_batch(db, batch)
    return made


def ask(db: Db, batch: Batch) -> Claim | Answer:
    return trials.ask(db, batch, token=f"k{next(_tokens)}", lease_seconds=60)


def test_a_limit_holds_over_workers_and_evaluations(db: Db) -> None:
    limits.set(db, "p", trials=2)
    one, two = stored(db, "e1", "p/one", batches=2), stored(db, "e2", "p/two", batches=2)
    other = stored(db, "e3", "q/one", batches=3)
    first, second = ask(db, one[0]), ask(db, two[1])
    assert isinstance(first, Claim)
    assert isinstance(second, Claim)
    assert ask(db, one[1]) is ask(db, two[0]) is Answer.WAIT
    assert all(isinstance(ask(db, batch), Claim) for batch in other)
    trials.pushed(db, first)
    assert isinstance(ask(db, two[0]), Claim)
    assert ask(db, one[1]) is Answer.WAIT
    # A batch that asks again has its own place.
    assert isinstance(ask(db, two[0]), Claim)
    assert limits.all(db) == [limits.LimitStatus(key="p", limit=Limit(trials=2), running=2)]


def test_many_at_once_do_not_pass_a_limit(real_db: Db) -> None:
    limits.set(real_db, "p/one", trials=3)
    batches = stored(real_db, "e1", "p/one", batches=8)
    start = threading.Barrier(8)

    def go(batch: Batch) -> bool:
        start.wait()
        return isinstance(ask(real_db, batch), Claim)

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(go, batches)) == 3


def test_what_runs_when_a_limit_is_set_counts(db: Db) -> None:
    batches = stored(db, "e1", "p/one", batches=3)
    assert isinstance(ask(db, batches[0]), Claim)
    limits.set(db, "p", trials=1)
    assert limits.all(db)[0].running == 1
    assert ask(db, batches[1]) is Answer.WAIT
    limits.set(db, "p", trials=2)
    assert isinstance(ask(db, batches[1]), Claim)
    assert ask(db, batches[2]) is Answer.WAIT
    limits.clear(db, "p")
    assert isinstance(ask(db, batches[2]), Claim)
    limits.set(db, "p", trials=3)
    assert limits.all(db)[0].running == 3
    evaluations.delete(db, "e1")
    assert limits.all(db)[0].running == 0


def test_starts_are_spread_over_the_minute(db: Db) -> None:
    limits.set(db, "p", per_minute=300)
    batches = stored(db, "e1", "p/one", batches=2)
    before = trials.now(db)
    assert isinstance(ask(db, batches[0]), Claim)
    assert ask(db, batches[1]) is Answer.WAIT
    eventually(lambda: isinstance(ask(db, batches[1]), Claim))
    assert (trials.now(db) - before).total_seconds() >= 0.2


@pytest.mark.parametrize("late", [0, 300, 900, 5000])
def test_a_start_that_comes_late_is_made_up_for(db: Db, late: int) -> None:
    """Who waits looks now and then: without this the rate is missed by what the looks are apart."""

    def now() -> int:
        return int(trials.now(db).timestamp() * 1000)

    limits.set(db, "p", per_minute=300)
    (batch,) = stored(db, "e1", "p/one", batches=1)
    before = now()
    due = before - late
    db.client.hset(key("paced"), "p", due)
    assert isinstance(ask(db, batch), Claim)
    # An interval after it was due, but for what it is late by more than a second.
    due_next = float(db.client.hget(key("paced"), "p") or 0)
    assert max(due, before - 1000) + 200 <= due_next <= max(due, now() - 1000) + 201


@pytest.mark.parametrize(
    "key", ["", " p", "p/", "/p", "p\n", "x" * 300, "a b/../c", "a  b", "a\tb", "a//b", "..", "p/..", "p\0"]
)
def test_a_key_that_is_none_is_refused(db: Db, key: str) -> None:
    with pytest.raises(InputError):
        limits.set(db, key, trials=1)


@pytest.mark.parametrize(
    "key",
    [
        "p",
        "openai/gpt-5",
        "vertex_ai/claude-3-5@20240620",
        "bedrock/amazon.nova-pro-v1:0",
        "anthropic/claude-sonnet-4-5[1m]",
        "meta/Llama 3 (8B, chat)",
        "hosted/Qwen/Qwen2.5-72B",
        "é",
    ],
)
def test_a_key_is_what_models_are_called(db: Db, key: str) -> None:
    limits.set(db, key, trials=1)
    assert [item.key for item in limits.all(db)] == [key]
    assert limits.of(db) == {key: Limit(trials=1)}


def test_how_many_wait_under_a_limit_is_known(db: Db) -> None:
    stored(db, "e1", "p/one", batches=2)
    assert limits.held(db, "e1") == []
    limits.set(db, "p", per_minute=30)
    limits.set(db, "q", trials=1)
    assert [(one.waiting, one.limit.per_minute) for one in limits.held(db, "e1")] == [(10, 30.0), (0, 0.0)]


def test_numbers_that_are_none_are_refused(db: Db) -> None:
    for numbers in (
        {"trials": -1},
        {"per_minute": -1.0},
        {"per_minute": float("nan")},
        {"per_minute": 1e-9},
        {"trials": 10**9},
    ):
        with pytest.raises(InputError):
            limits.set(db, "p", **numbers)  # type: ignore[arg-type]
    with pytest.raises(NotFound):
        limits.clear(db, "p")


def test_an_evaluation_under_a_limit_runs_to_its_end(site: Site, tmp_path: Path) -> None:
    for id in ("a", "b"):
        register(site, id, slots=2)
    site = replace(site, config=replace(site.config, poll_interval=0.05, refresh_seconds=0.2))
    limits.set(site.db, "p", trials=1)
    most: list[int] = []
    config = {"name": "x", "trials": 4, "seconds": 0.1, "model": "p/one"}
    id = submit(site, config, per_worker_concurrency="all").id
    with running(site, tmp_path, "a", "b"):

        def over() -> bool:
            most.append(limits.all(site.db)[0].running)
            return evaluations.get(site.db, id).done == 4

        eventually(over, 30, pause=0.01)
        assert closed(site, id).state.value == "succeeded"
    assert max(most) == 1


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        yield site


def aeo(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(main, args)
    assert result.exit_code == code, result.output
    return result


def test_limits_from_the_command_line(controller: Site) -> None:
    assert "No limits" in aeo("limits").stderr
    aeo("limits", "set", "p", "--trials", "20")
    aeo("limits", "set", "q/one", "--trials", "2", "--per-minute", "30")
    shown = aeo("limits").stdout.splitlines()
    assert [line.split() for line in shown[1:]] == [["p", "0", "20", "any"], ["q/one", "0", "2", "30"]]
    told = json.loads(aeo("limits", "--json").stdout)["limits"]
    assert told[1] == {"key": "q/one", "limit": {"trials": 2, "per_minute": 30.0}, "running": 0}
    aeo("limits", "clear", "p")
    assert [item.key for item in limits.all(controller.db)] == ["q/one"]
    assert "No limit 'p'" in aeo("limits", "clear", "p", code=2).stderr
    assert "nothing is limited" in aeo("limits", "set", "p", code=2).stderr
    assert "no provider" in aeo("limits", "set", "p/", "--trials", "1", code=2).stderr
    assert "KEY: is empty. Use PROVIDER or PROVIDER/MODEL" in aeo("limits", "set", "", "--trials", "1", code=2).stderr
    assert "0.001 to 1000000" in aeo("limits", "set", "p", "--per-minute", "1e-9", code=2).stderr
    # What was set before there were rules can be taken away.
    controller.db.run("set_limit", "a b/../c", 1, "0.0")
    aeo("limits", "clear", "a b/../c")


def test_the_api_says_what_a_limit_may_be(controller: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def put(**body: Any) -> str:
        answer = httpx.put(
            f"{os.environ['AEO_URL']}/api/limits", json=body, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert answer.status_code == 422
        return str(answer.json()["detail"])

    assert put(key="", trials=1).startswith("key: is empty. Use PROVIDER")
    assert put(key="a b/../c", trials=1).startswith("key: 'a b/../c' is no provider or model. Use PROVIDER")
    assert put(key="p", trials=10**12) == "trials: is too large. Give 1000000 or less."
    assert put(key="p", per_minute=-1) == "per_minute: is too small. Give 0 or more."
    assert put(key="x" * 300, trials=1) == "key: is too long. Give at most 200 characters."
