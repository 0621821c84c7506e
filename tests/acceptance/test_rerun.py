"""A rerun of real Harbor trials: its merged job is what Harbor itself makes of the same job run once, and resumes."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harbor_tasks as tasks
import pytest
import yaml
from harbor_tasks import HOST
from merged_jobs import check_equal, check_resume
from needs import require
from platforms import Platform

ERROR = "RewardFileNotFoundError"


@pytest.fixture
def platform(tmp_path: Path) -> Iterator[Platform]:
    tasks.needed_harbor()
    require(tasks.namespaces_work(), "user namespaces")
    made = Platform(tmp_path)
    try:
        made.ready()
        for id in ("one", "two"):
            made.worker(id, "--slots", "2")
        for id in ("one", "two"):
            made.api.await_worker(id, timeout=60)
        yield made
        made.stop()
    finally:
        made.destroy()


def look(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {str(path): (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}


def submitted(platform: Platform, *arguments: str) -> dict[str, Any]:
    program = platform.aeo(*arguments)
    assert program.ends(240) == 0, program.output
    found: dict[str, Any] = json.loads(program.output[program.output.index("\n{") + 1 :])
    return found


@pytest.mark.timeout(600)
def test_a_rerun_merges_like_one_job(platform: Platform, tmp_path: Path) -> None:
    tasks.passing(tmp_path / "binary" / "passing")
    # Only once this file is there does its verifier leave a reward.
    mended = tmp_path / "mended"
    verdict = f"test -e {mended} && echo 1 > /logs/verifier/reward.txt || true"
    tasks.task(tmp_path / "binary" / "flaky", test=verdict)
    tasks.two_steps(tmp_path / "various" / "two-steps")
    config = {
        "n_attempts": 2,
        "agents": [{"name": "oracle"}, {"name": "nop"}],
        "environment": dict(HOST),
        "datasets": [{"path": str(tmp_path / name)} for name in ("binary", "various")],
        "quiet": True,
    }
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(config))
    submitted(platform, "submit", str(path), "--name", "first", "--wait", "--per-worker-concurrency", "all", "--json")
    before = look(platform.job("first"))

    mended.touch()
    done = submitted(platform, "rerun", "first", "--error", ERROR, "--wait", "--json")
    assert (done["status"]["name"], done["status"]["state"]) == ("first-2", "succeeded")
    assert done["parent"]["name"] == "first"
    assert look(platform.job("first")) == before
    ran = Counter(event["kind"] for event in platform.events(done["status"]["id"]) if "trial" in event)
    ended = [text.read_text() for text in platform.job("first").glob("*/result.json")]
    again = sum(f'"exception_type": "{ERROR}"' in text for text in ended)
    assert 4 <= again < len(ended)
    assert (ran["carried"], ran["claimed"], ran["committed"]) == (len(ended) - again, again, again)

    single = tmp_path / "single"
    single.mkdir()
    tasks.harbor("run", "-c", str(path), "-o", str(single), "--job-name", "first-2", "-y", cwd=tmp_path)
    ours = platform.job("first-2")
    check_names(ours, platform.job("first"))
    check_equal(ours, single / "first-2", tmp_path)
    check_resume(ours, "passing", tmp_path)
    status = platform.aeo("status", "first")
    assert status.ends() == 0
    assert "first-2" in status.output


def check_names(ours: Path, old: Path) -> None:
    """Nothing that a program reads names the job that the results are from."""
    job_id = json.loads((old / "result.json").read_text())["id"]
    for path in ours.rglob("*.json"):
        text = path.read_text(errors="replace")
        assert job_id not in text, path
        assert f"{old}/" not in text, path
        assert f'"{old}"' not in text, path
