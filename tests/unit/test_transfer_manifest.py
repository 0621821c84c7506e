"""Manifests: what they list, that any change is found, and that a hostile one does no harm."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo import codec
from aeo.core.errors import InputError
from aeo.transfer import manifest, tree

TIME = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
NAMES = st.text(st.characters(exclude_categories=("Cc", "Cs"), exclude_characters="/"), min_size=1, max_size=12).filter(
    lambda name: name not in (".", "..")
)
TREES = st.dictionaries(st.lists(NAMES, min_size=1, max_size=3).map("/".join), st.binary(max_size=40), max_size=6)


def made(run_dir: Path, **changes: Any) -> manifest.Manifest:
    values: dict[str, Any] = {
        "evaluation": "e1",
        "trial": "task__1",
        "token": "t0k",
        "worker": "w1",
        "attempt": 1,
        "started_at": TIME,
        "finished_at": TIME,
    }
    return manifest.make(run_dir, **{**values, **changes})


def written(root: Path, files: dict[str, bytes]) -> dict[str, bytes]:
    """Write what can be written: of two paths where one is the folder of the other, the first wins."""
    done = {}
    for name, content in files.items():
        try:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            with (root / name).open("xb") as file:
                file.write(content)
        except OSError:
            continue
        done[name] = content
    return done


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    root = tmp_path / "task__1.t0k"
    (root / "agent").mkdir(parents=True)
    (root / "result.json").write_text("{}")
    (root / "agent" / "log.txt").write_text("hello")
    return root


def test_it_lists_regular_files_and_notes_the_rest(run_dir: Path) -> None:
    (run_dir / "link").symlink_to("/etc/passwd")
    (run_dir / "folder-link").symlink_to("/etc")
    os.mkfifo(run_dir / "agent" / "pipe")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.path.relpath(run_dir / "socket"))
    (run_dir / "line\nbreak").write_text("x")
    (run_dir / os.fsdecode(b"latin\xe9")).write_text("x")
    (run_dir / "-n 'a' \"b\" ü 😀").write_text("x")
    made_now = made(run_dir, notes=("cut:\tlog",))
    assert sorted(made_now.files) == ["-n 'a' \"b\" ü 😀", "agent/log.txt", "result.json"]
    assert made_now.file_count == 3
    assert made_now.byte_count == 1 + 5 + 2
    notes = "\n".join(made_now.notes)
    assert made_now.notes[0] == "cut: log"
    assert "symbolic links: folder-link, link" in notes
    assert "devices, sockets or pipes: agent/pipe, socket" in notes
    assert "'latin\\udce9', 'line\\nbreak'" in notes


def test_notes_stay_short(run_dir: Path) -> None:
    for number in range(12):
        (run_dir / f"link{number:02}").symlink_to("x")
    assert made(run_dir).notes == ("left out, symbolic links: link00, link01, link02, link03, link04 and 7 more",)


@contextlib.contextmanager
def not_root() -> Iterator[None]:
    """Root may read everything; be somebody else for a moment."""
    if os.getuid() != 0:
        yield
        return
    os.setresuid(65534, 65534, 0)
    try:
        yield
    finally:
        os.setresuid(0, 0, 0)


def test_unreadable_files_are_noted() -> None:
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as later:
        root = Path(scratch)
        root.chmod(0o755)
        (root / "open").write_text("x")
        (root / "secret").write_text("x")
        (root / "secret").chmod(0)
        (root / "closed").mkdir()
        (root / "closed" / "x").write_text("x")
        (root / "closed").chmod(0)
        later.callback((root / "closed").chmod, 0o755)
        with not_root():
            made_now = made(root)
    assert list(made_now.files) == ["open"]
    assert made_now.notes == ("left out, files or folders that may not be read: closed, secret",)


def test_very_long_paths_are_noted(tmp_path: Path) -> None:
    root = tmp_path / "run"
    root.mkdir()
    before = Path.cwd()
    os.chdir(root)
    try:
        for _ in range(30):
            Path("d" * 200).mkdir()
            os.chdir("d" * 200)
    finally:
        os.chdir(before)
    made_now = made(root)
    assert "too long" in made_now.notes[0]
    shutil.rmtree(root)


def test_saved_and_loaded_is_the_same(run_dir: Path, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    made_now = made(run_dir)
    manifest.save(made_now, path)
    assert manifest.load(path) == made_now
    assert [entry.name for entry in tmp_path.iterdir() if entry.name.startswith(".")] == []
    manifest.verify(manifest.load(path), run_dir)


@pytest.mark.parametrize(
    ("harm", "named"),
    [
        (lambda root: (root / "agent/log.txt").unlink(), "'agent/log.txt' is missing"),
        (lambda root: (root / "agent/log.txt").write_text("hell"), "'agent/log.txt' has 4 bytes"),
        (lambda root: (root / "agent/log.txt").write_text("hallo"), "'agent/log.txt' has another content"),
        (lambda root: (root / "agent/more").write_text(""), "'agent/more' is not in the manifest"),
        (lambda root: (root / "link").symlink_to("result.json"), "'link' is not in the manifest"),
        (lambda root: os.mkfifo(root / "pipe"), "'pipe' is not in the manifest"),
        (lambda root: (root / "a\nb").write_text(""), r"'a\nb' is not in the manifest"),
        (lambda root: shutil.rmtree(root), "'task__1.t0k' is missing"),
    ],
)
def test_harm_is_named(run_dir: Path, harm: Any, named: str) -> None:
    made_now = made(run_dir)
    harm(run_dir)
    with pytest.raises(InputError) as caught:
        manifest.verify(made_now, run_dir)
    assert named in str(caught.value)


def test_a_file_replaced_by_a_link_to_its_content_is_found(run_dir: Path, tmp_path: Path) -> None:
    made_now = made(run_dir)
    shutil.move(run_dir / "result.json", tmp_path / "result.json")
    (run_dir / "result.json").symlink_to(tmp_path / "result.json")
    with pytest.raises(InputError, match=r"result\.json"):
        manifest.verify(made_now, run_dir)


def test_a_run_folder_that_is_a_link_is_refused(run_dir: Path, tmp_path: Path) -> None:
    made_now = made(run_dir)
    (tmp_path / "link").symlink_to(run_dir)
    with pytest.raises(InputError, match="missing"):
        manifest.verify(made_now, tmp_path / "link")


def test_empty_folders_do_not_matter(run_dir: Path) -> None:
    made_now = made(run_dir)
    (run_dir / "verifier").mkdir()
    manifest.verify(made_now, run_dir)


@given(TREES.filter(bool), st.data())
def test_any_change_is_detected(files: dict[str, bytes], data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        present = written(root, files)
        made_now = codec.loads(manifest.Manifest, codec.dumps(made(root)))
        assert {name: entry.size for name, entry in made_now.files.items()} == {
            name: len(content) for name, content in present.items()
        }
        manifest.verify(made_now, root)
        name = data.draw(st.sampled_from(sorted(present)))
        content = data.draw(st.none() | st.binary(max_size=40).filter(lambda other: other != present[name]))
        (root / name).unlink()
        if content is not None:
            (root / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            manifest.verify(made_now, root)
        assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["/etc/passwd", "../x", "a/../b", "a//b", "", ".", "a/.", "a\u0000b", "a\nb", "\udc80", "x" * 3000],
)
def test_hostile_paths_are_refused(tmp_path: Path, run_dir: Path, name: str) -> None:
    text = codec.encode(made(run_dir))
    text["files"][name] = {"size": 1, "sha256": "0" * 64}
    path = tmp_path / "m.json"
    path.write_text(json.dumps(text))
    with pytest.raises(InputError, match=r"m\.json"):
        manifest.load(path)


@pytest.mark.parametrize(
    "change",
    [
        {"trial": "../x"},
        {"trial": ""},
        {"token": "a/b"},
        {"evaluation": "a\nb"},
        {"worker": " "},
        {"attempt": 0},
        {"attempt": True},
        {"started_at": "2026-01-01T00:00:00"},
        {"started_at": "yesterday"},
        {"files": []},
        {"files": {"a": {"size": -1, "sha256": "0" * 64}}},
        {"files": {"a": {"size": 1.5, "sha256": "0" * 64}}},
        {"files": {"a": {"size": 1, "sha256": "0"}}},
        {"files": {"a": {"size": 1}}},
        {"notes": 3},
        {"notes": [3]},
        {"more": 1},
    ],
)
def test_malformed_ones_are_refused(tmp_path: Path, run_dir: Path, change: dict[str, Any]) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**codec.encode(made(run_dir)), **change}))
    with pytest.raises(InputError, match=r"m\.json"):
        manifest.load(path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", "[" * 200_000, '{"files": NaN}', "\x00"])
def test_what_is_no_manifest_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"m\.json"):
        manifest.load(path)


def test_a_pipe_or_a_link_as_manifest_is_refused_at_once(tmp_path: Path, run_dir: Path) -> None:
    os.mkfifo(tmp_path / "pipe.json")
    manifest.save(made(run_dir), tmp_path / "real.json")
    (tmp_path / "link.json").symlink_to("real.json")
    for name in ("pipe.json", "link.json", "none.json"):
        with pytest.raises(InputError, match=name):
            manifest.load(tmp_path / name)


def test_notes_are_made_plain(tmp_path: Path, run_dir: Path) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps({**codec.encode(made(run_dir)), "notes": ["a\u001b[31mb", "\ud800"]}))
    assert manifest.load(path).notes == ("a [31mb", " ")


def test_the_walk_is_in_order_and_takes_odd_names_when_asked(tmp_path: Path) -> None:
    for name in ("b", "a/x", "a-b", "B", "odd\nname"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert tree.read(tmp_path).files == ("B", "a-b", "a/x", "b")
    assert tree.read(tmp_path, odd_names=True).files == ("B", "a-b", "a/x", "b", "odd\nname")


def test_many_files_are_handled_in_reasonable_time(tmp_path: Path) -> None:
    root = tmp_path / "run"
    for folder in range(50):
        (root / f"{folder}").mkdir(parents=True)
        for number in range(100):
            (root / f"{folder}/{number}").write_bytes(b"x")
    made_now = made(root)
    big = codec.encode(made_now)
    big["files"] = {f"f/{number}": {"size": 1, "sha256": "0" * 64} for number in range(50_000)}
    (tmp_path / "big.json").write_text(json.dumps(big))
    assert manifest.load(tmp_path / "big.json").file_count == 50_000
    manifest.verify(made_now, root)
    assert made_now.byte_count == 5_000
