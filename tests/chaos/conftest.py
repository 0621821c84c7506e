"""A stage for each file, a verdict for each test, one table for all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest
from chaos import verdict
from chaos.stage import Run, Stage
from chaos.table import PROPERTY, Row, render

_FAILED = pytest.StashKey[bool]()
Judge = Callable[..., Row]


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    outcome = yield
    report = outcome.get_result()  # type: ignore[attr-defined]
    item.stash[_FAILED] = item.stash.get(_FAILED, False) or report.failed


def pytest_itemcollected(item: pytest.Item) -> None:
    # A time-out ends the whole process and leaves its programs behind: each wait of a test must fail before it.
    item.add_marker(pytest.mark.timeout(420))


class Theatre:
    """Keeps one stage for the tests of a file, as long as none of them failed on it."""

    def __init__(self, factory: pytest.TempPathFactory, name: str):
        self._factory, self._name = factory, name
        self._stage: Stage | None = None

    def stage(self) -> Stage:
        """The stage, made if there is none."""
        if self._stage is None:
            self._stage = Stage(self._factory.mktemp(self._name))
        return self._stage

    def clear(self) -> None:
        """Take the stage down."""
        if self._stage is not None:
            self._stage.destroy()
        self._stage = None


@pytest.fixture(scope="module")
def theatre(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Theatre]:
    made = Theatre(tmp_path_factory, Path(str(request.path)).stem)
    yield made
    made.clear()


@pytest.fixture
def stage(theatre: Theatre, request: pytest.FixtureRequest) -> Iterator[Stage]:
    """A platform with the workers a and b, or those that the test's file names, of two slots each, at work."""
    yield theatre.stage().ready(*getattr(request.module, "WORKERS", ("a", "b")))
    if request.node.stash.get(_FAILED, False):
        # What failed must not fail the next.
        for path in sorted(theatre.stage().folder.glob("*.log")):
            print(f"== {path.name}\n{path.read_text('utf-8', 'replace')[-3000:]}")  # noqa: T201
        theatre.clear()


@pytest.fixture
def judge(request: pytest.FixtureRequest) -> Judge:
    """Say what became of an evaluation: a row of the table, and the assertions that hold for every one."""

    def say(run: Run, fault: str, *, seconds: float | None, twice: str = "", note: str = "") -> Row:
        """``twice`` is why a trial may run twice under this fault; without it none may."""
        row = Row(
            fault=fault,
            trials=len(run.planned()),
            lost=len(verdict.lost(run)),
            run_twice=len(verdict.run_twice(run)),
            committed_twice=len(verdict.committed_twice(run)),
            seconds=seconds,
            note=twice or note,
        )
        request.node.user_properties.append((PROPERTY, asdict(row)))
        assert row.lost == 0, verdict.lost(run)
        assert row.committed_twice == 0, verdict.committed_twice(run)
        assert twice or row.run_twice == 0, verdict.run_twice(run)
        assert verdict.faults(run) == []
        return row

    return say


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, [])]
    rows = [
        Row(**value)
        for report in reports
        if report.when == "call"
        for name, value in report.user_properties
        if name == PROPERTY
    ]
    if rows:
        text = render(rows)
        terminalreporter.section("faults and what became of the trials")
        terminalreporter.write(text)
        (Path(__file__).parent / "table.md").write_text(text)
