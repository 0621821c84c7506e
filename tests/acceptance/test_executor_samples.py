"""The bundled tasks end as they say when the real Harbor runs them, in containers and without."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from harbor_tasks import HOST, harbor, namespaces_work, needed_harbor
from needs import require

from aeo import samples

ENDS = {
    "always-fails": {"reward": 0.0},
    "make-folders": {"reward": 1.0},
    "no-reward": None,
    "several-scores": {"complete": 1, "form": 0.75, "topic": 1},
    "slow-sum": {"reward": 1.0},
    "sort-numbers": {"reward": 1.0},
    "two-steps": {"reward": 1.0},
    "write-greeting": {"reward": 1.0},
}


def engine_runs() -> bool:
    docker = shutil.which("docker")
    return bool(docker) and subprocess.run([docker, "info"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["host", pytest.param("docker", marks=pytest.mark.docker)])
def test_the_samples_end_as_they_say(tmp_path, kind):
    needed_harbor()
    if kind == "docker":
        require(engine_runs(), "no Docker engine runs here")
    else:
        require(namespaces_work(), "this machine allows no namespaces")
    environment = HOST["import_path"] if kind == "host" else "docker"
    source = str(samples.harbor_tasks())
    harbor(
        "run", "-p", source, "-a", "oracle", "-e", environment, "-n", "2", "--job-name", "j", "-q", "-y", cwd=tmp_path
    )
    results = [json.loads(path.read_text()) for path in (tmp_path / "jobs" / "j").glob("*/result.json")]
    ended = {result["task_name"]: (result["verifier_result"] or {}).get("rewards") for result in results}
    assert ended == ENDS
    errors = {
        result["task_name"]: result["exception_info"]["exception_type"]
        for result in results
        if result["exception_info"]
    }
    assert errors == {"no-reward": "RewardFileNotFoundError"}
    steps = next(result["step_results"] for result in results if result["task_name"] == "two-steps")
    assert [step["step_name"] for step in steps] == ["draft", "revise"]
