"""Secrets through real programs: they reach the trial's process, and stand nowhere else."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import httpx
import psutil
import pytest
import yaml
from needs import require
from platforms import Platform
from programs import AEO, TOKEN
from waiting import eventually

from aeo.embedded import server
from aeo.store.connection import connect

VALUE = "sk-proof-6vQ2+nX/9z=Lw81RbTqkYcHs"
SECOND = "sk-proof-second-Zk4mPq0uWv7xJt"
OWN = "of-the-worker-itself-Ab3dEf6hIj"


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        made = Platform(tmp_path_factory.mktemp("platform"))
        try:
            made.ready()
            made.worker("one", "--slots", "2")
            made.worker("two", "--slots", "1", environment={"WORKERS_API_KEY": OWN, "TOLD_TO_NOBODY": OWN})
            for id in ("one", "two"):
                made.api.await_worker(id, timeout=60)
            yield made
            made.stop()
        finally:
            made.destroy()


def aeo(platform: Platform, *arguments: str, token: str = TOKEN, given: str = "", code: int = 0) -> str:
    """Run the command line to its end; returns all it said."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("AEO_")}
    done = subprocess.run(
        [AEO, *arguments],
        env={**clean, "AEO_URL": platform.url, "AEO_TOKEN": token},
        cwd=platform.folder,
        input=given.encode(),
        capture_output=True,
        timeout=120,
        check=False,
    )
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == code, said
    return said


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


#: Shows the variable in every way a careless agent might, and exits well only when it is the right one.
def careless(name: str, value: str) -> str:
    return (
        f'echo "the key is ${name}"; printf "x%s" "${name}" | base64 -w0; echo "user:${name}" >&2; sleep 0.5; '
        f'test "$(printf %s "${name}" | sha256sum)" = "{digest(value)}  -"'
    )


@contextmanager
def watched_for(platform: Platform, *values: str) -> Iterator[list[str]]:
    """Look at what anybody on this machine may see meanwhile: arguments, and the environment of our own programs."""
    found: list[str] = []
    looks = 0
    over = threading.Event()

    def look() -> None:
        nonlocal looks
        while not over.wait(0.1):
            looks += 1
            listing = subprocess.run(["ps", "-eo", "args", "-ww"], capture_output=True, check=False).stdout
            found.extend(f"ps: {value}" for value in values if value.encode() in listing)
            for program in platform.programs:
                with suppress(psutil.Error):
                    environment = "\n".join(program.process.environ().values())
                    found.extend(f"environment: {value}" for value in values if value in environment)

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield found
    finally:
        over.set()
        thread.join()
    assert looks > 3


def holders(platform: Platform, *values: str, below: Path | None = None) -> list[str]:
    """Where on disk and in the store any of these stands, as it is or in base64."""
    forms = {value.encode() for value in values}
    for value in values:
        for before in ("", "x", "xy"):
            forms.add(base64.b64encode((before + value).encode())[4 : -4 or None])
    found = [
        str(path)
        for path in (below or platform.folder).rglob("*")
        if path.is_file() and not path.is_symlink() and any(form in _content(path) for form in forms)
    ]
    running = server.start(platform.shared / "redis")
    db = connect(running.url)
    try:
        keys = list(db.client.scan_iter(count=1000))
        assert len(keys) > 10
        for key in keys:
            readers: dict[str, Callable[[str], Any]] = {
                "none": lambda _: None,  # of a moment only
                "string": db.client.get,
                "hash": db.client.hgetall,
                "set": db.client.smembers,
                "list": lambda name: db.client.lrange(name, 0, -1),
                "zset": lambda name: db.client.zrange(name, 0, -1),
                "stream": lambda name: db.client.xrange(name),
            }
            text = repr(readers[db.client.type(key)](key)).encode()
            found += [f"redis {key}"] if any(form in text for form in forms) else []
    finally:
        db.close()
    return found


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:  # of a moment only
        return b""


def submit(platform: Platform, config: dict[str, Any], *options: str, code: int = 0) -> str:
    path = platform.folder / f"{config.get('name', 'job')}.yaml"
    path.write_text(yaml.safe_dump(config, sort_keys=False))
    return aeo(platform, "submit", str(path), *options, code=code)


def of_commands(name: str, *commands: str, **header: Any) -> dict[str, Any]:
    listed = [{"name": f"t{number}", "command": text} for number, text in enumerate(commands)]
    return {"executor": "command", "name": name, "per_worker_concurrency": "all", "tasks": listed, **header}


def ended(platform: Platform, name: str, state: str = "succeeded") -> Any:
    def look() -> Any:
        status = platform.api.status(name)
        assert status["state"] == state, status
        return status

    return eventually(look, 90, pause=0.2)


def rewards(platform: Platform, name: str) -> list[float]:
    trials = platform.api.get(f"/api/evaluations/{name}/trials")["trials"]
    return [trial["row"]["summary"]["rewards"].get("reward", -1) for trial in trials if trial["row"]]


def test_a_missing_secret_is_told_before_anything_starts(platform: Platform) -> None:
    config = of_commands("missing", "true", secrets=["NOWHERE_API_KEY"])
    for options in (("--check",), ()):
        said = submit(platform, config, *options, code=2)
        assert "NOWHERE_API_KEY is set neither on the controller nor on one, two." in said
        assert "aeo secrets set NOWHERE_API_KEY" in said
    assert not (platform.shared / "jobs" / "missing").exists()
    # What only a worker has makes the other one unfit.
    config = of_commands("partly", "true", secrets=["WORKERS_API_KEY"])
    said = submit(platform, config, "--check")
    assert "has no WORKERS_API_KEY in its environment" in said
    assert "It can be run" in said


def test_a_command_gets_it_and_nobody_else(platform: Platform) -> None:
    assert "PROBE_API_KEY is set" in aeo(platform, "secrets", "set", "PROBE_API_KEY", given=f"{VALUE}\n")
    listed = aeo(platform, "secrets", "list", "--json")
    assert [item["name"] for item in json.loads(listed)["secrets"]] == ["PROBE_API_KEY"]
    assert VALUE[-4:] not in listed
    check = careless("PROBE_API_KEY", VALUE)
    with watched_for(platform, VALUE) as seen:
        submit(platform, of_commands("commands", check, check, check, check), "--secret", "PROBE_API_KEY")
        # Nor while they run: what they write by then lies in their own folders on the workers only.
        assert holders(platform, VALUE, below=platform.shared) == []
        ended(platform, "commands")
    assert seen == []
    assert rewards(platform, "commands") == [1.0] * 4
    assert len(platform.check_once_each("commands")) >= 1
    shown = next(platform.job("commands").glob("*/agent/command-0/stdout.txt")).read_text()
    assert shown.startswith("the key is ${PROBE_API_KEY}\n")
    assert holders(platform, VALUE) == []
    assert len(holders(platform, "the key is $")) >= 4


def test_one_that_is_not_named_is_not_given(platform: Platform) -> None:
    aeo(platform, "secrets", "set", "PROBE_API_KEY", given=VALUE)
    submit(platform, of_commands("unnamed", 'test -z "$PROBE_API_KEY"', 'test -z "$WORKERS_API_KEY"'), "--wait")
    assert rewards(platform, "unnamed") == [1.0, 1.0]


def test_a_change_reaches_the_next_evaluation_and_the_controllers_wins(platform: Platform) -> None:
    config = of_commands("own", careless("WORKERS_API_KEY", OWN), secrets=["WORKERS_API_KEY"])
    submit(platform, config, "--wait")
    assert rewards(platform, "own") == [1.0]
    events = platform.events(platform.api.status("own")["id"])
    assert {event["worker"] for event in events if event["kind"] == "claimed"} == {"two"}
    aeo(platform, "secrets", "set", "WORKERS_API_KEY", given=SECOND)
    for name, key in (("first", VALUE), ("second", SECOND)):
        aeo(platform, "secrets", "set", "PROBE_API_KEY", given=key)
        commands = [careless("PROBE_API_KEY", key), careless("WORKERS_API_KEY", SECOND)] * 3
        submit(platform, of_commands(name, *commands, secrets=["PROBE_API_KEY", "WORKERS_API_KEY"]), "--wait")
        assert rewards(platform, name) == [1.0] * 6
    aeo(platform, "secrets", "remove", "WORKERS_API_KEY")
    assert holders(platform, VALUE, SECOND, OWN) == []


def test_only_admins_set_and_nobody_reads(platform: Platform) -> None:
    aeo(platform, "secrets", "set", "PROBE_API_KEY", given=VALUE)
    member = aeo(platform, "user", "add", "mia", "--role", "member").split("\n")
    token = next(line for line in member if line.startswith("aeo_"))
    for arguments in (("list",), ("set", "X_KEY"), ("remove", "PROBE_API_KEY"), ("rekey",)):
        assert "this needs an admin" in aeo(platform, "secrets", *arguments, token=token, given=VALUE, code=2)
    # With the controller's own token, and without a run of its own.
    claim = {"worker": "one", "trial": "t0__1", "token": "made-up", "proof": "0" * 64}
    for evaluation in ("commands", platform.api.status("commands")["id"], "nothing"):
        answer = httpx.post(
            f"{platform.url}/api/evaluations/{evaluation}/secrets",
            json=claim,
            headers={"Authorization": f"Bearer {TOKEN}"},
            trust_env=False,
        )
        assert answer.status_code == 403
        assert VALUE not in answer.text


def test_a_lost_key_is_told_and_a_new_one_is_taken(platform: Platform) -> None:
    aeo(platform, "secrets", "set", "PROBE_API_KEY", given=VALUE)
    key = Path(os.environ["XDG_CONFIG_HOME"]) / "aeo" / "secrets.key"
    before = key.read_text()
    assert "1" in aeo(platform, "secrets", "rekey")
    assert key.read_text() != before
    aside = key.rename(key.with_name("aside"))
    said = aeo(platform, "secrets", "set", "OTHER_KEY", given=VALUE, code=1)
    assert "The key of the secrets is lost" in said
    assert "AEO_SECRETS_KEY_FILE" in said
    said = submit(platform, of_commands("keyless", "true", secrets=["PROBE_API_KEY"]), code=2)
    assert "The key of the secrets is lost" in said
    assert "PROBE_API_KEY" in aeo(platform, "secrets", "list")
    aside.rename(key)
    submit(platform, of_commands("again", careless("PROBE_API_KEY", VALUE), secrets=["PROBE_API_KEY"]), "--wait")
    assert rewards(platform, "again") == [1.0]


def test_a_harbor_trial_gets_it_and_nobody_else(platform: Platform) -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    aeo(platform, "secrets", "set", "PROBE_API_KEY", given=VALUE)
    check = careless("PROBE_API_KEY", VALUE)
    solve = f"({check}) && echo yes > /app/done\necho $PROBE_API_KEY > /logs/agent/said.txt"
    for name in ("a", "b", "c"):
        tasks.task(
            platform.folder / "set" / name,
            solve=solve,
            test=f"{check} && test -f /app/done; echo $(($? == 0)) > /logs/verifier/reward.txt",
        )
    reference = {"PROBE_API_KEY": "${PROBE_API_KEY}"}
    config = {
        "job_name": "harbor",
        "agents": [{"name": "oracle", "env": reference}],
        "verifier": {"env": reference},
        "environment": dict(tasks.HOST),
        "datasets": [{"path": str(platform.folder / "set")}],
    }
    for path in (platform.folder / "set").rglob("*.sh"):
        assert VALUE not in path.read_text()
    with watched_for(platform, VALUE) as seen:
        # Its configuration names it: nobody has to say so again.
        submit(platform, config, "--per-worker-concurrency", "all")
        ended(platform, "harbor")
    assert seen == []
    assert rewards(platform, "harbor") == [1.0] * 3
    record = platform.shared / "evaluations" / platform.api.status("harbor")["id"] / "evaluation.json"
    assert json.loads(record.read_text())["spec"]["secrets"] == ["PROBE_API_KEY"]
    # By Harbor itself, which takes out what it knows by name.
    assert next(platform.job("harbor").glob("*/agent/said.txt")).read_text() == "[REDACTED]\n"
    assert holders(platform, VALUE) == []
    # Set nowhere, it is told where it is asked for.
    aeo(platform, "secrets", "remove", "PROBE_API_KEY")
    said = submit(platform, {**config, "job_name": "none"}, "--check", code=2)
    assert "PROBE_API_KEY, which agents[0].env refers to, is set neither on the controller nor on one, two." in said


def test_what_an_agent_usually_needs_is_suggested(platform: Platform) -> None:
    tasks.needed_harbor()
    judged = (
        '[verifier.env]\nJUDGE_API_KEY = "${JUDGE_API_KEY}"\nMODEL = "${MODEL}"\nOTHER_API_KEY = "${OTHER_API_KEY:-}"'
    )
    tasks.task(platform.folder / "usual" / "a", toml=judged)
    config = {
        "job_name": "usual",
        "agents": [{"name": "terminus-2", "model_name": "openai/gpt-5"}],
        "environment": dict(tasks.HOST),
        "datasets": [{"path": str(platform.folder / "usual")}],
    }
    said = submit(platform, config, "--check")
    assert "The agent terminus-2 with openai/gpt-5 usually needs OPENAI_API_KEY" in said
    assert "aeo secrets set OPENAI_API_KEY" in said
    assert "The task a usually needs JUDGE_API_KEY" in said
    assert said.count("usually needs") == 2


def test_a_driver_that_stays_up_has_them_for_one_trial_only(tmp_path: Path) -> None:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    said = 'printf %s "$PROBE_API_KEY" | sha256sum > /logs/agent/said.txt'
    for name in ("a", "b", "c"):
        tasks.task(tmp_path / "set" / name, solve=said)
    config = {
        "agents": [{"name": "oracle", "env": {"PROBE_API_KEY": "${PROBE_API_KEY:-}"}}],
        "environment": dict(tasks.HOST),
        "datasets": [{"path": str(tmp_path / "set")}],
    }
    run = tasks.start(tmp_path, config)
    drivers = set()
    with run.session() as session:
        for trial, value in zip(run.trials, ("", VALUE, ""), strict=True):
            given = {"PROBE_API_KEY": value} if value else {}
            context = replace(run.context(trial), environment=given)
            session.run(trial, context, lambda _: None)
            assert session._driver is not None
            drivers.add(session._driver.pid)
            assert VALUE not in str(psutil.Process(session._driver.pid).environ())
            text = (context.trial_dir / "agent" / "said.txt").read_text()
            assert text == f"{digest(value)}  -\n"
    assert len(drivers) == 1
