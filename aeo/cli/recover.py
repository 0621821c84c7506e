"""``aeo recover``: the store made anew from what is on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import click

from aeo import audit, recovery
from aeo.cli import place, show
from aeo.cli.processes import hide_secrets, read, settings
from aeo.codec import encode
from aeo.site import Site
from aeo.store import audit as store_audit
from aeo.store import health


@dataclass(frozen=True, kw_only=True)
class Recovered:
    """What a recovery did."""

    #: The store was empty, or another, since it was last brought in line with the disk.
    wiped: bool
    #: Evaluations the store knew before.
    known: int
    #: Ids of those that were entered again.
    entered: tuple[str, ...]
    #: Ids of those on disk that the store still does not know: their files are damaged.
    damaged: tuple[str, ...]
    #: Trials found in job folders and entered as committed.
    adopted: int
    #: Results in the inbox that nobody had taken.
    arrived: int


@click.command(
    epilog="""\b
A controller does this by itself at its start and when it finds its store wiped. Doing it twice, or while the
controller runs, does no harm: what is committed stays, and never runs again.

\b
Exit codes: 0 done; 1 an evaluation's files are damaged, or a part is away; 2 wrong input.

\b
Examples:
  aeo recover
  aeo recover --shared-root /srv/aeo --json"""
)
@settings(place.WHERE, {"broker_url": "The broker's address (default: the embedded server's)."})
@place.as_json
@click.pass_context
def recover(ctx: click.Context, /, as_json: bool, **flags: str | None) -> None:
    """Rebuild the store from disk; runs on the controller's machine."""
    config = read(flags)
    hide_secrets()
    with place.existing(config) as site:
        done = run(site)
    if as_json:
        show.as_json({"recovered": encode(done)})
    else:
        _print(done)
    ctx.exit(int(bool(done.damaged)))


def run(site: Site) -> Recovered:
    """Recover, and tell what that changed. Where the controller recovers at the same moment, both did it.

    Raises:
        Unavailable: the store is away.
    """
    wiped = health.settled_seconds(site.db) is None
    arrived = sum(1 for _ in site.shared.inbox.glob("*/*.json"))
    before, _ = _look(site)
    recovery.recover(site)
    after, on_disk = _look(site)
    return Recovered(
        wiped=wiped,
        known=len(before),
        entered=tuple(sorted(set(after) - set(before))),
        damaged=tuple(sorted(on_disk - set(after))),
        adopted=sum(after.values()) - sum(before.values()),
        arrived=arrived,
    )


def _look(site: Site) -> tuple[Mapping[str, int], set[str]]:
    """Of each evaluation the store knows, how many trials were adopted; and the evaluations on disk."""
    stored, on_disk = audit.known_ids(site)
    return {id: store_audit.recovered(site.db, id) for id in stored}, set(on_disk)


def _print(done: Recovered) -> None:
    if done.wiped:
        click.echo("The store was wiped, or never in line with this folder.")
    click.echo(f"Evaluations known: {done.known}; entered again: {len(done.entered)}.")
    for id in done.entered:
        click.echo(f"  {id}")
    click.echo(
        f"Committed trials entered from job folders: {done.adopted}; results found in the inbox: {done.arrived}."
    )
    click.echo("Trials that wait are sent out by the controller.")
    for id in done.damaged:
        click.echo(f"Error: the files of {id} are damaged; it was left out.", err=True)
