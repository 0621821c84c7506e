"""``aeo doctor``: whether all is as it must be. Each check is a flag and a function that prints what it found."""

from __future__ import annotations

from collections.abc import Sequence

import click

from aeo import audit
from aeo.audit import Finding
from aeo.cli import place, show
from aeo.cli.client import clean
from aeo.cli.processes import hide_secrets, read, settings
from aeo.codec import encode
from aeo.core.errors import InputError

#: Faults shown of one evaluation; all are in the JSON.
MOST = 20


@click.command(
    epilog="""\b
--store runs on the controller's machine, while it runs or not, and changes nothing. It compares the store, the
event log and the job folders: every planned trial is in exactly one state, none was committed twice.

\b
Exit codes: 0 all is right, 1 something is not, or a part is away; 2 wrong input.

\b
Examples:
  aeo doctor --store
  aeo doctor --store my-evaluation --shared-root /srv/aeo
  aeo doctor --store --json"""
)
@click.argument("ids", nargs=-1, metavar="[ID|NAME]...")
@click.option("--store", is_flag=True, help="Check these evaluations, or all, in store and on disk.")
@settings(place.WHERE, {"broker_url": "The broker's address (default: the embedded server's)."})
@place.as_json
@click.pass_context
def doctor(ctx: click.Context, /, ids: tuple[str, ...], store: bool, as_json: bool, **flags: str | None) -> None:
    """Check that all is as it must be."""
    if not store:
        raise InputError("nothing to check.", fix="Name what: --store.")
    config = read(flags)
    hide_secrets()
    with place.existing(config) as site:
        found = audit.check(site, ids)
    if as_json:
        show.as_json({"evaluations": [encode(item) for item in found]})
    else:
        _print(found)
    ctx.exit(int(any(item.faults for item in found)))


def _print(found: Sequence[Finding]) -> None:
    if not found:
        click.echo("No evaluations.", err=True)
    for item in found:
        who = clean(f"{item.name} ({item.evaluation})" if item.name else item.evaluation)
        state = f" {item.state}" if item.state else ""
        note = f" ({clean(item.note)})" if item.note else ""
        if not item.faults:
            click.echo(f"{who}{state}: ok{note}")
        for fault in item.faults[:MOST]:
            click.echo(f"{who}{state}: FAULT: {clean(fault)}")
        if len(item.faults) > MOST:
            click.echo(f"{who}{state}: {len(item.faults) - MOST} more faults: see --json")
