"""Logs as JSON: what each line is about, that secrets stay hidden, and that real processes write nothing else."""

from __future__ import annotations

import io
import json
import logging
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import engine
import pytest
from programs import TOKEN, Api, Program, free_port
from waiting import eventually

from aeo import logs
from aeo.config import Config
from aeo.core.model import Claim
from aeo.executors.sleep import SleepSession
from aeo.site import Site
from webapp.security import HideTokens

CLAIM = Claim(evaluation="e1", trial="t1", batch="b1", worker="w1", token="x", attempt=1)
ABOUT = {"evaluation": "e1", "batch": "b1", "trial": "t1", "worker": "w1"}
Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """What the only handler of the root logger writes, see `written`."""
    yield io.StringIO()
    logging.getLogger().handlers[:] = []


def written(stream: io.StringIO, config: Config, *filters: logging.Filter, **always: str) -> Lines:
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logs.formatter(config, **always))
    for one in filters:
        handler.addFilter(one)
    # Alone: pytest's own, which it puts there for each phase, would report letters that nothing can send.
    logging.getLogger().handlers[:] = [handler]
    return lambda: [json.loads(line) for line in stream.getvalue().splitlines()]


JSON = Config(log_format="json")
log = logging.getLogger("aeo.test")


def test_text_is_as_it_was(stream: io.StringIO) -> None:
    written(stream, Config(), process="control")
    with logs.of_run(CLAIM):
        log.warning("push of %s failed", "t1")
    assert re.fullmatch(
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} WARNING aeo\.test: push of t1 failed\n", stream.getvalue()
    )


def test_a_line_says_what_it_is_about(stream: io.StringIO) -> None:
    lines = written(stream, JSON, process="worker", worker="w9")
    log.warning("before %d%%", 5)
    with logs.about(evaluation="e1", batch="b1", trial=""), logs.about(trial="t1"):
        log.error("inside")
    with logs.of_run(CLAIM):
        log.error("a run")
    log.warning("after")
    before, inside, run, after = lines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:.]{12}\+00:00", before.pop("at"))
    assert before == {
        "level": "warning",
        "event": "before 5%",
        "logger": "aeo.test",
        "process": "worker",
        "worker": "w9",
    }
    assert {**ABOUT, "worker": "w9", "level": "error"}.items() <= inside.items()
    assert ABOUT.items() <= run.items()
    assert "trial" not in after
    assert after["worker"] == "w9"


def test_work_for_another_thread_takes_it_along(stream: io.StringIO) -> None:
    lines = written(stream, JSON)
    for target in (logs.of_run(CLAIM)(lambda: log.error("with")), lambda: log.error("without")):
        thread = threading.Thread(target=target)
        thread.start()
        thread.join()
    assert [ABOUT.items() <= line.items() for line in lines()] == [True, False]


def test_every_line_is_one_line_whatever_it_says(stream: io.StringIO) -> None:
    lines = written(stream, JSON)
    log.error("two\nlines \x1b[31m\udc80 ünï \u2028 %s", "{'a': \"b\"}")
    try:
        raise ValueError("a\nfault")
    except ValueError:
        log.exception("failed")
    odd, failed = lines()
    assert odd["event"] == "two\nlines \x1b[31m\udc80 ünï \u2028 {'a': \"b\"}"
    assert failed["exception"].startswith("Traceback ")
    assert failed["exception"].endswith("ValueError: a\nfault")
    assert stream.getvalue().count("\n") == 2


@pytest.mark.parametrize("form", ["text", "json"])
def test_secrets_are_in_no_line(form: str, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MODEL_KEY", 'sk-"quoted"-0123456789')
    secrets = {
        "auth_token": "s3cret-token-of-this-test",
        "broker_url": "redis://:brok%65r-password@127.0.0.1:1/0",
        "transfer_password": "of-rsync-0123",
        "notify_url": "https://chat.example/hooks/T0/B0/xyzzy",
        "smtp_url": "smtp://user:mail-password@127.0.0.1",
    }
    config = Config(log_format=form, secret_names=("MODEL_KEY",), **secrets)  # type: ignore[arg-type]
    written(stream, config, HideTokens(config.auth_token))
    user = "aeo_" + "u" * 43
    log.warning("%s", [*secrets.values(), "broker-password"])
    log.warning("GET /?token=abc&x=1 by %s with %s", user, 'sk-"quoted"-0123456789')
    try:
        raise RuntimeError(f"{config.auth_token} {config.notify_url} {user}")
    except RuntimeError:
        log.exception("failed")
    out = stream.getvalue()
    for word in (
        "s3cret",
        "brok%65r",
        "broker-password",
        "of-rsync",
        "xyzzy",
        "mail-password",
        "token=abc",
        user,
        "sk-",
    ):
        assert word not in out, word
    assert "RuntimeError" in out


def test_what_a_plug_in_logs_in_a_run_says_which(
    site: Site, tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written(stream, JSON)
    run = SleepSession.run

    def tells(self: SleepSession, *given: Any) -> None:
        logging.getLogger("a.plug.in").warning("working")
        run(self, *given)

    monkeypatch.setattr(SleepSession, "run", tells)
    engine.register(site, "w1")
    evaluation = engine.submit(site, {"name": "n", "tasks": 2, "seconds": 0})
    with engine.running(site, tmp_path, "w1"):
        engine.closed(site, evaluation.id)
    found = [line for line in lines() if line["logger"] == "a.plug.in"]
    assert {line["trial"] for line in found} == {trial.name for trial in evaluation.plan.trials}
    assert {(line["evaluation"], line["worker"]) for line in found} == {(evaluation.id, "w1")}
    assert all(line["batch"] for line in found)


def test_what_the_controller_says_of_a_result_names_its_trial(
    site: Site, tmp_path: Path, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written(stream, JSON)

    def fails(*_: object) -> None:
        raise RuntimeError("cannot read it")

    monkeypatch.setattr("aeo.executors.sleep.Sleep.summarise", fails)
    engine.register(site, "w1")
    evaluation = engine.submit(site, {"name": "n", "tasks": 1, "seconds": 0, "max_requeues": 0})
    with engine.running(site, tmp_path, "w1"):
        eventually(lambda: [line for line in lines() if "executor sleep failed" in line["event"]])
    line = next(line for line in lines() if "executor sleep failed" in line["event"])
    assert (line["evaluation"], line["trial"]) == (evaluation.id, evaluation.plan.trials[0].name)
    assert "cannot read it" in line["exception"]


def test_real_processes_write_json_and_no_token(tmp_path: Path) -> None:
    port = free_port()
    up = Program(
        ["up", "--port", str(port), "--shared-root", str(tmp_path / "data"), "--workers", "1"],
        tmp_path,
        {"AEO_LOG_FORMAT": "json", "AEO_NOTIFY_URL": f"http://127.0.0.1:{free_port()}/hook-5ecret"},
    )
    api = Api(f"http://127.0.0.1:{port}")
    try:
        eventually(api.healthy, 60)
        api.await_worker("worker-1", timeout=60)
        # The control process has looked once before, so that the end is news.
        eventually(lambda: (tmp_path / "data" / "notices.json").exists(), 30)
        id = api.submit({"executor": "sleep", "name": "n", "tasks": 1, "seconds": 0})
        eventually(lambda: api.status(id)["state"] == "succeeded", 60)
        eventually(lambda: '"to be told: n succeeded"' in up.output, 30)
        eventually(lambda: "is not told by webhook yet" in up.output, 30)
        api.close()
        assert up.terminate(60) == 0
    finally:
        up.destroy()
    said = [line for line in up.output.splitlines() if line.strip()]
    people = ("Controller: ", "Its token is kept in ", "1 worker ready ", "Stopped.")
    records = [json.loads(line) for line in said if not line.startswith(people)]
    assert {"at", "level", "event", "logger", "process"} <= set.intersection(*map(set, records))
    assert {"control"} <= {line["process"] for line in records}
    assert TOKEN not in up.output
    assert "hook-5ecret" not in up.output


def test_an_address_that_is_none_keeps_nobody_from_logging(stream: io.StringIO) -> None:
    written(stream, Config(broker_url="redis://[bad"))
    log.warning("fine")
    assert stream.getvalue().endswith(": fine\n")


def test_the_format_reaches_every_child() -> None:
    from aeo.embedded.children import variables

    assert variables(replace(Config(), log_format="json"))["AEO_LOG_FORMAT"] == "json"
