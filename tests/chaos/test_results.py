"""Results as no one would want them: odd files, huge ones, too many, and documents that lie."""

from __future__ import annotations

import json
import os
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from chaos.conftest import Judge
from chaos.stage import PATIENCE, Run, Stage
from chaos.table import PROPERTY, Row
from engine import closed, logged, register, running, submit
from hypothesis import given, settings
from hypothesis import strategies as st
from needs import require
from rsync_hosts import PASSWORD, missing, rsync_daemon

from aeo import codec, outbox
from aeo.core.errors import InputError
from aeo.core.model import Claim, Evaluation, Outcome, PlannedTrial, Spec, TrialSummary
from aeo.executors import folder, result
from aeo.executors.harbor import summary as harbor_summary
from aeo.layout import manifest_of
from aeo.site import Site, WorkerSite
from aeo.store import evaluations as store
from aeo.store import trials
from aeo.store.connection import Db
from aeo.transfer import manifest as manifests

GIB = 1024**3
#: Where a command's own output lies, in the trial's folder.
HERE = 'cd "$AEO_WORKDIR"/../"$AEO_TRIAL".*/agent/command-0'
MANY = """python3 -c '
import os
for number in range(50000):
    os.makedirs(f"d{number % 100}", exist_ok=True)
    open(f"d{number % 100}/{number}", "w").write(str(number))
'"""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Worker a on the controller's disk, worker r by an rsync daemon, worker big with room for large files."""
    require(not missing("rsync"), missing("rsync"))
    root = tmp_path_factory.mktemp("results")
    with ExitStack() as stack:
        stage = Stage(root)
        stack.callback(stage.destroy)
        stage.ready()
        daemon = stack.enter_context(rsync_daemon(stage.shared, root / "rsyncd"))
        far = ("--transfer-url", daemon.url)
        stage.start_worker("a", "--max-file-mb", "1")
        stage.start_worker("r", "--max-file-mb", "1", *far, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        stage.start_worker("big", "--max-file-mb", "4096", *far, environment={"AEO_TRANSFER_PASSWORD": PASSWORD})
        yield stage.ready("a", "r", "big")


def one(stage: Stage, worker: str, text: str) -> tuple[Run, Path, tuple[str, ...]]:
    """Run one command on one worker; returns its output's folder in the job, and the notes of its result."""
    task = {"name": "odd", "command": f"{HERE}; {text}", "timeout_sec": 300}
    run = stage.submit("command", tasks=[task], workers=[worker])
    run.strike()
    assert run.closed(200) == "succeeded"
    (trial,) = run.planned()
    with stage.db() as db:
        row = trials.row(db, run.id, trial)
    assert row is not None
    assert row.summary.outcome is Outcome.SCORED
    return run, run.job / trial / "agent" / "command-0", row.notes


def modes(folder: Path) -> set[tuple[int, int]]:
    """Owner and mode of all files below."""
    found = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    return {(state.st_uid, stat.S_IMODE(state.st_mode) & ~0o111) for state in found}


ODD = r"""
python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("a-socket")'
ln -s /etc/passwd out; ln -s . circle; ln -s nothing dangling; mkfifo a-pipe; mknod a-device c 1 3 || true
echo x > "$(printf 'two\nlines')"; echo x > "$(printf 'no-utf8-\377')"; echo x > "$(printf 'esc-\033[31m')"
mkdir -m 700 private; echo secret > private/file; chmod 0000 private/file; echo x > setuid; chmod 6755 setuid
echo "plain" > 'spaced  name #;%$'; truncate -s 1T bomb; truncate -s 3M large; echo end
"""


@pytest.mark.parametrize("worker", ["a", "r"])
def test_odd_files(platform: Stage, judge: Judge, worker: str) -> None:
    require(os.getuid() == 0, "root, which reads what nobody may read, as a container's root writes it")
    run, folder, notes = one(platform, worker, ODD)
    way = "folder" if worker == "a" else "rsync daemon"
    judge(run, f"links, devices, odd names, 1 TiB of holes ({way})", seconds=run.since(["committed"]))
    names = {path.name for path in folder.iterdir()}
    assert names == {"command.txt", "stdout.txt", "stderr.txt", "private", "setuid", "spaced  name #;%$"}
    assert (folder / "private" / "file").read_text() == "secret\n"
    assert modes(folder) == {(os.getuid(), 0o644)}
    assert stat.S_IMODE((folder / "private").lstat().st_mode) == 0o755
    told = "\n".join(notes)
    for name in ("out", "circle", "dangling", "a-socket", "a-pipe", r"two\nlines", "no-utf8-", "bomb", "large"):
        assert name in told, told
    assert "1,048,576 MiB" in told
    assert not [letter for letter in told.replace("\n", "") if not letter.isprintable()]
    # Kept where the note says, and still without its terabyte on the disk.
    (kept,) = (platform.folder / worker / "kept" / run.id).iterdir()
    assert str(kept) in told
    assert {path.name for path in kept.rglob("*") if path.is_file()} == {"bomb", "large"}
    assert sum(path.stat().st_blocks for path in kept.rglob("*")) * 512 < 1024**2


@pytest.mark.timeout(240)
def test_fifty_thousand_files(platform: Stage, judge: Judge) -> None:
    run, folder, notes = one(platform, "r", MANY)
    judge(run, "a result of 50,000 files (rsync daemon)", seconds=run.since(["committed"]))
    assert notes == ()
    assert sum(len(files) for _, _, files in os.walk(folder)) == 50_003
    assert (folder / "d7" / "49907").read_text() == "49907"


@pytest.mark.timeout(240)
def test_a_log_of_two_gigabytes(platform: Stage, judge: Judge) -> None:
    text = "truncate -s 2G log; printf end >> log"
    run, folder, notes = one(platform, "r", text)
    judge(run, "a log of 2 GiB, above the limit: kept on the worker", seconds=run.since(["committed"]))
    assert not (folder / "log").exists()
    assert "agent/command-0/log (2,048 MiB)" in notes[0]
    (kept,) = (platform.folder / "r" / "kept" / run.id).rglob("log")
    assert kept.stat().st_size == 2 * GIB + 3

    run, folder, notes = one(platform, "big", text)
    judge(run, "a log of 2 GiB, below the limit: sent home", seconds=run.since(["committed"]))
    assert notes == ()
    assert (folder / "log").stat().st_size == 2 * GIB + 3
    with (folder / "log").open("rb") as file:
        file.seek(-3, os.SEEK_END)
        assert file.read() == b"end"
    (folder / "log").unlink()


# What a worker, or what ran on it, may make of a result before it leaves.


def rewrite(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(run_dir: Path) -> None:
        path = run_dir / "result.json"
        path.write_text(json.dumps(change(json.loads(path.read_text()))))

    return apply


def raw(make: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(run_dir: Path) -> None:
        path = run_dir / "result.json"
        path.write_bytes(make(path.read_bytes()))

    return apply


def rewards(value: Any) -> Callable[[Path], None]:
    return rewrite(lambda document: {**document, "verifier_result": {"rewards": value}})


def replaced(make: Callable[[Path], None]) -> Callable[[Path], None]:
    def apply(run_dir: Path) -> None:
        path = run_dir / "result.json"
        path.rename(run_dir / "other.json")
        make(path)

    return apply


def _socket(path: Path) -> None:
    here = os.getcwd()  # noqa: PTH109  a socket's path must be short
    os.chdir(path.parent)
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


BAD: dict[str, Callable[[Path], None]] = {
    "cut off": raw(lambda text: text[: len(text) // 2]),
    "empty": raw(lambda text: b""),
    "not UTF-8": raw(lambda text: text.replace(b"sleep", b"\xff\xfe", 1)),
    "UTF-16": raw(lambda text: text.decode().encode("utf-16")),
    "no JSON": raw(lambda text: b"<html>"),
    "a list": rewrite(lambda document: [document]),
    "null": rewrite(lambda document: None),
    "nested deep": raw(lambda text: b'{"a":' * 100_000),
    "large": raw(lambda text: text + b" " * (result.SIZE_LIMIT + 1)),
    "reward NaN": rewards({"reward": float("nan")}),
    "reward infinite": rewards({"reward": float("inf")}),
    "reward 1e999": raw(lambda text: text.replace(b'"reward": 1.0', b'"reward": 1e999')),
    "reward a text": rewards({"reward": "1"}),
    "reward true": rewards({"reward": True}),
    "reward huge": rewards({"reward": 10**400}),
    "reward missing": rewards(None),
    "rewards empty": rewards({}),
    "rewards a list": rewards([1]),
    "no verifier": rewrite(lambda document: {**document, "verifier_result": None}),
    "another trial's": rewrite(lambda document: {**document, "trial_name": "task-1__xxxxxxx"}),
    "another task's": rewrite(lambda document: {**document, "task_name": "task-0"}),
    "another id": rewrite(lambda document: {**document, "id": 1}),
    "no name": rewrite(lambda document: {key: value for key, value in document.items() if key != "trial_name"}),
    "time odd": rewrite(lambda document: {**document, "started_at": "9999-12-31T23:59:59-23:59"}),
    "a link": replaced(lambda path: path.symlink_to("other.json")),
    "a link out": replaced(lambda path: path.symlink_to("/etc/hostname")),
    "a pipe": replaced(os.mkfifo),
    "a socket": replaced(_socket),
    "a folder": replaced(Path.mkdir),
}
#: What may happen on the way.
DAMAGED: dict[str, Callable[[Path], None]] = {
    "manifest cut off": lambda path: manifest_of(path).write_bytes(manifest_of(path).read_bytes()[:-20]),
    "manifest of another": lambda path: manifest_of(path).write_text(
        manifest_of(path).read_text().replace('"trial":"', '"trial":"x')
    ),
    "a file changed": lambda path: (path / "trial.log").write_text("another text"),
    "a file more": lambda path: (path / "more").write_text(""),
    "a file gone": lambda path: (path / "trial.log").unlink(),
}


def test_no_bad_result_counts_as_a_score(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    config = replace(site.config, breaker_runs=0, worker_breaker_runs=0, poll_interval=0.05, refresh_seconds=0.2)
    site = replace(site, config=config)
    register(site, "a", slots=2)
    faults = [*BAD.items(), *DAMAGED.items(), ("none", lambda path: None)]
    evaluation = submit(site, {"name": "bad", "trials": len(faults)}, max_requeues=1, per_worker_concurrency="all")
    of = {trial.name: faults[int(trial.task.removeprefix("task-")) - 1] for trial in evaluation.plan.trials}
    put, pushed = outbox.put, trials.pushed

    def spoil(at: WorkerSite, claim: Claim, run_dir: Path, started_at: datetime, finished_at: datetime) -> Path:
        name, fault = of[claim.trial]
        if name not in DAMAGED:
            fault(run_dir)
        return put(at, claim, run_dir, started_at, finished_at)

    def damage(db: Db, claim: Claim) -> bool:
        name, fault = of[claim.trial]
        if name in DAMAGED:
            fault(site.shared.arrived(evaluation.id, claim.trial, claim.token))
        return pushed(db, claim)

    def damage_all(db: Db, claims: Sequence[Claim]) -> None:
        for claim in claims:
            damage(db, claim)

    monkeypatch.setattr(outbox, "put", spoil)
    monkeypatch.setattr(trials, "pushed", damage)
    monkeypatch.setattr(trials, "pushed_all", damage_all)
    with running(site, tmp_path, "a") as pool:
        status = closed(site, evaluation.id, PATIENCE)
    assert not pool.broken
    rows = {name: trials.row(site.db, evaluation.id, trial) for trial, (name, _) in of.items()}
    scored = {name for name, row in rows.items() if row and row.summary.outcome is Outcome.SCORED}
    events = logged(site, evaluation.id)
    committed = [event["trial"] for event in events if event["kind"] == "committed"]
    row = Row(
        fault=f"{len(BAD) + len(DAMAGED)} kinds of bad results",
        trials=len(faults),
        lost=len(set(of) - set(committed)),
        run_twice=0,
        committed_twice=len(committed) - len(set(committed)),
        seconds=None,
        note="none scored but the one good one",
    )
    request.node.user_properties.append((PROPERTY, asdict(row)))
    assert (row.lost, row.committed_twice) == (0, 0)
    assert scored == {"none"}
    assert status.done == len(faults)
    assert store.get(site.db, evaluation.id).outcomes[Outcome.SCORED] == 1
    for name, found in rows.items():
        assert found is not None
        assert name == "none" or found.summary.error_type, name
        assert found.summary.rewards == ({"reward": 1.0} if name == "none" else {})
    # What was rejected is there to look at.
    kept = list((site.shared.evaluation(evaluation.id) / "superseded").iterdir())
    assert len(kept) >= len(faults) - 20


# Fuzzing the readers: whatever lies there, they read it or raise InputError.

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
PLAN = folder.plan(
    [folder.TaskPlan(name="t", estimated_seconds=1, deadline_seconds=9)], labels={"agent": "a"}, attempts=1
)
TRIAL = PLAN.trials[0]
EVALUATION = Evaluation(id="e", spec=Spec(executor="sleep", name="job"), plan=PLAN, submitted_at=NOW)
PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=10**300, max_value=10**310)
    | st.floats()
    | st.text(st.characters(), max_size=12)
    | st.sampled_from(
        ["reward", "..", "a/b", "\0", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "\ud800"]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


def _good(kind: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as made:
        path = Path(made)
        if kind == "manifest":
            (path / "run").mkdir()
            (path / "run" / "file").write_text("x")
            (path / "run" / "out").symlink_to("/")
            names = {"evaluation": "e", "trial": TRIAL.name, "token": "t", "worker": "w"}
            whole = manifests.make(path / "run", attempt=1, started_at=NOW, finished_at=NOW, **names)
            return json.loads(codec.dumps(whole))
        ending = result.Ending(
            started_at=NOW,
            finished_at=NOW,
            rewards={"reward": 1.0},
            error_type="AgentTimeoutError",
            error_message="late",
            phases={"agent": (NOW, NOW)},
            input_tokens=3,
            cost_usd=0.1,
        )
        result.finish(path, EVALUATION, TRIAL, "/jobs/job/t", ending)
        document = json.loads((path / "result.json").read_text())
        step = {key: document[key] for key in ("agent_result", "exception_info", "verifier_result", "agent_execution")}
        return document if kind == "result" else {**document, "step_results": [step, step]}


GOOD = {kind: _good(kind) for kind in ("result", "harbor", "manifest")}


def places(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The path of each value of a document."""
    yield here
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield from places(inner, (*here, key))


PLACES = {kind: sorted(places(document), key=str) for kind, document in GOOD.items()}


@st.composite
def documents(draw: st.DrawFn, kind: str) -> bytes:
    """A good document with some places changed or gone, and then perhaps some bytes."""
    document = json.loads(json.dumps(GOOD[kind]))
    for place in draw(st.lists(st.sampled_from(PLACES[kind]), max_size=3)):
        document = _changed(document, place, draw(PLAIN | st.just(...)))
    text = bytearray(json.dumps(document, ensure_ascii=draw(st.booleans())).encode("utf-8", "surrogatepass"))
    for at, piece in draw(st.lists(st.tuples(st.integers(0, len(text)), st.binary(max_size=4)), max_size=2)):
        text[at : at + draw(st.integers(0, 3))] = piece
    return bytes(text[: draw(st.integers(0, len(text)))] if draw(st.integers(0, 9)) == 0 else text)


def _changed(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return None if value is ... else value
    holder = document
    try:
        for key in place[:-1]:
            holder = holder[key]
        if value is ...:
            del holder[place[-1]]
        else:
            holder[place[-1]] = value
    except (KeyError, IndexError, TypeError):
        pass  # changed away before
    return document


def check(summary: TrialSummary) -> None:
    """It can be stored, and no score is anything but finite numbers."""
    codec.loads(TrialSummary, codec.dumps(summary))
    assert summary.trial == TRIAL.name
    assert (summary.outcome is Outcome.SCORED) == bool(summary.rewards)
    assert all(abs(value) < float("inf") for value in summary.rewards.values())


@pytest.mark.parametrize("kind", ["result", "harbor"])
@settings(max_examples=400)
@given(data=st.data())
def test_readers_read_or_refuse(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    readers: dict[str, Callable[[PlannedTrial, Path], TrialSummary]] = {
        "result": result.summarise,
        "harbor": harbor_summary.summarise,
    }
    (tmp_path / "result.json").write_bytes(data.draw(documents(kind)))
    try:
        summary = readers[kind](TRIAL, tmp_path)
    except InputError as error:
        str(error).encode()
    else:
        check(summary)


@settings(max_examples=400)
@given(text=documents("manifest") | st.binary(max_size=60))
def test_manifests_are_read_or_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "run").mkdir(exist_ok=True)
    (tmp_path / "run" / "file").write_text("x")
    (tmp_path / "run.json").write_bytes(text)
    try:
        read = manifests.load(tmp_path / "run.json")
        codec.dumps(read)
        manifests.verify(read, tmp_path / "run")
    except InputError as error:
        str(error).encode()
    else:
        assert set(read.files) == {"file"}


def test_the_good_documents_are_good(tmp_path: Path) -> None:
    for kind, reader in (("result", result.summarise), ("harbor", harbor_summary.summarise)):
        (tmp_path / "result.json").write_text(json.dumps(GOOD[kind]))
        assert reader(TRIAL, tmp_path).outcome is Outcome.SCORED
    (tmp_path / "run.json").write_text(json.dumps(GOOD["manifest"]))
    assert manifests.load(tmp_path / "run.json").file_count == 1
