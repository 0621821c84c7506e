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
from aeo.store import limits

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


def test_one_more_of_a_name_is_told_apart() -> None:
    body = told("--each", "5", "--trials", "8", "--worker", "a=2", "--add", "a=2", "--add", "1")
    assert [item["worker"] for item in body["with_added"]["workers"]] == ["a", "a (added)", "added-2"]


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
        (
            ("--csv", "-", "--worker", "a=1"),
            "-:1: has the unknown column 'a'. Leave it out or rename it. The columns are",
        ),
        (("--each", "5", "--trials", "2", "--worker", "a=0"), "SLOTS a whole number from 1 to 100000"),
        (("--each", "5", "--trials", "2", "--worker", "a=99999999"), "SLOTS a whole number from 1 to 100000"),
        (("--each", "5", "--trials", "2", "--worker", "a=2:-1"), "SPEED a number from 0.001 to 1000"),
        (("--each", "5", "--trials", "2", "--worker", "a=2:nan"), "SPEED a number from 0.001 to 1000"),
        (("--each", "5", "--trials", "2", "--worker", "a=2:inf"), "SPEED a number from 0.001 to 1000"),
        (("--each", "5", "--trials", "2", "--worker", "a=2:"), "SPEED a number from 0.001 to 1000"),
        (("--each", "5", "--trials", "2", "--worker", "a=1", "--add", "-3"), "a whole number from 0 to 1000 nor"),
        (("--each", "5", "--trials", "2", "--worker", "a=1", "--add", "99999"), "a whole number from 0 to 1000 nor"),
        (("--each", "5", "--trials", "2", "--worker", "a=1", "--add", "b=0"), "'--add': 'b=0' is not NAME=SLOTS"),
        (
            ("--each", "5", "--trials", "2", "--worker", "w=1", "--add", "a=2", "--add", "a=4"),
            "--add: two machines have",
        ),
        (
            ("--each", "5", "--trials", "2", "--worker", "w=1", "--add", "w=2", "--add", "w=4"),
            "--add: two machines have",
        ),
        (
            ("--each", "5", "--trials", "2", "--worker", "w=1", "--add", "added-2=4", "--add", "1"),
            "--add: two machines",
        ),
        (("--lognormal", "nan,1", "--trials", "2", "--worker", "a=1"), "MEDIAN is a number above 0"),
        (("--lognormal", "5,inf", "--trials", "2", "--worker", "a=1"), "SIGMA a number from 0 to 10"),
        (("--lognormal", "1e9,10", "--trials", "99", "--worker", "a=1"), "smaller MEDIAN or SIGMA"),
    ],
)
def test_what_is_wrong_is_said(args: tuple[str, ...], message: str) -> None:
    assert message in aeo(*args, code=2, input="a,b\n1,2\n").output


def test_a_wrong_number_is_named_with_its_line() -> None:
    output = aeo("--csv", "-", "--worker", "a=1", code=2, input="task,seconds\nx,1\ny,-3\n").output
    assert "-:3: seconds" in output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "-: is empty. The columns are task,seconds"),
        ("\n", "-:1: has no header."),
        ("task;seconds\nx;1\n", "-:1: has ';' between its columns. Separate them with ','."),
        ("task\tseconds\nx\t1\n", "-:1: has tabs between its columns."),
        ("task,seconds\n", "-: has a header and no trial. Give a line for each trial"),
        ("task,seconds,foo\nx,1,2\n", "-:1: has the unknown column 'foo'."),
        ("task,seconds,\nx,1,\n", "-:1: has a column without a name."),
        ("task,seconds,seconds\nx,1,2\n", "-:1: has the column 'seconds' twice."),
        ("task,cpus\nx,1\n", "-:1: lacks the column 'seconds'."),
        ("task,seconds\nx,1\n\ny,1,2,3\n", "-:4: has 4 fields, the header 2."),
        ("task,seconds,cpus\nx,1\n", "-:2: has 2 fields, the header 3."),
        ("task,seconds\nx\n", "-:2: has 1 field, the header 2."),
        ("task,seconds\nx,\n", "-:2: has no seconds."),
        ('task,seconds\n"x\ny",1\nz,nan\n', "-:4: seconds: 'nan' is not a number from 0 to 1000000000."),
        ("task,seconds\nx,1e308\n", "-:2: seconds: '1e308' is not a number"),
        ("task,seconds,cpus\nx,1,inf\n", "-:2: cpus: 'inf' is not a number from 0 to 1000000."),
        ("task,seconds,memory_mb\nx,1,-5\n", "-:2: memory_mb: '-5' is not a number"),
    ],
)
def test_what_is_wrong_with_a_table_is_said_with_its_line(text: str, message: str) -> None:
    assert message in aeo("--csv", "-", "--worker", "a=1", code=2, input=text).output


def test_a_table_as_programs_write_it_is_read() -> None:
    rows = "\ufefftask, seconds ,cpus\nx, 5 ,\n,,\n\n"
    out = aeo("--csv", "-", "--worker", "a=1", input=rows)
    assert "1 trial ends after 5s" in out.stdout
    assert out.stderr == ""


def test_needs_that_are_not_counted_are_said() -> None:
    out = aeo("--csv", "-", "--worker", "a=2", "--add", "b=1", input="task,seconds,cpus\nx,10,2\ny,10,2\n")
    assert "2 trials end after 10s" in out.stdout
    assert out.stderr == "Warning: what trials declare of cpus and memory is not counted on a, b.\n"


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
    config = {"name": "ran", "tasks": 8, "seconds": 0.1, "cpus": 3, "model": "p/m", "per_worker_concurrency": "all"}
    with running(controller, tmp_path, "a"):
        closed(controller, submit(controller, config).id)
    here = told("ran")
    # On this pool one at a time has room.
    assert (here["trials"], here["left_out"]) == (8, 0)
    assert 0.8 <= here["makespan"] == pytest.approx(here["bound"] * 2)
    assert [item["worker"] for item in here["workers"]] == ["a"]
    other = told("ran", "--worker", "x=8")
    assert other["makespan"] < here["makespan"] / 4
    limits.set(controller.db, "p", per_minute=30)
    limits.set(controller.db, "else", per_minute=1)
    held = told("ran", "--worker", "x=8")
    assert held["limits"] == {"p": {"trials": 0, "per_minute": 30.0}}
    assert 14 <= held["bound"] <= held["makespan"] <= held["bound"] + 5
    assert "Under the limits of p (30 starts a minute)" in aeo("ran", "--worker", "x=8").stdout
    assert "no trial of it" in aeo(submit(controller, config | {"name": "waits"}).id, code=2).output
    assert "No evaluation" in aeo("never", code=2).output
