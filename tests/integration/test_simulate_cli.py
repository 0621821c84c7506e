"""``aeo simulate``: from a table, a distribution and an evaluation that ran; and what a check takes from it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from engine import closed, register, running, submit
from served import served

from aeo.cli import main
from aeo.config import Config
from aeo.site import Site, open_site

TOKEN = "token-of-this-test"


def aeo(*args: str, code: int = 0, **kwargs: Any) -> Any:
    result = CliRunner().invoke(main, ["simulate", *args], **kwargs)
    assert result.exit_code == code, result.output
    return result


def told(*args: str, **kwargs: Any) -> Any:
    return json.loads(aeo(*args, "--json", **kwargs).stdout)


@pytest.fixture
def table(tmp_path: Path) -> str:
    file = tmp_path / "trace.csv"
    file.write_text("task,seconds\n" + "".join(f"t{number},{10 if number < 39 else 100}\n" for number in range(40)))
    return str(file)


def test_a_table_is_played_through(table: str) -> None:
    body = told("--csv", table, "--worker", "a=4")
    assert body["trials"] == 40
    # The longest first; 39 x 10 s on the other slots.
    assert body["makespan"] == pytest.approx(130.0)
    assert body["bound"] == pytest.approx(122.5)
    assert body["utilisation"] == pytest.approx(490 / 520)
    assert [item["worker"] for item in body["with_added"]["workers"]] == ["a", "added-1", "added-2"]
    assert body["with_added"]["makespan"] == pytest.approx(100.0)
    assert told("--csv", table, "--worker", "a=4") == body


def test_speeds_needs_and_overhead_count() -> None:
    rows = "task,seconds,cpus,memory_mb\n" + "x,10,2,1024\n" * 8
    assert told("--csv", "-", "--worker", "a=2:0.5", input=rows)["makespan"] == pytest.approx(80.0)
    assert told("--csv", "-", "--worker", "a=2", "--overhead", "1", input=rows)["makespan"] == pytest.approx(44.0)
    assert told("--csv", "-", "--worker", "a=4", "--per-worker-concurrency", "1", input=rows)["makespan"] == 80.0


def test_a_table_can_say_what_was_expected() -> None:
    rows = "task,seconds,estimated\n" + "x,10,60\n" * 4 + "long,20,1\n"
    assert told("--csv", "-", "--worker", "a=2", input=rows)["makespan"] == pytest.approx(40.0)
    assert told("--csv", "-", "--worker", "a=2", input=rows.replace("20,1", "20,99"))["makespan"] == pytest.approx(30.0)


def test_a_distribution_is_of_its_seed() -> None:
    drawn = ("--lognormal", "60,1.2", "--trials", "200", "--worker", "a=8", "--worker", "b=4:0.5")
    body = told(*drawn, "--seed", "3")
    assert body == told(*drawn, "--seed", "3")
    assert body["makespan"] != told(*drawn, "--seed", "4")["makespan"]
    assert body["bound"] <= body["makespan"] <= told(*drawn, "--seed", "3", "--blind")["makespan"]
    assert told("--each", "5", "--trials", "8", "--worker", "a=4")["makespan"] == 10.0


def test_what_a_person_reads(table: str) -> None:
    out = aeo("--csv", table, "--worker", "a=4", "--add", "big=8:2").stdout
    assert "40 trials end after 2m 10s" in out
    assert "Nobody could be done before 2m 02s; the slots are busy 94%" in out
    # The longest runs on the fast one.
    assert "With big: 50s, 2.60 times as fast" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "Give one of"),
        (("--each", "5"), "--trials"),
        (("--csv", "x", "--trials", "5"), "--trials"),
        (("--each", "5", "--trials", "2", "--worker", "a"), "a=4:0.5"),
        (("--each", "5", "--trials", "2", "--worker", "a=0"), "a=4:0.5"),
        (("--each", "5", "--trials", "2", "--worker", "a=1", "--worker", "a=2"), "same name"),
        (("--lognormal", "5", "--trials", "2", "--worker", "a=1"), "300,1.2"),
        (("--csv", "missing.csv", "--worker", "a=1"), "cannot be read"),
        (("--csv", "-", "--worker", "a=1"), "columns"),
    ],
)
def test_what_is_wrong_is_said(args: tuple[str, ...], message: str) -> None:
    assert message in aeo(*args, code=2, input="a,b\n1,2\n").output


def test_a_wrong_number_is_named_with_its_line() -> None:
    output = aeo("--csv", "-", "--worker", "a=1", code=2, input="task,seconds\nx,1\ny,-3\n").output
    assert "-:3: seconds" in output


@pytest.fixture
def controller(redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    site = open_site(Config(shared_root=tmp_path / "shared", broker_url=redis_url, auth_token=TOKEN))
    with served(site) as url:
        monkeypatch.setenv("AEO_URL", url)
        monkeypatch.setenv("AEO_TOKEN", TOKEN)
        yield site


def test_an_evaluation_that_ran_is_played_through_on_the_live_pool_and_on_others(
    controller: Site, tmp_path: Path
) -> None:
    register(controller, "a", slots=2, cpus=4.0)
    config = {"name": "ran", "tasks": 8, "seconds": 0.1, "cpus": 3, "per_worker_concurrency": "all"}
    with running(controller, tmp_path, "a"):
        closed(controller, submit(controller, config).id)
    here = told("ran")
    # On this pool one at a time has room.
    assert (here["trials"], here["left_out"]) == (8, 0)
    assert 0.8 <= here["makespan"] == pytest.approx(here["bound"] * 2)
    assert [item["worker"] for item in here["workers"]] == ["a"]
    other = told("ran", "--worker", "x=8")
    assert other["makespan"] < here["makespan"] / 4
    assert "no trial of it" in aeo(submit(controller, config | {"name": "waits"}).id, code=2).output
    assert "No evaluation" in aeo("never", code=2).output
