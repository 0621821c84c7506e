"""``aeo secrets``: values that trials get in their environment, and nobody reads again."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import datetime

import click

from aeo.cli import show
from aeo.cli.answers import Body, clean
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.core.errors import InputError
from aeo.core.names import check_variable


@click.group(
    epilog="""\b
An evaluation gets those that it names (`secrets: [OPENAI_API_KEY]`, or --secret), and those that its configuration
refers to as ${NAME}: in the environment of its trials' processes, and nowhere else. A secret that is not set here may
stand in the environment of the workers. Only an admin may use these commands.

\b
Examples:
  aeo secrets set OPENAI_API_KEY
  aeo secrets set OPENAI_API_KEY < key-file
  aeo secrets list
  aeo secrets remove OPENAI_API_KEY
  aeo secrets rekey"""
)
def secrets() -> None:
    """List, set, remove the secrets that trials get; change the key they are encrypted with."""


@secrets.command(
    "set",
    epilog="""\b
Asked for without being shown; or read from standard input, where one line end is left out.

\b
Examples:
  aeo secrets set OPENAI_API_KEY
  pass show openai | aeo secrets set OPENAI_API_KEY
  aeo secrets set SSH_KEY < ~/.ssh/id_for_trials --json""",
)
@click.argument("name", metavar="NAME")
@as_json
def set_(name: str, as_json: bool) -> None:
    """Set a secret, or set it anew; trials that begin from now on get it."""
    check_variable(name, field="NAME")
    body = connect().set_secret(name, _value(name))
    if as_json:
        show.as_json(body)
    else:
        click.echo(f"{name} is set. Name it in an evaluation: secrets: [{name}], or --secret {name}.")


@secrets.command("list", epilog="\b\nExamples:\n  aeo secrets list\n  aeo secrets list --json")
@as_json
def list_(as_json: bool) -> None:
    """List the secrets: when and by whom each was set, and which evaluations that have not ended name it."""
    body = connect().secrets()
    if as_json:
        show.as_json(body)
        return
    rows = _rows(body)
    if not rows:
        click.echo("No secrets. Set one: aeo secrets set NAME", err=True)
        return
    show.table(("name", "set", "by", "named by"), rows)


@secrets.command(
    epilog="\b\nExamples:\n  aeo secrets remove OPENAI_API_KEY\n  aeo secrets remove OPENAI_API_KEY --json"
)
@click.argument("name", metavar="NAME")
@as_json
def remove(name: str, as_json: bool) -> None:
    """Remove a secret. Trials that run keep it; those that begin without it fail."""
    body = connect().remove_secret(name)
    if as_json:
        show.as_json(body)
    else:
        click.echo(f"{name} is removed.")


@secrets.command(epilog="\b\nExamples:\n  aeo secrets rekey\n  aeo secrets rekey --json")
@as_json
def rekey(as_json: bool) -> None:
    """Encrypt all secrets with a new key, which takes the old one's place in the file of keys."""
    body = connect().rekey_secrets()
    if as_json:
        show.as_json(body)
    else:
        click.echo(
            f"Secrets with the new key: {clean(body.get('secrets', 0))}. Copies of the old key open them no more."
        )


def _value(name: str) -> str:
    if sys.stdin.isatty():
        value: str = click.prompt(f"Value of {name} (not shown)", hide_input=True, err=True)
        return value
    try:
        value = sys.stdin.buffer.read().decode()
    except UnicodeDecodeError:
        raise InputError("is no UTF-8 text.", field="<stdin>", fix="Encode it, such as in base64.") from None
    return value[:-2] if value.endswith("\r\n") else value.removesuffix("\n")


def _rows(body: Body) -> Sequence[tuple[str, ...]]:
    items = body.get("secrets")
    return [
        (
            clean(item.get("name", "")),
            _time(item.get("set_at")),
            clean(item.get("set_by") or "-"),
            ", ".join(map(clean, item.get("used_by") or ())) or "-",
        )
        for item in (items if isinstance(items, list) else ())
        if isinstance(item, dict)
    ]


def _time(value: object) -> str:
    try:
        return show.local(datetime.fromisoformat(str(value).replace("Z", "+00:00")))
    except ValueError:
        return "-"
