"""What does not travel stays on the worker, and is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from aeo.transfer import kept, manifest, tree


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    root = tmp_path / "run"
    (root / "agent").mkdir(parents=True)
    (root / "result.json").write_text("{}")
    return root


def sized(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def test_what_is_small_travels(tmp_path: Path, run_dir: Path) -> None:
    sized(run_dir / "agent" / "log", 100)
    assert kept.set_aside(run_dir, tmp_path / "kept", file_bytes=100) == ()
    assert not (tmp_path / "kept").exists()


def test_a_large_file_stays_with_its_place_and_its_size_of_reading(tmp_path: Path, run_dir: Path) -> None:
    sized(run_dir / "agent" / "log", 3 * 2**40)
    (note,) = kept.set_aside(run_dir, tmp_path / "kept", file_bytes=2**20)
    assert note == f"kept in {tmp_path / 'kept'} on the worker, larger than 1 MiB: agent/log (3,145,728 MiB)"
    assert (tmp_path / "kept" / "agent" / "log").stat().st_size == 3 * 2**40
    assert tree.read(run_dir).files == ("result.json",)


def test_many_files_of_the_limit_are_too_much_together(tmp_path: Path, run_dir: Path) -> None:
    for number in range(10):
        sized(run_dir / "agent" / f"log-{number}", 1000 - number)
    (note,) = kept.set_aside(run_dir, tmp_path / "kept", file_bytes=1000)
    # The largest first, until eight of them are left.
    assert "the run is larger than 8,000 bytes" in note
    assert sorted(path.name for path in (tmp_path / "kept" / "agent").iterdir()) == ["log-0", "log-1"]


def test_more_files_than_a_manifest_can_list(tmp_path: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (run_dir / "agent" / "deep").mkdir()
    for number in range(20):
        sized(run_dir / "agent" / "deep" / str(number), 1)
    sized(run_dir / "agent" / "log", 1)
    monkeypatch.setattr(manifest, "LARGEST", 12 * manifest.weight("agent/deep/1"))
    (note,) = kept.set_aside(run_dir, tmp_path / "kept", file_bytes=1000)
    assert "too many files" in note
    assert "more" in note
    travels = tree.read(run_dir).files
    assert {"result.json", "agent/log"} < set(travels)
    assert len(travels) == 6


def test_links_are_not_followed_and_not_moved(tmp_path: Path, run_dir: Path) -> None:
    sized(tmp_path / "other", 2**30)
    (run_dir / "agent" / "log").symlink_to(tmp_path / "other")
    assert kept.set_aside(run_dir, tmp_path / "kept", file_bytes=100) == ()
    assert (tmp_path / "other").exists()
