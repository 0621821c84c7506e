"""What the benchmark prints: what was not measured now is said to be old, what is missed is explained."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from benchmarks import __main__ as command
from benchmarks import report
from benchmarks.figures import Line, Row
from rich.console import Console


def row(name: str, value: float) -> Row:
    line = Line(what="time", system="AEO", unit="s", values=(value,), at_most=1.0)
    return Row(name=name, title=f"The row {name}", repeats=1, lines=(line,), at="2026-01-01 10:00")


def test_rows_of_another_run_are_marked_and_what_is_missed_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(report, "EXPLAINED", tmp_path / "explained.json")
    report.EXPLAINED.write_text(json.dumps({"b, time, AEO": "It rained."}))
    text = io.StringIO()
    out = Console(file=text, width=200)
    report.show([row("a", 0.5), row("b", 2.0)], out, old={"a": "2026-01-01 10:00"})
    said = [line.strip() for line in text.getvalue().splitlines()]
    assert "The row a (not measured now, but 2026-01-01 10:00)" in said
    assert "The row b" in said
    assert said[-2:] == ["- missed: b, time, AEO: 2 s, reach ≤ 1", "It rained."]
    assert not [line for line in said if line.startswith("- missed: a")]


@pytest.mark.parametrize("arguments", [["--repeats", "0"], ["--workers", "-1"], ["--repeats", "x"]])
def test_counts_are_from_1_on(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.main(arguments)
    assert ended.value.code == 2
    assert "is no whole number from 1 on" in capsys.readouterr().err
