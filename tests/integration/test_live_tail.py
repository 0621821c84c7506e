"""A trial watched while it runs: real controller, real workers, over a path, ssh and an rsync daemon."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from engine import closed, register, running, worker_site
from needs import require
from programs import TOKEN, Api, Program, free_port
from rsync_hosts import PASSWORD, missing, rsync_daemon, ssh_server
from waiting import eventually

from aeo import artifacts, evaluations, live
from aeo.artifacts import tail, windows
from aeo.core.errors import NotFound, TransferFailed
from aeo.core.model import Evaluation, Outcome
from aeo.site import Site
from aeo.store import trials, watched
from aeo.submission import Submission
from aeo.transfer import move

KEY = "sk-0123456789abcdef"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Stage:
    """A controller and workers that reach its disk in three ways."""

    def __init__(self, folder: Path, hosts: ExitStack):
        self.folder, self.shared, port = folder, folder / "shared", free_port()
        self.key = folder / "key"
        self.key.write_text(KEY)
        arguments = ["controller", "--port", str(port), "--shared-root", str(self.shared)]
        environment = {"AEO_SECRET_NAMES": "MODEL_KEY", "MODEL_KEY": KEY}
        self.programs = [Program(arguments, folder, environment)]
        self.api = Api(f"http://127.0.0.1:{port}")
        eventually(self.api.healthy, 60, pause=0.1)
        daemon = hosts.enter_context(rsync_daemon(self.shared, folder / "rsyncd"))
        shell = hosts.enter_context(ssh_server(folder / "sshd"))
        path = f"{shell.programs}{os.pathsep}{os.environ['PATH']}"
        self._worker("path")
        self._worker("daemon", "--transfer-url", daemon.url, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        self._worker("shell", "--transfer-url", shell.url(self.shared), environment={"PATH": path})
        for id in ("path", "daemon", "shell"):
            self.api.await_worker(id, timeout=60)

    def _worker(self, id: str, *more: str, environment: Mapping[str, str] | None = None) -> None:
        arguments = ["worker", "--controller-url", self.api.url, "--worker-id", id, "--poll-interval", "0.5"]
        arguments += ["--local-root", str(self.folder / id), "--slots", "2", *more]
        self.programs.append(Program(arguments, self.folder, environment))

    def submit(self, worker: str, command: str, name: str) -> tuple[str, str]:
        """Start a trial; returns the evaluation and the trial."""
        task = {"name": name, "command": command, "timeout_sec": 60}
        id = self.api.submit({"executor": "command", "name": name, "workers": [worker], "tasks": [task]})
        (trial,) = self.api.get(f"/api/evaluations/{id}/trials")["trials"]
        return id, trial["trial"]

    def page(self, id: str, trial: str, query: str = "") -> str:
        answer = httpx.get(f"{self.api.url}/evaluations/{id}/trials/{trial}{query}", headers=BEARER, trust_env=False)
        assert answer.status_code in (200, 286), answer.text
        return answer.text

    def destroy(self) -> None:
        self.api.close()
        for program in reversed(self.programs):
            program.destroy()


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    require(not missing("rsync", "ssh", "sshd"), missing("rsync", "ssh", "sshd"))
    with ExitStack() as hosts:
        made = Stage(tmp_path_factory.mktemp("live"), hosts)
        hosts.callback(made.destroy)
        yield made


class Tail:
    """Follows a file as a browser does, in a thread."""

    def __init__(self, stage: Stage, id: str, trial: str, file: str):
        self._url = f"{stage.api.url}/evaluations/{id}/trials/{trial}/tail"
        self._file, self.events = file, list[tuple[str, str, Any]]()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        headers = {**BEARER}
        while not self.ended:
            with httpx.stream(
                "GET", self._url, params={"file": self._file}, headers=headers, timeout=30, trust_env=False
            ) as answer:
                assert answer.status_code == 200
                event: dict[str, str] = {}
                for line in answer.iter_lines():
                    name, _, value = line.partition(": ")
                    if line:
                        event[name] = value
                    elif "data" in event:
                        self.events.append((event["event"], event["id"], json.loads(event["data"])))
                        headers["Last-Event-ID"] = event["id"]
                        event = {}

    @property
    def text(self) -> str:
        return "".join(text for _, _, data in self.events for _, text in data["runs"])

    @property
    def ended(self) -> bool:
        return any(kind == "end" for kind, _, _ in self.events)


COMMAND = (
    'printf "\\033[32mgreen\\033[0m\\n"; cat {key}; echo; '
    'for n in $(seq 1 2000); do echo "line $n"; test -e {gate} && break; sleep 0.2; done; echo last'
)
FILE = "agent/command-0/stdout.txt"


@pytest.mark.parametrize("worker", ["path", "daemon", "shell"])
def test_a_log_grows_on_the_page_while_the_trial_runs(stage: Stage, worker: str) -> None:
    gate = stage.folder / f"gate-{worker}"
    id, trial = stage.submit(worker, COMMAND.format(key=stage.key, gate=gate), f"watched-{worker}")
    tail = Tail(stage, id, trial, FILE)
    try:
        eventually(lambda: "line 4\n" in tail.text, 30)
        seen = tail.text
        assert not tail.ended
        eventually(lambda: len(tail.text) > len(seen), 10)
        page = stage.page(id, trial, "?view=logs")
        assert "line 1" in page
        assert 'data-tail="' in page
        assert '<span class="t-f2">green</span>' in page
        assert "running" in stage.page(id, trial, "?part=head")
        assert "result.json" not in stage.page(id, trial, "?view=files")
    finally:
        gate.touch()
    eventually(lambda: tail.ended, 30)
    eventually(lambda: stage.api.status(id)["state"] == "succeeded", 30)
    lines = [line for line in tail.text.splitlines() if line.startswith("line ")]
    assert lines == [f"line {n}" for n in range(1, len(lines) + 1)]
    assert "${MODEL_KEY}" in tail.text
    assert KEY not in tail.text
    page = stage.page(id, trial, f"?view=logs&file={FILE}")
    assert "last" in page
    assert "data-tail" not in page
    assert KEY not in page
    # What was shown while it ran is gone, on the controller and on the worker.
    assert not list((stage.shared / "inbox" / id).rglob("*.*"))
    assert not list((stage.folder / worker).glob("batches/*"))


def test_nothing_is_sent_of_a_trial_nobody_watches(stage: Stage) -> None:
    id, _ = stage.submit("path", "echo said; sleep 3", "unwatched")
    eventually(lambda: stage.api.status(id)["state"] == "succeeded", 30)
    assert not (stage.shared / "inbox" / id / "live").exists()


class Inside:
    """One worker in this process, so that a test can be in its way."""

    def __init__(self, site: Site, root: Path):
        register(site, "a", slots=2)
        self.site, self.root = site, root

    def submit(self, command: str) -> Evaluation:
        task = {"name": "t", "command": command, "timeout_sec": 60}
        request = Submission(config={"executor": "command", "name": "in", "tasks": [task]})
        return evaluations.submit(self.site, request).evaluation


@pytest.fixture
def inside(site: Site, tmp_path: Path) -> Inside:
    return Inside(site, tmp_path)


def test_a_push_that_fails_or_hangs_does_not_disturb_the_run(
    inside: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    push, tried, let_go = move.push, list[str](), threading.Event()

    def fail(remote: Any, source: Path, target: str, *, password: str = "") -> None:
        if "/live/" not in target:
            return push(remote, source, target, password=password)
        tried.append(target)
        if len(tried) == 1:
            raise TransferFailed("the line is dead")
        let_go.wait(120)
        raise ZeroDivisionError

    monkeypatch.setattr(move, "push", fail)
    gate = inside.root / "gate"
    evaluation = inside.submit(f"until test -e {gate}; do echo more; sleep 0.1; done")
    (name,) = (trial.name for trial in evaluation.plan.trials)
    watched.watch(inside.site.db, evaluation.id, name, seconds=60)
    monkeypatch.setattr(live, "ASK_SECONDS", 0.2)
    try:
        with running(inside.site, inside.root, "a") as pool:
            eventually(lambda: len(tried) >= 2)
            gate.touch()
            status = closed(inside.site, evaluation.id)
    finally:
        gate.touch()
        let_go.set()
    assert pool.broken == []
    assert status.outcomes[Outcome.SCORED] == 1
    assert len(tried) >= 2
    assert "the line is dead" in caplog.text


def test_what_was_lost_by_a_failed_push_is_shown_anew(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    push, failed = move.push, list[str]()

    def fail_once(remote: Any, source: Path, target: str, *, password: str = "") -> None:
        if "/live/" in target and len(failed) < 2:
            failed.append(target)
            raise TransferFailed("not now")
        push(remote, source, target, password=password)

    monkeypatch.setattr(move, "push", fail_once)
    monkeypatch.setattr(live, "ASK_SECONDS", 0.2)
    gate = inside.root / "gate"
    evaluation = inside.submit(f"echo first; until test -e {gate}; do sleep 0.1; done; echo second")
    (name,) = (trial.name for trial in evaluation.plan.trials)
    watched.watch(inside.site.db, evaluation.id, name, seconds=60)
    with running(inside.site, inside.root, "a"):
        try:
            eventually(lambda: shown(inside.site, evaluation, name) == "first\n", 20)
        finally:
            gate.touch()
        closed(inside.site, evaluation.id)
    assert len(failed) == 2


def shown(site: Site, evaluation: Evaluation, name: str) -> str:
    place = artifacts.find(site, evaluation.id, name)
    try:
        return windows.before(place, FILE).text if place else ""
    except NotFound:
        return ""


def test_a_mark_of_watching_expires(inside: Inside) -> None:
    db = inside.site.db
    assert not watched.is_watched(db, "e", "t")
    watched.watch(db, "e", "t", seconds=1.0)
    assert watched.is_watched(db, "e", "t")
    eventually(lambda: not watched.is_watched(db, "e", "t"), 5)


def test_following_ends_in_time_and_when_the_server_does(inside: Inside) -> None:
    evaluation = inside.submit("true")
    (name,) = (trial.name for trial in evaluation.plan.trials)
    pieces = tail.follow(inside.site, evaluation.id, name, FILE, seconds=0.6, going=lambda: True)
    assert list(pieces) in ([None], [None, None])
    assert watched.is_watched(inside.site.db, evaluation.id, name)
    assert list(tail.follow(inside.site, evaluation.id, name, FILE, seconds=9, going=lambda: False)) == []


def test_the_live_files_of_lost_runs_go_with_the_merge(inside: Inside) -> None:
    evaluation = inside.submit("echo done")
    (name,) = (trial.name for trial in evaluation.plan.trials)
    left = inside.site.shared.live(evaluation.id, name, "lost")
    left.mkdir(parents=True)
    (left / "1.1.0").write_text("text")
    with running(inside.site, inside.root, "a"):
        closed(inside.site, evaluation.id)
    assert trials.row(inside.site.db, evaluation.id, name)
    assert not left.exists()


def test_a_worker_of_another_machine_takes_its_own_secrets_out(inside: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKERS_API_KEY", KEY)
    site = worker_site(inside.site, inside.root, "a")
    mirror = live._Mirror(replace(site), None, lambda: inside.root, threading.Event())  # type: ignore[arg-type]
    assert mirror._redacts().text(f"x {KEY}") == "x ${WORKERS_API_KEY}"
