"""``aeo background``: a worker on a machine without a service manager."""

from __future__ import annotations

import click

from aeo.core.errors import Unavailable
from aeo.provision import background as kept


@click.group(
    epilog="""\b
Its settings are ~/.config/aeo/worker-ID.env (0600), above ~/.config/aeo/env, as for a service; its log is
~/.local/state/aeo/ID/log. It does not come back by itself after a restart of the machine: prefer a service.

\b
Examples:
  aeo background start gpu-1
  aeo background stop gpu-1"""
)
def background() -> None:
    """Keep a worker running where there is no service manager."""


@background.command()
@click.argument("id", metavar="ID")
@click.option("--restart", is_flag=True, help="Stop it first, if it runs.")
@click.option("--now", is_flag=True, help="Then it gives back what it runs.")
def start(id: str, restart: bool, now: bool) -> None:
    """Start a worker, and again whenever it ends."""
    if restart:
        kept.stop(id, now=now)
    kept.start(id)
    click.echo(f"{id} runs; its log: {kept.folder(id) / 'log'}")


@background.command()
@click.argument("id", metavar="ID")
@click.option("--now", is_flag=True, help="Give back what it runs.")
def stop(id: str, now: bool) -> None:
    """Let a worker finish what it runs, and end."""
    click.echo(f"{id} is stopped." if kept.stop(id, now=now) else f"{id} does not run.")


@background.command()
@click.argument("id", metavar="ID")
def status(id: str) -> None:
    """Say whether a worker is kept running; exit code 1 if not."""
    if not kept.is_running(id):
        raise Unavailable(f"{id} does not run.")
    click.echo(f"{id} runs.")
