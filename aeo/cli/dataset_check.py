"""``aeo datasets check``: is what lies on the controller still what it was, and what it is listed as."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from aeo.cli import show as tables
from aeo.cli.answers import clean
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.core.errors import InputError
from aeo.core.words import be, count

#: Names of tasks that are shown of each kind.
_MOST = 20


@click.command(
    epilog="""\b
Examples:
  aeo datasets check
  aeo datasets check terminal-bench-2
  aeo datasets check mine --accept
  aeo datasets check terminal-bench-2 --json | jq .reports[0].recorded.changed
\b
Exit codes: 0 sound; 1 something differs, is missing or cannot be run, or the one named is not here."""
)
@click.argument("name", required=False, metavar="[NAME]")
@click.option("--accept", is_flag=True, help="Record what is there now as right; from then on that is compared with.")
@as_json
@click.pass_context
def check(ctx: click.Context, name: str | None, accept: bool, as_json: bool) -> None:
    """Compare datasets with what was recorded and what is listed, and see what cannot be run and who has it."""
    if accept and not name:
        raise InputError("needs the name of a dataset.", field="--accept")
    client = connect()
    reports = [client.check_dataset(name, accept=accept)["report"]] if name else client.checks()["reports"]
    if as_json:
        tables.as_json({"reports": reports})
    else:
        for report in reports:
            _print(report)
        if not accept:
            _say_how_to_accept(reports)
    absent_too = {"faulty", "absent"} if name else {"faulty"}
    ctx.exit(int(any(report["verdict"] in absent_too for report in reports)))


def _say_how_to_accept(reports: list[Mapping[str, Any]]) -> None:
    for report in reports:
        if report["recorded_at"] and any(report["recorded"][kind] for kind in ("changed", "missing", "added")):
            name = clean(report["dataset"])
            click.echo(f"Is what is there now right? It becomes the new record by: aeo datasets check {name} --accept")


def _print(report: Mapping[str, Any]) -> None:
    name = clean(report["dataset"])
    if report["verdict"] == "absent":
        click.echo(f"{name}: not on the controller; fetch it: aeo datasets download {name}")
        return
    if report["problem"]:
        click.echo(f"{name}: cannot be read: {clean(report['problem'])}")
        return
    total = report["listed_total"]
    listed = f", {total} listed by {clean(report['listed_by'])}" if total is not None else ""
    click.echo(f"{name}: {report['verdict']}, {count(report['tasks'], 'task')}{listed}")
    since = f"since {report['recorded_at'][:16].replace('T', ' ')} UTC" if report["recorded_at"] else "never recorded"
    _differences(since, report["recorded"])
    _differences("against the list", report["listed"])
    if total is not None and total != report["tasks"] and not report["listed"]["missing"]:
        here = report["tasks"]
        click.echo(f"  {count(here, 'task')} {be(here)} here, {total} {be(total)} listed")
    for one in report["broken"][:_MOST]:
        click.echo(f"  cannot be run: {clean(one['name'])}: {clean(one['problem'])}")
    _more(len(report["broken"]))
    for one in report["workers"]:
        all_of_it = one["held"] + len(one["missing"])
        lacks = f"; lacks {_names(one['missing'], 5)}" if one["missing"] and one["held"] else ""
        click.echo(f"  on {clean(one['worker'])} ({one['state']}): {one['held']} of {all_of_it}{lacks}")


def _differences(what: str, found: Mapping[str, Any]) -> None:
    for kind in ("changed", "missing", "added"):
        if found[kind]:
            click.echo(f"  {kind} ({what}): {_names(found[kind], _MOST)}")


def _names(names: list[str], most: int) -> str:
    shown = ", ".join(map(clean, names[:most]))
    return shown + (f" and {len(names) - most} more" if len(names) > most else "")


def _more(number: int) -> None:
    if number > _MOST:
        click.echo(f"  and {number - _MOST} more")
