"""``aeo limits``: how many trials may use a model provider, or one of its models, at once."""

from __future__ import annotations

import click

from aeo.cli import show, views
from aeo.cli.answers import Body
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.cli.numbers import Number
from aeo.core.errors import InputError
from aeo.core.limits import MOST, check, check_key
from aeo.core.pool import Limit


@click.group(
    invoke_without_command=True,
    epilog="""\b
KEY is a provider, or provider/model as in the model column: with single '/' between them.
Limits count over all workers and evaluations: for people who share one key of a provider. Only an admin changes them.

\b
Examples:
  aeo limits
  aeo limits set anthropic --trials 20
  aeo limits set openai/gpt-5 --trials 8 --per-minute 30
  aeo limits clear anthropic""",
)
@as_json
@click.pass_context
def limits(ctx: click.Context, as_json: bool) -> None:
    """List the limits of model providers, or change one."""
    if not ctx.invoked_subcommand:
        _show(connect().limits(), as_json)


@limits.command(
    "set",
    epilog="""\b
Examples:
  aeo limits set anthropic --trials 20
  aeo limits set openai/gpt-5 --per-minute 30 --json""",
)
@click.argument("key", metavar="KEY")
@click.option("--trials", type=click.IntRange(0, MOST), default=0, help="Trials at once; 0: any number.")
@click.option(
    "--per-minute",
    type=Number(0, MOST),
    default=0.0,
    metavar="R",
    help="Trials that start in a minute, evenly spread; 0: any number.",
)
@as_json
def set_(key: str, trials: int, per_minute: float, as_json: bool) -> None:
    """Limit the trials under a key from now on; those that run go on.

    It takes the place of the key's limit: what is not given is limited no more.
    """
    check_key(key, field="KEY")
    if not trials and not per_minute:
        raise InputError(
            "nothing is limited.", field="--trials", fix=f"Give --trials or --per-minute; or: aeo limits clear {key}"
        )
    check(Limit(trials=trials, per_minute=per_minute))
    _show(connect().set_limit(key, trials=trials, per_minute=per_minute), as_json)


@limits.command(epilog="\b\nExamples:\n  aeo limits clear anthropic\n  aeo limits clear anthropic --json")
@click.argument("key", metavar="KEY")
@as_json
def clear(key: str, as_json: bool) -> None:
    """Take a limit away."""
    _show(connect().clear_limit(key), as_json)


def _show(body: Body, as_json: bool) -> None:
    if as_json:
        show.as_json(body)
        return
    found = views.limits(body)
    if not found:
        click.echo("No limits. Set one: aeo limits set PROVIDER --trials N", err=True)
        return
    show.table(
        ("key", "running", "trials at once", "starts a minute"),
        [(item.key, str(item.running), _number(item.trials), _number(item.per_minute)) for item in found],
    )


def _number(value: float) -> str:
    return f"{value:g}" if value else "any"
