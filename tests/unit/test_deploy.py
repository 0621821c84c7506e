"""What is shipped to run as a service: settings, units, compose file."""

from __future__ import annotations

import configparser
import re
import shutil
import stat
import subprocess
from collections import Counter
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from aeo.cli import COMMANDS, main
from aeo.cli.install_service import ROLES, Place, fitted
from aeo.config import Config, from_environment
from aeo.core.errors import InputError
from aeo.executors import sleep
from aeo.executors.command import tasks

ROOT = Path(__file__).parents[2]
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))
EXAMPLE = (ROOT / "deploy" / "env.example").read_text()
COMPOSE_TEXT = (ROOT / "docker-compose.yml").read_text()
COMPOSE = yaml.safe_load(COMPOSE_TEXT)
SERVICES: dict[str, Any] = COMPOSE["services"]
DATA = "${AEO_DATA:-/srv/aeo}"


def listed() -> list[tuple[str, str]]:
    return re.findall(r"^#?([A-Z][A-Z_]+)=(.*)$", EXAMPLE, re.MULTILINE)


@pytest.mark.parametrize(
    ("executor", "keys"),
    [("command", {*tasks._KEYS, *tasks._TASK_KEYS, *tasks._EXPECT_KEYS}), ("sleep", {*sleep._KEYS})],
)
def test_every_key_of_an_executor_is_explained(executor: str, keys: set[str]) -> None:
    _, _, table = (ROOT / "deploy" / "README.md").read_text().partition(f"| keys of `{executor}` |")
    words = set(re.findall(r"[a-z_]+", " ".join(re.findall(r"`[^`]+`", table.partition("\n\n")[0]))))
    assert keys - words == set()


def test_every_setting_stands_once_in_the_example() -> None:
    counted = Counter(name for name, _ in listed())
    assert [name for name, times in counted.items() if times > 1] == []
    assert {f"AEO_{item.name.upper()}" for item in fields(Config)} - counted.keys() == set()


@pytest.mark.parametrize("item", fields(Config), ids=lambda item: item.name)
def test_the_example_says_the_true_default(item: Any) -> None:
    name = f"AEO_{item.name.upper()}"
    said = dict(listed())[name]
    if item.name in ("worker_id",):
        assert said == ""  # the machine's
    else:
        assert getattr(from_environment({name: said}), item.name) == item.default


def test_nothing_in_the_example_is_set() -> None:
    assert [line for line in EXAMPLE.splitlines() if line and not line.startswith("#")] == []


def test_variables_of_the_compose_file_stand_in_the_example_with_their_defaults() -> None:
    used = dict(re.findall(r"\$\{([A-Z_]+):-([^}]*)\}", COMPOSE_TEXT))
    assert len(used) > 8
    said = dict(listed())
    # A worker's own defaults: these two share one machine.
    differ = {"AEO_SLOTS", "AEO_OVERCOMMIT"}
    assert {name: said.get(name) for name in used if name not in differ} == {
        name: value for name, value in used.items() if name not in differ
    }
    assert differ <= said.keys()


def unit(path: Path) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def test_there_is_a_unit_for_each_role() -> None:
    wanted = {f"aeo-{role}{'@' if instance else ''}.service" for role, instance in ROLES.items()}
    assert {path.name for path in UNITS} == wanted


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_starts_stops_and_is_hardened(path: Path) -> None:
    service = unit(path)["Service"]
    program, command, *arguments = service["ExecStart"].split()
    assert program == "aeo"
    assert command in COMMANDS
    shown = CliRunner().invoke(main, [command, "--help"]).output
    assert all(argument in shown for argument in arguments if argument.startswith("--"))
    # Else SIGTERM would reach the trials' processes at once, beside the worker that lets them finish.
    assert (service["KillMode"], service["KillSignal"]) == ("mixed", "SIGTERM")
    assert (service["User"], service["Restart"], service["UMask"]) == ("aeo", "always", "0077")
    assert "EnvironmentFile=-/etc/aeo/env" in path.read_text()
    assert (service["NoNewPrivileges"], service["ProtectSystem"]) == ("yes", "full")
    assert unit(path)["Unit"]["StartLimitIntervalSec"] == "0"


def test_a_worker_may_finish_and_keeps_the_paths_that_containers_mount() -> None:
    service = unit(ROOT / "deploy" / "systemd" / "aeo-worker@.service")["Service"]
    assert service["TimeoutStopSec"] == "2h"
    assert not {"PrivateTmp", "RestrictNamespaces", "ProtectKernelTunables", "ProtectHome"} & set(service)


def place(folder: Path, user: str) -> Place:
    return Place(units=folder, settings=folder / "env", program=Path("/opt/aeo/bin/aeo"), user=user)


@pytest.mark.parametrize("user", ["root", ""])
def test_systemd_accepts_the_units(tmp_path: Path, user: str) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    for path in UNITS:
        # Its check needs a program that is there.
        text = fitted(path.read_text(), place(tmp_path, user)).replace("/opt/aeo/bin/aeo ", "/bin/true ")
        (tmp_path / path.name).write_text(text)
    said = subprocess.run(
        ["systemd-analyze", *(["--user"] if not user else []), "verify", *(tmp_path / path.name for path in UNITS)],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(tmp_path)},
    )
    assert (said.returncode, [line for line in said.stderr.splitlines() if "aeo-" in line]) == (0, [])


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_a_unit_of_ones_own(tmp_path: Path, path: Path) -> None:
    text = fitted(path.read_text(), place(tmp_path, ""))
    assert not re.search(r"^(User|Protect\w+|CapabilityBoundingSet|SupplementaryGroups)=", text, re.MULTILINE)
    assert "network-online" not in text
    assert "EnvironmentFile=-%h/.config/aeo/env" in text
    assert "WantedBy=default.target" in text
    assert "ExecStart=/opt/aeo/bin/aeo " in text
    assert "Environment=PATH=/opt/aeo/bin:" in text


def test_a_path_that_a_unit_cannot_name_is_refused(tmp_path: Path) -> None:
    odd = Place(units=tmp_path, settings=tmp_path, program=Path("/opt/a b/aeo"), user="")
    with pytest.raises(InputError, match="cannot name"):
        fitted("ExecStart=aeo worker\n", odd)


def test_installing_writes_unit_and_settings_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nonexistent")  # no systemctl of this machine
    settings = tmp_path / ".config" / "aeo" / "env"
    written = tmp_path / ".config" / "systemd" / "user" / "aeo-worker@.service"
    dry = CliRunner().invoke(main, ["install-service", "worker", "--user", "--dry-run"])
    assert dry.exit_code == 0
    assert not written.exists()
    done = CliRunner().invoke(main, ["install-service", "worker", "--user"])
    assert done.exit_code == 0, done.output
    assert "systemctl --user enable --now aeo-worker@ID" in done.output
    assert dry.output.partition("\n")[2] == written.read_text()
    assert (settings.read_text(), stat.S_IMODE(settings.stat().st_mode)) == (EXAMPLE, 0o600)
    settings.write_text("AEO_SLOTS=3\n")
    assert CliRunner().invoke(main, ["install-service", "worker", "--user"]).exit_code == 0
    assert settings.read_text() == "AEO_SLOTS=3\n"


@pytest.mark.parametrize(
    ("arguments", "words"), [(["--run-as", "nobody-has-this-name"], "useradd"), (["--run-as", "a b"], "no user's name")]
)
def test_a_system_service_needs_a_user(arguments: list[str], words: str) -> None:
    answer = CliRunner().invoke(main, ["install-service", "controller", *arguments])
    assert answer.exit_code == 2
    assert words in answer.output


def test_the_parts_need_a_broker_of_their_own(tmp_path: Path) -> None:
    for part in ("web", "control"):
        answer = CliRunner().invoke(main, [part, "--shared-root", str(tmp_path / part)], env={"AEO_BROKER_URL": ""})
        assert answer.exit_code == 2
        assert "aeo controller" in answer.output
        assert not (tmp_path / part).exists()


def mounts(service: str) -> dict[str, str]:
    """Path inside to path outside."""
    pairs = {}
    for text in SERVICES[service].get("volumes", []):
        parts = re.fullmatch(r"((?:\$\{[^}]*\}|[^:])+):((?:\$\{[^}]*\}|[^:])+)(:ro)?", text)
        assert parts is not None
        pairs[parts[2]] = parts[1]
    return pairs


def test_only_workers_have_the_engine() -> None:
    holders = {name for name in SERVICES if any("docker.sock" in inside for inside in mounts(name))}
    assert holders == {"worker-1", "worker-2"}


def test_folders_have_the_same_path_inside_and_outside() -> None:
    for name in ("worker-1", "worker-2"):
        root = SERVICES[name]["environment"]["AEO_LOCAL_ROOT"]
        assert root == f"{DATA}/work/{name}"
        assert mounts(name)[f"{DATA}/work"] == f"{DATA}/work"
    for name in SERVICES:
        assert all(inside == outside for inside, outside in mounts(name).items() if inside.startswith(DATA))


def test_what_listens_listens_on_loopback() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}
    assert published.keys() == {"web", "flower"}
    assert all(port.startswith("127.0.0.1:") for ports in published.values() for port in ports)


def test_nobody_is_root_for_longer_than_needed() -> None:
    roots = {name for name, service in SERVICES.items() if service["user"] == "0:0"}
    assert roots == {"prepare", "worker-1", "worker-2"}
    assert SERVICES["prepare"]["restart"] == "no"
    assert all(SERVICES[name]["entrypoint"] == ["with-docker"] for name in ("worker-1", "worker-2"))
    for service in SERVICES.values():
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]


def test_no_secret_stands_in_the_file_or_in_a_log() -> None:
    for service in SERVICES.values():
        for name, value in service.get("environment", {}).items():
            if name in ("AEO_AUTH_TOKEN", "AEO_BROKER_URL"):
                assert value.startswith("@")
    assert SERVICES["sign-in"]["logging"] == {"driver": "none"}
    assert "requirepass" not in COMPOSE_TEXT


def test_the_image_is_made_in_stages_and_is_nobody_special() -> None:
    text = (ROOT / "deploy" / "docker" / "Dockerfile").read_text()
    assert re.search(r"^ARG BASE_IMAGE=", text, re.MULTILINE)
    assert len(re.findall(r"^FROM \$\{BASE_IMAGE\}", text, re.MULTILINE)) == 2
    assert re.findall(r"^USER (.*)$", text, re.MULTILINE)[-1] == "aeo"
    pinned = re.search(r"^ARG HARBOR_VERSION=(\S+)$", text, re.MULTILINE)
    from aeo.executors.harbor.python import HARBOR_VERSION

    assert pinned is not None
    assert pinned[1] == HARBOR_VERSION
