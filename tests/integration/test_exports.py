"""Trials as files: the same rows in each format, whatever is in them, by the API and the command line."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

import pyarrow.parquet
import pytest
from click.testing import CliRunner
from engine import register, submit
from flask.testing import FlaskClient
from waiting import eventually

from aeo import exports, progress, records, rows
from aeo.cli import main
from aeo.core.model import Outcome, TrialRow, TrialSummary
from aeo.site import Site
from webapp import create_app

TOKEN = "s3cret-token-of-this-test"
NOON = datetime(2026, 3, 1, 12, 0, 30, 250000, tzinfo=timezone.utc)


@pytest.fixture
def here(site: Site) -> Site:
    register(site, "a", slots=2)
    return replace(site, config=replace(site.config, auth_token=TOKEN))


@pytest.fixture
def client(here: Site) -> FlaskClient:
    client = create_app(here).test_client()
    client.environ_base["HTTP_AUTHORIZATION"] = f"Bearer {TOKEN}"
    return client


@pytest.fixture
def odd(here: Site) -> list[str]:
    """An evaluation of six trials with two odd results; returns the names of its trials in planned order."""
    id = submit(here, {"name": "odd", "tasks": 3, "attempts": 2, "agent": "ag,ent", "labels": {"category": "=1+1"}}).id
    names = list(records.read(here.shared.evaluation(id)).trials)
    scored = TrialSummary(
        trial=names[0],
        task="task-1",
        outcome=Outcome.SCORED,
        rewards={"reward": 0.5, "style": -1.0},
        started_at=NOON,
        finished_at=NOON.replace(minute=1),
        phases={"environment": 1.5, "agent": 20.0},
        input_tokens=12,
        cost_usd=0.25,
    )
    failed = TrialSummary(
        trial=names[1],
        task="task-1",
        outcome=Outcome.INFRA_ERROR,
        error_type="=HYPERLINK()",
        error_message='line one\nline "two", ünïcode \ud800 \x1b[31m',
    )
    for summary in (scored, failed):
        row = TrialRow(summary=summary, worker="a", attempt=1, committed_at=NOON, notes=("a link was dropped",))
        assert rows.keep(here, id, row, "t")
    return names


def test_csv_has_a_head_and_a_row_for_each_trial(client: FlaskClient, odd: list[str]) -> None:
    answer = client.get("/api/evaluations/odd/trials.csv")
    assert answer.status_code == 200
    assert answer.content_type == "text/csv; charset=utf-8"
    assert answer.headers["Content-Disposition"] == "attachment; filename=odd.csv"
    rows = list(csv.DictReader(io.StringIO(answer.text, newline="")))
    assert [row["trial"] for row in rows] == odd
    assert set(rows[0]) == set(exports.COLUMNS)
    first, second, third = rows[:3]
    assert (first["outcome"], first["reward"], first["agent"]) == ("scored", "0.5", "ag,ent")
    assert json.loads(first["rewards"]) == {"reward": 0.5, "style": -1.0}
    assert datetime.fromisoformat(first["started_at"]) == NOON
    assert (third["outcome"], third["reward"], third["started_at"], third["phases"]) == ("", "", "", "")
    assert second["error_message"].startswith('line one\nline "two", ünïcode')


def test_a_spreadsheet_runs_nothing_of_it(client: FlaskClient, odd: list[str]) -> None:
    rows = list(csv.DictReader(io.StringIO(client.get("/api/evaluations/odd/trials.csv").text, newline="")))
    assert rows[1]["error_type"] == "'=HYPERLINK()"
    assert rows[0]["category"] == "'=1+1"


def test_jsonl_has_each_trial_as_it_is(client: FlaskClient, odd: list[str]) -> None:
    answer = client.get("/api/evaluations/odd/trials.jsonl")
    rows = [json.loads(line) for line in answer.text.splitlines()]
    assert [row["trial"] for row in rows] == odd
    assert list(rows[0]) == list(exports.COLUMNS)
    assert rows[1]["error_type"] == "=HYPERLINK()"
    assert rows[0]["phases"] == {"environment": 1.5, "agent": 20.0}
    assert rows[0]["labels"]["category"] == "=1+1"
    assert (rows[2]["outcome"], rows[2]["run"], rows[2]["notes"]) == (None, 0, [])


def test_parquet_has_types(client: FlaskClient, odd: list[str], tmp_path: Path) -> None:
    answer = client.get("/api/evaluations/odd/trials.parquet")
    assert answer.content_type == "application/vnd.apache.parquet"
    table = pyarrow.parquet.read_table(io.BytesIO(answer.data))
    rows = table.to_pylist()
    assert [row["trial"] for row in rows] == odd
    assert rows[0]["started_at"] == NOON
    assert dict(rows[0]["rewards"]) == {"reward": 0.5, "style": -1.0}
    assert (rows[0]["input_tokens"], rows[0]["output_tokens"], rows[0]["cost_usd"]) == (12, None, 0.25)
    assert rows[2]["outcome"] is None
    assert {str(table.schema.field(name).type) for name in ("seconds", "run")} == {"double", "int64"}
    (tmp_path / "x.parquet").write_bytes(answer.data)
    # One without a single result has the same columns.
    assert pyarrow.parquet.read_schema(tmp_path / "x.parquet").names == list(exports.COLUMNS)


def test_the_three_say_the_same(client: FlaskClient, odd: list[str]) -> None:
    jsonl = [json.loads(line) for line in client.get("/api/evaluations/odd/trials.jsonl").text.splitlines()]
    table = pyarrow.parquet.read_table(io.BytesIO(client.get("/api/evaluations/odd/trials.parquet").data))
    of_csv = list(csv.DictReader(io.StringIO(client.get("/api/evaluations/odd/trials.csv").text, newline="")))
    for plain, typed, texts in zip(jsonl, table.to_pylist(), of_csv, strict=True):
        for name, kind in exports.COLUMNS.items():
            if kind in ("text", "whole", "number"):
                assert plain[name] == typed[name], name
                assert texts[name].removeprefix("'") == ("" if plain[name] is None else str(plain[name])), name


def test_what_is_not_there_is_told(client: FlaskClient, odd: list[str]) -> None:
    assert client.get("/api/evaluations/nobody/trials.csv").status_code == 404
    assert client.get("/api/evaluations/a..b/trials.jsonl").status_code == 422
    assert client.get("/api/evaluations/odd/trials.xlsx").status_code in (404, 422)
    client.environ_base.pop("HTTP_AUTHORIZATION")
    assert client.get("/api/evaluations/odd/trials.csv").status_code == 401


def test_the_api_sorts_and_searches(client: FlaskClient, odd: list[str], here: Site) -> None:
    def names(query: str) -> list[str]:
        return [item["trial"] for item in client.get(f"/api/evaluations/odd/trials?{query}").json["trials"]]

    assert names("sort=error&limit=1") == [odd[1]]
    assert names("sort=planned&descending=true") == odd[::-1]
    assert names("search=hyperlink") == names("error=%3DHYPERLINK()") == [odd[1]]
    assert client.get("/api/evaluations/odd/trials?sort=colour").status_code == 422
    assert client.get("/api/evaluations?search=od").json["total"] == 1
    assert client.get("/api/evaluations?search=odd&owner=nobody").json["total"] == 0
    assert progress.history(here, search="odd")[1] == 1


# The command line, against a real server.


class Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture
def url(here: Site) -> Iterator[str]:
    import threading

    with make_server("127.0.0.1", 0, create_app(here), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def aeo(url: str, *args: str, token: str = TOKEN) -> Any:
    return CliRunner().invoke(main, list(args), env={"AEO_URL": url, "AEO_TOKEN": token})


def test_the_command_writes_to_standard_output_or_a_file(url: str, odd: list[str], tmp_path: Path) -> None:
    shown = aeo(url, "export", "odd", "--format", "jsonl")
    assert shown.exit_code == 0, shown.output
    assert [json.loads(line)["trial"] for line in shown.stdout_bytes.decode().splitlines()] == odd
    target = tmp_path / "trials.parquet"
    target.write_text("what was there")
    made = aeo(url, "export", "odd", "--format", "parquet", "-o", str(target))
    assert made.exit_code == 0, made.output
    assert pyarrow.parquet.read_table(target).num_rows == 6
    # Nothing half-made stays beside it.
    assert not list(tmp_path.glob(".*"))


def test_the_command_says_what_is_wrong(url: str, odd: list[str], tmp_path: Path) -> None:
    nobody = aeo(url, "export", "nobody")
    assert nobody.exit_code == 2
    assert "nobody" in nobody.stderr
    target = tmp_path / "kept.csv"
    target.write_text("what was there")
    assert aeo(url, "export", "nobody", "-o", str(target)).exit_code == 2
    assert target.read_text() == "what was there"
    assert aeo(url, "export", "odd", token="wrong").exit_code == 2
    assert aeo(url, "export", "odd", "-o", str(tmp_path / "no" / "folder.csv")).exit_code == 1
    assert aeo("http://127.0.0.1:1", "export", "odd").exit_code == 1


def test_a_reader_that_has_enough_is_no_failure(url: str, odd: list[str]) -> None:
    import os
    import subprocess

    program = "from aeo.cli import main; main()"
    environment = {**os.environ, "AEO_URL": url, "AEO_TOKEN": TOKEN}
    with subprocess.Popen(
        [sys.executable, "-c", program, "export", "odd"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout
        assert run.stderr
        run.stdout.close()
        assert run.stderr.read() == b""
        assert eventually(lambda: run.poll() is not None, 20)
        assert run.returncode == 0
