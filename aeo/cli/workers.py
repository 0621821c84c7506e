"""``aeo workers``: who is there, and how much of an evaluation each gets."""

from __future__ import annotations

import math

import click

from aeo.cli import show, views
from aeo.cli.client import clean, connect
from aeo.cli.follow import as_json
from aeo.core.errors import InputError


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  aeo workers
  aeo workers --json
  aeo workers weight gpu-1 2.5
  aeo workers weight gpu-1 auto""",
)
@as_json
@click.pass_context
def workers(ctx: click.Context, as_json: bool) -> None:
    """List workers, or set a worker's weight."""
    if ctx.invoked_subcommand:
        return
    body = connect().workers()
    if as_json:
        show.as_json(body)
        return
    found = views.workers(body)
    if not found:
        click.echo("No workers. Start one: aeo worker", err=True)
        return
    show.workers(found)


@workers.command(
    epilog="""\b
Examples:
  aeo workers weight gpu-1 2.5
  aeo workers weight gpu-1 0      # no new evaluation uses it
  aeo workers weight gpu-1 auto   # by its capacity again"""
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


def _number(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not (math.isfinite(number) and number >= 0):
        raise InputError(f"{clean(text)!r} is neither a number of at least 0 nor 'auto'.", field="weight")
    return number
