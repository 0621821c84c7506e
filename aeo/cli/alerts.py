"""``aeo alerts``: what somebody should look at now."""

from __future__ import annotations

from typing import Any

import click

from aeo.cli import show
from aeo.cli.answers import clean
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.core.alerts import Level


@click.command(
    epilog="""\b
Examples:
  aeo alerts
  aeo alerts --check || mail -s "aeo needs somebody" ops@example.org"""
)
@click.option("--check", is_flag=True, help="Exit with 1 when one of them is critical.")
@as_json
@click.pass_context
def alerts(ctx: click.Context, check: bool, as_json: bool) -> None:
    """Show what somebody should look at now: lost workers, full disks, stalled trials, rate limits, what was paused."""
    body = connect().alerts()
    found = [item for item in body.get("alerts") or () if isinstance(item, dict)]
    if as_json:
        show.as_json(body)
    elif not found:
        click.echo("Nothing to look at.")
    else:
        for item in found:
            click.echo(_line(item))
    if check and any(item.get("level") == Level.CRITICAL.value for item in found):
        ctx.exit(1)


def _line(item: dict[str, Any]) -> str:
    since = f" (since {clean(item['since'])[:19]}Z)" if item.get("since") else ""
    where = f" [evaluation {clean(item['evaluation'])}]" if item.get("evaluation") else ""
    return f"{clean(item.get('level', '')):8}  {clean(item.get('text', ''))}{where}{since}"
