"""Datasets: the configured ones, reading them, sorting their tasks, and downloads that live on their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from downloading import Scripted
from waiting import eventually

from aeo.core.errors import Conflict, InputError, NotFound
from aeo.core.model import Needs
from aeo.datasets import DownloadState, TaskRow, configured, downloads, reading, select
from aeo.executors import Source, TaskInfo, command, harbor
from aeo.layout import Shared
from aeo.store import held
from aeo.store.connection import Db
from aeo.summaries import Past

REMOTE = Source(reference="org/set@1")


@pytest.fixture
def shared(tmp_path: Path) -> Iterator[Shared]:
    made = Shared(tmp_path / "root", tmp_path / "root" / "jobs")
    made.root.mkdir()
    yield made
    for started in made.root.glob("datasets/.state/*/started.json"):
        if downloads.is_running(made, started.parent.name):
            with suppress(ProcessLookupError):
                os.killpg(json.loads(started.read_text())["pid"], signal.SIGKILL)


def commands(folder: Path, *names: str) -> Path:
    """A folder of tasks for the command executor."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [{"name": name, "command": "true", "labels": {"category": "text"}, "cpus": 2} for name in names]
    (folder / "tasks.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def state_of(shared: Shared, name: str = "set") -> DownloadState | None:
    found = downloads.status(shared, name)
    return found.state if found else None


# Configured


def test_two_datasets_are_configured_out_of_the_box(shared: Shared) -> None:
    found = configured.read(shared)
    assert {name: item.reference for name, item in found.items()} == {
        "swe-bench-verified": "swe-bench/swe-bench-verified",
        "terminal-bench-2": "terminal-bench/terminal-bench-2",
    }
    assert all(item.executor == "harbor" and item.added_at is None for item in found.values())


def test_what_is_added_and_removed_stays_so(shared: Shared, tmp_path: Path) -> None:
    folder = commands(tmp_path / "mine", "one", "two")
    made = configured.add(shared, "mine", executor="command", path=str(folder), by="li")
    assert (made.path, made.added_by) == (str(folder), "li")
    assert configured.get(shared, "mine") == made
    with pytest.raises(Conflict):
        configured.add(shared, "mine", executor="command", path=str(folder))
    configured.remove(shared, "mine")
    configured.remove(shared, "terminal-bench-2")
    assert list(configured.read(shared)) == ["swe-bench-verified"]
    assert (folder / "tasks.jsonl").is_file()
    with pytest.raises(NotFound, match="swe-bench-verified"):
        configured.remove(shared, "mine")
    again = configured.add(shared, "terminal-bench-2", reference="terminal-bench/terminal-bench-2@2")
    assert configured.get(shared, "terminal-bench-2") == again
    configured.remove(shared, "terminal-bench-2")
    assert "terminal-bench-2" not in configured.read(shared)


def test_many_add_at_once_and_none_is_lost(shared: Shared, tmp_path: Path) -> None:
    folder = str(commands(tmp_path / "mine", "one"))
    threads = [
        threading.Thread(
            target=configured.add, args=(shared, f"set-{n}"), kwargs={"executor": "command", "path": folder}
        )
        for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([name for name in configured.read(shared) if name.startswith("set-")]) == 8


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"name": "../x", "path": "/tmp"}, "name"),
        ({"name": "a__b", "path": "/tmp"}, "name"),
        ({"name": "x"}, "path"),
        ({"name": "x", "path": "/tmp", "reference": "a/b"}, "path"),
        ({"name": "x", "path": "/tmp", "registry": "a/b"}, "registry"),
        ({"name": "x", "path": "relative"}, "path"),
        ({"name": "x", "path": "/nonexistent"}, "path"),
        ({"name": "x", "path": "/etc/passwd"}, "path"),
        ({"name": "x", "path": "/proc/self/fd", "executor": "command"}, "path"),
        ({"name": "x", "path": "/tmp\0", "executor": "command"}, "path"),
        ({"name": "x", "path": "/tmp", "executor": "sleep"}, "executor"),
        ({"name": "x", "path": "/tmp", "executor": "nothing"}, "executor"),
        ({"name": "x", "reference": "a/b", "executor": "command"}, "reference"),
        ({"name": "x", "reference": "no name"}, "reference"),
        ({"name": "x", "reference": "../../etc@1"}, "reference"),
        ({"name": "x", "reference": "-option"}, "reference"),
        ({"name": "x", "reference": "a/b", "registry": "/srv/registry.json"}, "registry"),
        ({"name": "x", "reference": "a@1", "registry": "/nonexistent/registry.json"}, "registry"),
        ({"name": "x", "reference": "a@1", "registry": "registry.json"}, "registry"),
        ({"name": "x", "reference": "a@1", "registry": "ext::sh -c true"}, "registry"),
        ({"name": "x", "reference": "a@1", "registry": "--upload-pack=true"}, "registry"),
        ({"name": "x", "reference": "a@1", "registry": "https://me:secret@host/a/b"}, "registry"),
    ],
)
def test_what_cannot_be_used_is_refused_with_its_place(shared: Shared, asked: dict[str, str], field: str) -> None:
    with pytest.raises(InputError) as refused:
        configured.add(shared, **asked)  # type: ignore[arg-type]
    assert refused.value.problems[0].field == field
    assert not shared.datasets_file.exists()


def test_a_folder_of_broken_tasks_only_is_refused(shared: Shared, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "tasks.jsonl").write_text('{"name": "one"}\n')
    with pytest.raises(InputError, match="command"):
        configured.add(shared, "mine", executor="command", path=str(tmp_path / "mine"))


def test_a_folder_with_too_many_files_is_refused(
    shared: Shared, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = commands(tmp_path / "mine", "one")
    (folder / "more").touch()
    monkeypatch.setattr(reading, "FILE_LIMIT", 1)
    with pytest.raises(InputError, match="more than 1 files"):
        configured.add(shared, "mine", executor="command", path=str(folder))


def test_a_damaged_file_says_which(shared: Shared) -> None:
    shared.datasets_file.write_text("{")
    with pytest.raises(InputError, match=r"datasets\.json"):
        configured.read(shared)


@pytest.mark.parametrize(
    ("source", "config"),
    [
        (Source(reference="org/set@sha256:ab"), {"datasets": [{"name": "org/set", "ref": "sha256:ab"}]}),
        (Source(reference="org/set"), {"datasets": [{"name": "org/set"}]}),
        (
            Source(reference="set@1", registry="/r.json"),
            {"datasets": [{"name": "set", "version": "1", "registry_path": "/r.json"}]},
        ),
        (
            Source(reference="set@1", registry="https://h/r.json"),
            {"datasets": [{"name": "set", "version": "1", "registry_url": "https://h/r.json"}]},
        ),
        (
            Source(reference="set@1", registry="https://h/org/repo@main"),
            {"datasets": [{"name": "set", "version": "1", "repo": "https://h/org/repo@main"}]},
        ),
        (Source(path=Path("/srv/set"), reference="org/set"), {"datasets": [{"path": "/srv/set"}]}),
    ],
)
def test_a_configuration_names_the_dataset_from_where_it_is(source: Source, config: dict[str, object]) -> None:
    assert harbor.executor.datasets.config(source) == config


def test_metrics_that_came_with_a_dataset_go_with_it(tmp_path: Path) -> None:
    metrics = [{"type": "max", "kwargs": {}}]
    (tmp_path / "dataset.json").write_text(json.dumps({"metrics": metrics}))
    assert harbor.executor.datasets.config(Source(path=tmp_path)) == {
        "datasets": [{"path": str(tmp_path)}],
        "metrics": metrics,
    }


# Reading


def test_tasks_are_read_once_until_a_file_changes(shared: Shared, tmp_path: Path) -> None:
    folder, knows = commands(tmp_path / "mine", "one"), command.executor.datasets  # type: ignore[attr-defined]
    first = reading.tasks(shared, "mine", knows, folder)
    task = first.tasks[0]
    assert (task.name, task.labels, task.needs.cpus) == ("one", {"category": "text"}, 2.0)
    assert reading.tasks(shared, "mine", knows, folder) is reading.tasks(shared, "mine", knows, folder)
    commands(folder, "one", "two")
    assert len(reading.tasks(shared, "mine", knows, folder).tasks) == 1  # it was looked at just now
    reading.forget(folder)
    second = reading.tasks(shared, "mine", knows, folder)
    assert len(second.tasks) == 2
    assert second.digest != first.digest
    (shared.dataset_state("mine") / "tasks.json").write_text("damaged")
    assert reading.tasks(shared, "mine", knows, folder).tasks == second.tasks


def test_while_one_reads_anew_others_get_what_was_read(shared: Shared, tmp_path: Path) -> None:
    folder, knows, reads, goes_on = tmp_path / "mine", Scripted(), threading.Event(), threading.Event()
    (folder / "one").mkdir(parents=True)
    assert len(reading.tasks(shared, "mine", knows, folder).tasks) == 1

    class Slow(Scripted):
        def tasks(self, path: Path) -> tuple[TaskInfo, ...]:
            reads.set()
            assert goes_on.wait(10)
            return super().tasks(path)

    (folder / "two").mkdir()
    (folder / "two" / "file").touch()
    reading.forget(folder)
    found: list[int] = []
    reader = threading.Thread(target=lambda: found.append(len(reading.tasks(shared, "mine", Slow(), folder).tasks)))
    reader.start()
    assert reads.wait(10)
    assert len(reading.tasks(shared, "mine", knows, folder).tasks) == 1
    goes_on.set()
    reader.join(10)
    assert found == [2]


def test_the_digest_is_of_the_sound_tasks_in_any_order() -> None:
    def of(*digests: str) -> str:
        tasks = tuple(TaskInfo(name=f"t{n}", digest=digest) for n, digest in enumerate(digests))
        return reading.TaskList(path="", state="", read_at=downloads.datetime.now(), tasks=tasks).digest

    assert of("a", "b") == of("b", "a", "") != of("a")
    assert of() == of("") == ""


# Rows


def row(name: str, difficulty: str = "", rate: float | None = None, **fields: object) -> TaskRow:
    past = None if rate is None else Past(runs=3, scored=3, pass_rate=rate, median_seconds=10 * rate)
    labels = {"difficulty": difficulty, "category": "text"} if difficulty else {}
    return TaskRow(info=TaskInfo(name=name, labels=labels, **fields), past=past)  # type: ignore[arg-type]


ROWS = [row("b", "hard", 0.5), row("a", "easy", 1.0), row("d"), row("c", "medium", 0.0, needs=Needs(cpus=2))]


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ({}, "abcd"),
        ({"descending": True}, "dcba"),
        ({"sort": "difficulty"}, "acbd"),
        ({"sort": "difficulty", "descending": True}, "bcad"),
        ({"sort": "pass_rate"}, "cbad"),
        ({"sort": "pass_rate", "descending": True}, "abcd"),
        ({"sort": "median"}, "cbad"),
        ({"sort": "cpus"}, "cabd"),
        ({"search": "HARD text"}, "b"),
        ({"search": "nothing"}, ""),
        ({"difficulty": "easy"}, "a"),
        ({"category": "text", "sort": "runs"}, "abc"),
    ],
)
def test_tasks_are_searched_and_sorted_what_is_unknown_last(asked: dict[str, object], names: str) -> None:
    found = "".join(item.info.name for item in select(ROWS, **asked))  # type: ignore[arg-type]
    assert found == names


def test_sorting_by_anything_else_is_refused() -> None:
    with pytest.raises(InputError, match="pass_rate"):
        select(ROWS, sort="colour")


# Downloads


def test_a_download_is_followed_to_its_end(shared: Shared, tmp_path: Path) -> None:
    knows, ended = Scripted(gate=tmp_path / "gate"), threading.Event()
    assert downloads.status(shared, "set") is None
    assert downloads.start(shared, "set", knows, REMOTE, by="li", then=ended.set).state is DownloadState.RUNNING
    running = eventually(lambda: (found := downloads.status(shared, "set")) and found.done == 1 and found)
    assert (running.state, running.total, running.by) == (DownloadState.RUNNING, 2, "li")
    with pytest.raises(Conflict):
        downloads.start(shared, "set", knows, REMOTE, by="li")
    (tmp_path / "gate").touch()
    assert eventually(lambda: state_of(shared) is DownloadState.DONE)
    assert sorted(item.name for item in shared.dataset("set").iterdir()) == ["one", "two"]
    assert ended.wait(10)


def test_a_path_has_nothing_to_download(shared: Shared) -> None:
    with pytest.raises(InputError, match="nothing to download"):
        downloads.start(shared, "set", Scripted(), Source(path=Path("/tmp")), by="")


def test_a_download_outlives_the_process_that_started_it(shared: Shared, tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from downloading import Scripted\n"
        "from aeo.datasets import downloads; from aeo.executors import Source; from aeo.layout import Shared\n"
        f"root = Path({str(shared.root)!r}); knows = Scripted(gate=Path({str(tmp_path / 'gate')!r}))\n"
        "downloads.start(Shared(root, root), 'set', knows, Source(reference='org/set'), by='')\n"
        "os.kill(os.getpid(), 9)"
    )
    tests = str(Path(__file__).parents[1])
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": tests}, timeout=30)
    assert ended.returncode == -signal.SIGKILL
    assert state_of(shared) is DownloadState.RUNNING
    (tmp_path / "gate").touch()
    assert eventually(lambda: state_of(shared) is DownloadState.DONE)


def test_what_was_killed_is_interrupted_and_goes_on_with_what_is_there(shared: Shared, tmp_path: Path) -> None:
    knows = Scripted(gate=tmp_path / "gate")
    downloads.start(shared, "set", knows, REMOTE, by="")
    eventually(lambda: (found := downloads.status(shared, "set")) and found.done == 1)
    pid = json.loads((shared.dataset_state("set") / "started.json").read_text())["pid"]
    os.killpg(pid, signal.SIGKILL)
    assert eventually(lambda: state_of(shared) is DownloadState.INTERRUPTED)
    (tmp_path / "gate").touch()
    downloads.start(shared, "set", knows, REMOTE, by="")
    assert knows.asked == [[], ["one"]]
    assert eventually(lambda: state_of(shared) is DownloadState.DONE)
    downloads.start(shared, "set", knows, REMOTE, by="")
    assert knows.asked[-1] == []
    assert eventually(lambda: state_of(shared) is DownloadState.DONE)


def test_a_download_is_stopped_with_all_it_started(shared: Shared, tmp_path: Path) -> None:
    script = f"sleep 300 & echo $! > {tmp_path}/child; trap '' TERM; echo '{{\"total\": 1}}'; sleep 300"
    downloads.start(shared, "set", Scripted(script), REMOTE, by="")
    child = int(eventually(lambda: (tmp_path / "child").is_file() and (tmp_path / "child").read_text()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(downloads, "STOP_SECONDS", 0.2)
        assert downloads.cancel(shared, "set").state is DownloadState.CANCELLED
    assert eventually(lambda: not Path(f"/proc/{child}").exists() or "Z" in Path(f"/proc/{child}/stat").read_text())
    with pytest.raises(Conflict):
        downloads.cancel(shared, "set")
    with pytest.raises(NotFound):
        downloads.cancel(shared, "other")


def test_a_failure_says_why_and_odd_lines_do_no_harm(shared: Shared) -> None:
    script = """echo garbage; echo '[]'; echo '{"total": "x", "done": null}'
    echo '{"note": "looking"}'; echo '{"failed": {"message": "no way", "fix": "another way"}}'"""
    downloads.start(shared, "set", Scripted(script), REMOTE, by="")
    assert eventually(lambda: state_of(shared) is DownloadState.FAILED)
    found = downloads.status(shared, "set")
    assert found
    assert (found.total, found.note, found.message, found.fix) == (None, "looking", "no way", "another way")


def test_a_dataset_being_downloaded_is_not_removed(shared: Shared, tmp_path: Path) -> None:
    name = "terminal-bench-2"
    downloads.start(shared, name, Scripted(gate=tmp_path / "gate"), REMOTE, by="")
    with pytest.raises(Conflict, match="Stop"):
        configured.remove(shared, name)
    (tmp_path / "gate").touch()
    assert eventually(lambda: state_of(shared, name) is DownloadState.DONE)
    assert eventually(lambda: not downloads.is_running(shared, name))
    assert configured.source(shared, configured.get(shared, name)).path == shared.dataset(name)
    configured.remove(shared, name, files=True)
    assert not shared.dataset(name).exists()
    assert downloads.status(shared, name) is None


# Presence


def test_the_store_knows_which_folders_a_worker_holds(db: Db) -> None:
    digests = [f"{n:064x}"[::-1] for n in range(3)]
    assert held.which(db, ["w1"], []) == {"w1": frozenset()}
    assert held.add(db, "w1", digests[0]) == (False, True)
    assert held.add(db, "w1", digests[1]) == (False, False)
    assert held.add(db, "w1", digests[1]) == (True, False)
    assert held.which(db, ["w1", "w2"], digests) == {"w1": frozenset(digests[:2]), "w2": frozenset()}
    held.replace(db, "w1", digests[2:])
    assert held.which(db, ["w1"], digests) == {"w1": frozenset(digests[2:])}
    held.replace(db, "w1", [])
    assert held.which(db, ["w1"], digests) == {"w1": frozenset()}
