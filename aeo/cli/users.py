"""``aeo user``: who may use the controller, and what each may do."""

from __future__ import annotations

import click

from aeo.cli import show, views
from aeo.cli.answers import Body
from aeo.cli.client import connect
from aeo.cli.follow import as_json
from aeo.users import Role

_ROLES = [role.value for role in Role]


@click.group(
    epilog="""\b
A viewer looks; a member also submits, and changes their own evaluations; an admin may do everything.
Whoever has the controller's own token is an admin. Only an admin may use these commands.

\b
Examples:
  aeo user add alice --role member
  aeo user list
  aeo user renew alice
  aeo user remove alice"""
)
def user() -> None:
    """Add, list, remove named users; renew their tokens."""


@user.command(
    epilog="""\b
The token goes to standard output, the rest to standard error.

\b
Examples:
  aeo user add alice --role member
  aeo user add ci --role member > ci-token
  aeo user add alice --role viewer --json"""
)
@click.argument("name", metavar="NAME")
@click.option("--role", type=click.Choice(_ROLES), required=True, help="What the user may do.")
@as_json
def add(name: str, role: str, as_json: bool) -> None:
    """Add a user and print the token, which is shown this once."""
    _show_token(connect().add_user(name, role), as_json)


@user.command("list", epilog="\b\nExamples:\n  aeo user list\n  aeo user list --json")
@as_json
def list_(as_json: bool) -> None:
    """List the named users."""
    body = connect().users()
    if as_json:
        show.as_json(body)
        return
    found = views.users(body)
    if not found:
        click.echo("No named users. Add one: aeo user add NAME --role member", err=True)
        return
    show.table(
        ("name", "role", "since"),
        [(item.name, item.role, show.local(item.created_at)) for item in found],
    )


@user.command(epilog="\b\nExamples:\n  aeo user remove alice\n  aeo user remove alice --json")
@click.argument("name", metavar="NAME")
@as_json
def remove(name: str, as_json: bool) -> None:
    """Remove a user; the token and all sessions end at once, evaluations run on."""
    body = connect().remove_user(name)
    if as_json:
        show.as_json(body)
    else:
        click.echo(f"{views.user(body).name} is removed.")


@user.command(epilog="\b\nExamples:\n  aeo user renew alice\n  aeo user renew alice --json")
@click.argument("name", metavar="NAME")
@as_json
def renew(name: str, as_json: bool) -> None:
    """Print a new token for a user; the old one and all sessions end at once."""
    _show_token(connect().renew_user(name), as_json)


def _show_token(body: Body, as_json: bool) -> None:
    if as_json:
        show.as_json(body)
        return
    made = views.user(body)
    click.echo(f"Token of {made.name} ({made.role}), shown this once:", err=True)
    click.echo(made.token)
    click.echo("It signs in on the pages, and is AEO_TOKEN for `aeo`.", err=True)
