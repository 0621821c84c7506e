"""Numbers on the command line: whatever is none, not finite or out of range is refused, and what is allowed is said."""

# Fixtures are imported by name.
# ruff: noqa: F401, F811

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
from cli_fake import FakeController, aeo, fake, worker

from aeo import processes
from aeo.cli import COMMANDS, main
from aeo.cli.numbers import Number
from aeo.cli.trial_rows import LONGEST
from aeo.config import Config
from aeo.core.words import be, count, listed, plain

NO_NUMBERS = ("nan", "inf", "-inf", "1e308", "-1", "x", "")


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    ctx = click.Context(group)
    for name in group.list_commands(ctx):
        command = group.get_command(ctx, name)
        assert command is not None
        yield " ".join((*path, name)), command
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))


def test_no_option_takes_what_is_no_finite_number() -> None:
    kinds = {
        f"{name} {option.opts[0]}": option.type
        for name, command in commands(main)
        for option in command.params
        if isinstance(option.type, (click.FloatRange, click.types.FloatParamType))
    }
    assert len(COMMANDS) > 20
    assert len(kinds) >= 5
    assert {place for place, kind in kinds.items() if not isinstance(kind, Number)} == set()


@pytest.mark.parametrize("given", NO_NUMBERS)
@pytest.mark.parametrize(
    ("args", "option", "said"),
    [
        (("simulate", "--trials", "2", "--worker", "a=1", "--each"), "--each", "a number above 0 and at most"),
        (("simulate", "--each", "1", "--trials", "2", "--worker", "a=1", "--overhead"), "--overhead", "from 0 to"),
        (("limits", "set", "p", "--per-minute"), "--per-minute", "a number from 0 to 1000000"),
        (("sign-in", "--patience"), "--patience", "a number from 0 to 1000000"),
        (("upgrade", "--wait"), "--wait", "a number from 0 to 10000000"),
        (("decommission", "--wait"), "--wait", "a number from 0 to 10000000"),
        (("submit", "-", "--agent-timeout-multiplier"), "--agent-timeout-multiplier", "above 0 and below 1000000"),
        (("submit", "-", "--priority"), "--priority", "-1000000000<=x<=1000000000"),
        (("submit", "-", "--max-requeues"), "--max-requeues", "0<=x<=1000000000"),
        (("submit", "-", "--per-worker-concurrency"), "--per-worker-concurrency", "whole number from 1 to 1000000000"),
        (("limits", "set", "p", "--trials"), "--trials", "0<=x<=1000000"),
    ],
)
def test_an_option_says_what_is_allowed(
    aeo: Any, fake: FakeController, args: tuple[str, ...], option: str, said: str, given: str
) -> None:
    if (option, given) in {("--priority", "-1")}:
        return
    result = aeo(*args, given, input="x: 1")
    assert result.exit_code == 2, result.output
    assert f"'{option}'" in result.output
    # click's own words for what is no whole number at all.
    assert said in result.output or "is not a valid integer" in result.output
    assert fake.requests == []


@pytest.mark.parametrize("option", ["--priority", "--max-requeues"])
def test_a_whole_number_that_is_too_large_is_told_the_range(aeo: Any, fake: FakeController, option: str) -> None:
    assert "<=x<=1000000000" in aeo("submit", "-", option, "99999999999999", input="x: 1").output


@pytest.mark.parametrize("given", ["-1", "-0.5", "-.5", "-inf", "nan", "1e308", "x"])
def test_a_weight_out_of_range_is_told_the_range(aeo: Any, fake: FakeController, given: str) -> None:
    for args in (("small", given), ("small", given, "--json"), ("--json", "small", given)):
        result = aeo("workers", "weight", *args)
        assert result.exit_code == 2
        assert f"W: {given!r} is neither a number from 0 to 1000000 nor 'auto'." in result.output
    assert fake.requests == []


def test_an_option_beside_a_weight_is_one(aeo: Any, fake: FakeController) -> None:
    assert "No such option" in aeo("workers", "weight", "small", "1", "--bogus").output
    assert aeo("workers", "weight", "small", "-1", "--bogus").exit_code == 2


@pytest.mark.parametrize("given", ["a=99999999", "a=0", "a=-1", "a=" + "9" * 5000, "a", "=3", "a=nan"])
def test_slots_of_a_worker_have_a_range(aeo: Any, given: str) -> None:
    result = aeo("up", "--worker", given)
    assert result.exit_code == 2
    assert "whole number from 1 to 10000" in result.output
    assert "--slots: must be a whole number from 1 to 10000." in aeo("up", "--slots", "99999999").output


def test_one_is_singular() -> None:
    assert [count(number, "trial") for number in (0, 1, 2, 1.5)] == ["0 trials", "1 trial", "2 trials", "1.5 trials"]
    assert [be(number) for number in (0, 1, 2)] == ["are", "is", "are"]
    assert [plain(number) for number in (1e6, 2.5, math.inf, -math.inf)] == ["1000000", "2.5", "inf", "-inf"]
    assert (plain(math.nan), plain(10**400)) == ("nan", "1" + "0" * 400)
    assert [listed(some) for some in ((), ("a",), ("a", "b"), ("a", "b", "c"))] == ["", "a", "a and b", "a, b and c"]


def test_a_longest_trial_is_a_number_to_print() -> None:
    assert LONGEST < 1e15


def test_a_worker_on_the_controllers_machine_finds_its_token(
    aeo: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Config] = []
    monkeypatch.setattr(processes, "worker", lambda config, mounted: seen.append(config) or 0)
    monkeypatch.delenv("AEO_AUTH_TOKEN", raising=False)
    (tmp_path / "aeo-data").mkdir()
    (tmp_path / "aeo-data" / "token").write_text("kept-token\n")
    assert aeo("worker", "--worker-id", "w").exit_code == 0
    assert aeo("worker", "--worker-id", "w", "--auth-token", "@aeo-data/token").exit_code == 0
    assert aeo("worker", "--worker-id", "w", "--controller-url", "http://controller.example:7380").exit_code == 0
    assert aeo("worker", "--worker-id", "w", "--controller-url", "nothing").exit_code == 0
    monkeypatch.setenv("AEO_AUTH_TOKEN", "another")
    assert aeo("worker", "--worker-id", "w").exit_code == 0
    assert [config.auth_token for config in seen] == ["kept-token", "kept-token", "", "", "another"]
