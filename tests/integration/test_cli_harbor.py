"""``aeo run`` with the real Harbor: its flags, its words, its numbers."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cli_fake import FakeController, Reply, aeo, fake, status
from needs import require

from aeo.core.errors import Unavailable
from aeo.executors.harbor.python import harbor_python


@pytest.fixture(scope="module", autouse=True)
def harbor() -> None:
    try:
        harbor_python(create=bool(os.environ.get("CI")))
    except Unavailable as error:
        require(False, str(error))


@pytest.fixture(autouse=True)
def tasks(tmp_path: Path, fake: FakeController) -> None:
    (tmp_path / "tasks" / "one").mkdir(parents=True)
    fake.answer("POST", "/api/evaluations", Reply({"evaluation": status(), "warnings": []}, 201))


def test_flags_mean_what_they_mean_to_harbor(aeo: Any, fake: FakeController, tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("n_attempts: 3\nagents: [{name: oracle, model_name: m/base}]\n")
    result = aeo(
        *("run", "--no-wait", "-c", "base.yaml", "-p", "tasks", "-a", "nop", "-m", "m/x", "-i", "on*"),
        *("--agent-timeout-multiplier", "1.5", "--job-name", "j", "--ae", "FOO=bar", "--ae", "API_KEY=${API_KEY}"),
        *("--max-retries", "2", "-y", "-q"),
    )
    assert result.exit_code == 0, result.output
    body = fake.requests[0].body
    config = body["config"]
    assert config["job_name"] == "j"
    assert config["n_attempts"] == 3
    assert config["agent_timeout_multiplier"] == 1.5
    assert config["timeout_multiplier"] == 1.0
    assert config["retry"]["max_retries"] == 2
    (agent,) = config["agents"]
    assert (agent["name"], agent["model_name"]) == ("nop", "m/x")
    assert agent["env"] == {"FOO": "bar", "API_KEY": "${API_KEY}"}
    (dataset,) = config["datasets"]
    # As given: it starts from the folder sent beside it.
    assert (dataset["path"], dataset["task_names"]) == ("tasks", ["on*"])
    assert body["working_dir"] == str(tmp_path)
    assert body["options"] == {"executor": "harbor"}


def test_no_multiplier_stays_none(aeo: Any, fake: FakeController) -> None:
    assert aeo("run", "--no-wait", "-p", "tasks", "-a", "oracle").exit_code == 0
    assert fake.requests[0].body["config"]["agent_timeout_multiplier"] is None


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--nope",), "No such option: --nope"),
        (("-p", "tasks", "-k", "0"), "greater than or equal to 1"),
        (("-p", "tasks", "--env-file", "missing.env"), "missing.env"),
        (("-c", "missing.yaml"), "missing.yaml"),
    ],
)
def test_harbors_refusals_are_passed_on(aeo: Any, fake: FakeController, flags: tuple[str, ...], said: str) -> None:
    result = aeo("run", *flags)
    assert (result.exit_code, result.stdout) == (2, "")
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert fake.requests == []


def test_a_literal_secret_never_leaves(aeo: Any, fake: FakeController) -> None:
    result = aeo("run", "-p", "tasks", "-a", "oracle", "--ae", "API_KEY=sk-abcdefghijkl")
    assert result.exit_code == 2
    assert "agents[0].env.API_KEY" in result.stderr
    assert "sk-abcdefghijkl" not in result.output
    assert fake.requests == []
