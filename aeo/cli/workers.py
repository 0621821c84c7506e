"""``aeo workers``: who is there, how much of an evaluation each gets, and who is to take none."""

from __future__ import annotations

import click

from aeo.cli import show, views
from aeo.cli.answers import Body, clean
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.cli.numbers import NegativeCommand, allowed, read
from aeo.core.allot import MOST_WEIGHT
from aeo.core.errors import InputError


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  aeo workers
  aeo workers --json
  aeo workers weight gpu-1 2.5
  aeo workers pause gpu-1 --note "new driver"
  aeo workers remove gpu-1""",
)
@as_json
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List workers, or say what is wanted of one."""
    if ctx.invoked_subcommand:
        return
    body = connect().workers()
    if as_json:
        show.as_json(body)
        return
    found = views.workers(body)
    if found:
        show.workers(found)
    else:
        click.echo("No workers. Start one: aeo worker", err=True)
    out = body.get("out")
    for id, how in out.items() if isinstance(out, dict) else ():
        click.echo(f"{clean(id)} is {clean(how)}. Let it in again: aeo workers allow {clean(id)}", err=True)


@workers.command(
    cls=NegativeCommand,
    epilog="""\b
Examples:
  aeo workers weight gpu-1 2.5
  aeo workers weight gpu-1 0      # no new evaluation uses it
  aeo workers weight gpu-1 auto   # by its capacity again""",
)
@click.argument("id", metavar="ID")
@click.argument("weight", metavar="W|auto")
@as_json
def weight(id: str, weight: str, as_json: bool) -> None:
    """Set a worker's weight: its share of evaluations submitted from now on."""
    number = None if weight == "auto" else _number(weight)
    body = connect().set_weight(id, number)
    if as_json:
        show.as_json(body)
    elif number is None:
        click.echo(f"{id} is weighted by its capacity again.")
    else:
        click.echo(f"{id} has weight {number:g}.")


@workers.command(
    epilog="""\b
Examples:
  aeo workers pause gpu-1 --note "new driver"
  aeo workers pause gpu-1 --json"""
)
@click.argument("id", metavar="ID")
@click.option("--note", default="", help="Why; shown beside the worker.")
@as_json
def pause(id: str, note: str, as_json: bool) -> None:
    """Let a worker claim nothing until it is resumed, also after a restart; what it runs goes on."""
    _told(connect().pause_worker(id, note), as_json, f"Resume it: aeo workers resume {id}")


@workers.command(
    epilog="""\b
Examples:
  aeo workers resume gpu-1
  aeo workers resume gpu-1 --json"""
)
@click.argument("id", metavar="ID")
@as_json
def resume(id: str, as_json: bool) -> None:
    """Let a paused or draining worker take work again."""
    _told(connect().resume_worker(id), as_json)


@workers.command(
    epilog="""\b
Examples:
  aeo workers drain gpu-1
  aeo workers drain gpu-1 --json"""
)
@click.argument("id", metavar="ID")
@as_json
def drain(id: str, as_json: bool) -> None:
    """Let a worker finish what it runs and claim nothing more, until it is restarted or resumed."""
    _told(connect().drain_worker(id), as_json, "When it runs nothing more it can be stopped.")


@workers.command(
    epilog="""\b
It is told, stops what it runs, and stays out until it is started again or let in: aeo workers allow ID.

\b
Examples:
  aeo workers remove gpu-1
  aeo workers remove gpu-1 --force --json"""
)
@click.argument("id", metavar="ID")
@click.option("--force", is_flag=True, help="Also when it is alive and runs trials: they are given back.")
@as_json
def remove(id: str, force: bool, as_json: bool) -> None:
    """Forget a worker; what it ran is given back to the others."""
    body = connect().remove_worker(id, force=force)
    if as_json:
        show.as_json(body)
        return
    removed = views.removed(body)
    click.echo(f"{removed.id} is removed; running trials given back: {removed.given_back}.")
    if removed.alive:
        click.echo(f"It is alive and stays out, until it is started again or let in: aeo workers allow {id}", err=True)


@workers.command(
    epilog="""\b
Its connections are cut at once, and no process of this id is let in until: aeo workers allow ID. Then start it again.

\b
Examples:
  aeo workers revoke gpu-1
  aeo workers revoke gpu-1 --json"""
)
@click.argument("id", metavar="ID")
@as_json
def revoke(id: str, as_json: bool) -> None:
    """Take a worker's credentials away; what it ran is given back to the others."""
    body = connect().revoke_worker(id)
    if as_json:
        show.as_json(body)
        return
    removed = views.removed(body)
    click.echo(f"{removed.id} is revoked; running trials given back: {removed.given_back}.")


@workers.command(
    epilog="""\b
Examples:
  aeo workers allow gpu-1
  aeo workers allow gpu-1 --json"""
)
@click.argument("id", metavar="ID")
@as_json
def allow(id: str, as_json: bool) -> None:
    """Let a removed worker in again without starting it anew, or a revoked one at its next start."""
    body = connect().allow_worker(id)
    if as_json:
        show.as_json(body)
    else:
        click.echo(f"{id} may come back: at its next heartbeat, or, if it was revoked, at its next start.")


def _told(body: Body, as_json: bool, then: str = "") -> None:
    if as_json:
        show.as_json(body)
        return
    view = views.worker(body)
    note = f" ({view.note})" if view.note else ""
    click.echo(f"{view.id} is {view.state}{note}, running trials: {view.busy}.")
    if then:
        click.echo(then)


def _number(text: str) -> float:
    number = read(text, 0, MOST_WEIGHT)
    if number is None:
        raise InputError(f"{clean(text)!r} is neither {allowed(0, MOST_WEIGHT)} nor 'auto'.", field="W")
    return number
