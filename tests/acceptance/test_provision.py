"""From two bare machines to workers of a controller, over ssh alone; and back."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import harbor_tasks as tasks
import psutil
import pytest
from bare_hosts import ROOT, Bare
from chaos import hosts
from harbor_tasks import HOST
from needs import require
from programs import TOKEN
from waiting import eventually

from aeo.provision.work import STEPS


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Iterator[Bare]:
    tasks.needed_harbor()
    require(not hosts.missing(), hosts.missing())
    require(tasks.namespaces_work(), "user namespaces")
    folder = tmp_path_factory.mktemp("bare")
    # Packing what is installed here takes its time, and gives the same each time.
    (folder / "shared").mkdir(mode=0o700)
    (folder / "shared" / "wheels").symlink_to(pytestconfig.cache.mkdir("wheels"))
    with hosts.Net("a", "b") as net:
        made = Bare(folder, net, with_rsync=("a",))
        try:
            yield made
        finally:
            made.destroy()


def provision(bare: Bare, host: str, *more: str, code: int = 0) -> dict[str, dict[str, Any]]:
    """Run it; returns what each step said."""
    harbor = f"AEO_HARBOR_PYTHON={tasks.needed_harbor().path}"
    arguments = ["--offline", "--set", harbor, "--set", "AEO_POLL_INTERVAL=1", "--set", "AEO_STOP_SECONDS=1"]
    said = bare.aeo("provision", host, "--slots", "2", "--json", *arguments, *more, code=code)
    (machine,) = json.JSONDecoder().raw_decode(said)[0]["machines"]
    return {step["step"]: step for step in machine["steps"]}


def states(steps: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: step["state"] for name, step in steps.items()}


def check(steps: dict[str, dict[str, Any]], *, kept: Sequence[str], done: Sequence[str] = ()) -> None:
    """See that these steps had nothing to do, and those had."""
    wanted = {**dict.fromkeys(kept, "kept"), **dict.fromkeys(done, "done")}
    wrong = {name: steps[name] for name, state in wanted.items() if steps[name]["state"] != state}
    assert wrong == {}


def test_a_machine_that_cannot_be_reached_is_named_with_the_fix(bare: Bare) -> None:
    said = bare.aeo("provision", "root@127.0.0.1", "-p", "1", "--id", "nowhere", "--offline", code=1)
    assert "reach on root@127.0.0.1:1: " in said
    assert "refused" in said
    assert "ssh -o BatchMode=yes -p 1 root@127.0.0.1 true" in said


def test_a_dry_run_looks_and_changes_nothing(bare: Bare) -> None:
    assert bare.on("a", f"ls {ROOT}; command -v aeo uv pip harbor docker") == ""
    found = states(provision(bare, "a", "--dry-run"))
    assert found["reach"] == found["check"] == "done"
    assert {found[name] for name in ("uv", "aeo", "settings", "executors", "controller", "service")} == {"would"}
    assert list(bare.home("a").iterdir()) == []
    assert not (bare.shared / "provisioned" / "a").exists()


def test_both_become_workers_and_one_goes_on_where_it_failed(bare: Bare) -> None:
    with subprocess.Popen(_listener(bare), stdin=subprocess.PIPE) as taken, ThreadPoolExecutor(2) as pool:
        first = pool.submit(provision, bare, "a")
        failed = provision(bare, "b", code=1)
        assert taken.stdin
        taken.stdin.close()
        done = first.result()
    assert states(done) | {"rsync": "kept"} == {**dict.fromkeys((*STEPS, "remember"), "done"), "rsync": "kept"}
    assert states(failed)["controller"] == "failed"
    assert "service" not in failed
    assert "17380" in failed["controller"]["text"]
    assert "--tunnel-port" in failed["controller"]["fix"]

    check(provision(bare, "b"), kept=("rsync", "uv", "aeo", "settings"), done=("service",))
    for id in ("a", "b"):
        assert bare.api.await_worker(id)["info"]["capacity"]["slots"] == 2
        file = bare.home(id) / ".config" / "aeo" / f"worker-{id}.env"
        assert file.stat().st_mode & 0o777 == 0o600
        # It has a token of its own.
        assert "AEO_AUTH_TOKEN=aeow_" in file.read_text()
        assert TOKEN not in file.read_text()
        # How files travel it is told when it registers.
        assert "TRANSFER" not in file.read_text()
    # Nothing is done a third time.
    check(provision(bare, "a"), kept=("uv", "aeo", "settings", "controller", "service"))
    # The token is in no argument, and in nothing that is remembered here.
    shown = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
    ours = [line for line in shown if str(bare.folder) in line]
    assert [line for line in ours if line.endswith("worker")] != []
    assert [line for line in ours if TOKEN in line or "aeow_" in line] == []
    assert not [path for path in (bare.shared / "provisioned").rglob("*.json*") if TOKEN in path.read_text()]


def _listener(bare: Bare) -> list[str]:
    """Holds the port that the tunnel wants, until its standard input is closed."""
    text = "import socket, sys; s = socket.create_server(('127.0.0.1', 17380)); sys.stdin.read()"
    return [*bare.net.before("b"), "python3", "-c", text]


def _listens(bare: Bare, host: str, port: int) -> bool:
    try:
        bare.net.connect(host, port).close()
    except OSError:
        return False
    return True


def test_an_evaluation_over_both_goes_on_when_one_is_revoked(bare: Bare) -> None:
    folder = bare.folder / "set"
    tasks.passing(folder / "passing")
    tasks.task(folder / "slow", solve="sleep 1")
    config = {"n_attempts": 6, "environment": dict(HOST), "datasets": [{"path": str(folder)}]}
    id = bare.api.submit({"executor": "harbor", "name": "both", **config})
    eventually(lambda: {"a", "b"} <= _claimants(bare, id), 60, pause=0.1)
    bare.aeo("workers", "revoke", "b")
    eventually(lambda: bare.api.status(id)["state"] == "succeeded", 90, pause=0.2)
    committed = Counter(event["trial"] for event in _events(bare, id) if event["kind"] == "committed")
    assert len(committed) == 12
    assert set(committed.values()) == {1}
    assert bare.api.status(id)["outcomes"]["scored"] == 12
    assert len(tasks.tasks_of(bare.job("both"))) == 12
    log = (bare.shared / "rsync" / "daemon.log").read_text()
    assert all(f"rsync on aeo.out.{host}/tasks/" in log and f"rsync to aeo.in.{host}/" in log for host in ("a", "b"))


def _events(bare: Bare, id: str) -> list[dict[str, Any]]:
    log = bare.shared / "evaluations" / id / "events.jsonl"
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _claimants(bare: Bare, id: str) -> set[str]:
    return {event["worker"] for event in _events(bare, id) if event["kind"] == "claimed"}


def test_a_revoked_worker_is_back_when_it_is_provisioned_again(bare: Bare) -> None:
    assert bare.api.worker("b") is None
    check(provision(bare, "b"), kept=("uv", "aeo", "settings", "controller"), done=("service",))
    bare.api.await_worker("b")


def test_an_upgrade_waits_for_what_runs_and_the_worker_returns(bare: Bare) -> None:
    boot = bare.api.worker("a")["info"]["boot"]
    now_used = bare.home("a") / ".local" / "share" / "aeo" / "current"
    old = now_used.readlink()
    with (bare.tree / "aeo" / "__init__.py").open("a") as file:
        file.write("# newer\n")
    id = bare.api.submit({"executor": "sleep", "name": "meanwhile", "trials": 2, "seconds": 8, "workers": ["a"]})
    eventually(lambda: "a" in _claimants(bare, id), 30)
    said = bare.aeo("upgrade", "a", "--json")
    (machine,) = json.loads(said)["machines"]
    found = {step["step"]: step["state"] for step in machine["steps"]}
    assert (found["uv"], found["aeo"], found["drain"], found["service"], found["register"]) == ("kept", *["done"] * 4)
    now = bare.api.worker("a")
    assert (now["state"], now["info"]["boot"] != boot) == ("online", True)
    assert now_used.readlink() != old
    eventually(lambda: bare.api.status(id)["state"] == "succeeded", 30)
    assert Counter(event["kind"] for event in _events(bare, id))["claimed"] == 2
    # There is nothing to do then.
    (again,) = json.loads(bare.aeo("upgrade", "a", "--json"))["machines"]
    assert {step["state"] for step in again["steps"] if step["step"] in ("aeo", "drain", "service")} == {"kept"}


def test_a_worker_that_is_let_go_leaves_nothing(bare: Bare) -> None:
    bare.aeo("decommission", "a", "--yes")
    assert bare.api.worker("a") is None
    assert not (bare.shared / "provisioned" / "a").exists()
    left = {path.name for path in bare.home("a").rglob("*") if path.is_file()}
    assert left == set()
    eventually(lambda: not _listens(bare, "a", 17380), 20)
    assert bare.on("a", "ps -eo args | grep -c '[w]orker/a'") in ("0", "")
    refused = bare.aeo("upgrade", "a", code=2)
    assert "was not made a worker by aeo provision" in refused
