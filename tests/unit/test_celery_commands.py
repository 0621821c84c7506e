"""Flags and secrets of the long-running commands."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest
from click.testing import CliRunner

from aeo.cli import main
from aeo.cli import processes as commands
from aeo.config import Config
from aeo.core.errors import InputError
from aeo.embedded.children import variables


def test_every_setting_has_a_flag_somewhere() -> None:
    offered = {*commands._CONTROLLER, *commands._WORKER}
    assert offered == {item.name for item in fields(Config)}


@pytest.mark.parametrize("command", ["controller", "worker", "up", "demo"])
def test_help_names_the_variables(command: str) -> None:
    result = CliRunner().invoke(main, [command, "--help"], terminal_width=200)
    assert result.exit_code == 0
    if command != "demo":
        assert "AEO_AUTH_TOKEN" in result.output
        assert "--poll-interval" in result.output or command == "controller"


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["worker", "--slots", "none"], "--slots"),
        (["worker", "--slots", "0"], "--slots"),
        (["worker", "--auth-token", "@/nowhere/token"], "--auth-token"),
        (["worker", "--worker-id", "../up", "--local-root", "{tmp}"], "--worker-id"),
        (["controller", "--port", "70000"], "--port"),
        (["up", "--worker", "a"], "--worker"),
        (["up", "--worker", "a=0"], "--worker"),
    ],
)
def test_bad_input_is_named(arguments: list[str], place: str, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, [text.format(tmp=tmp_path) for text in arguments])
    assert result.exit_code == 2
    assert place in result.output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("by", ["flag", "variable"])
def test_a_secret_from_a_file(by: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n")
    flags = {"auth_token": f"@{file}" if by == "flag" else None}
    environment = {} if by == "flag" else {"AEO_AUTH_TOKEN": f"@{file}"}
    assert commands.read(flags, environment).auth_token == "from-file"


def test_a_flag_wins_over_a_secret_file_of_the_environment() -> None:
    assert commands.read({"auth_token": "mine"}, {"AEO_AUTH_TOKEN": "@/nowhere"}).auth_token == "mine"


def test_an_empty_secret_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.touch()
    with pytest.raises(InputError, match="--auth-token"):
        commands.read({"auth_token": f"@{file}"}, {})


def test_arguments_lose_their_secrets() -> None:
    given = ["python", "aeo", "worker", "--auth-token", "t1", "--slots", "2", "--broker-url=redis://:t2@h/0"]
    kept, found = commands._split(given)
    assert kept == ["python", "aeo", "worker", "--slots", "2"]
    assert found == {"auth_token": "t1", "broker_url": "redis://:t2@h/0"}


def test_a_child_reads_the_configuration_of_its_parent(tmp_path: Path) -> None:
    config = Config(shared_root=tmp_path, auth_token="t", slots=3, jobs_dir=None, lease_seconds=1.5)
    assert commands.read({}, variables(config)) == config
