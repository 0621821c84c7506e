"""``aeo doctor``: whether all is as it must be, on a machine or in the store."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

import click

from aeo import audit
from aeo.audit import Finding
from aeo.cli import place, show
from aeo.cli.answers import clean
from aeo.cli.client import own_token
from aeo.cli.processes import hide_secrets, read, settings
from aeo.codec import encode
from aeo.config import PREFIX, Config
from aeo.core.condition import Condition, Level
from aeo.core.errors import InputError, Unavailable
from aeo.embedded import server
from aeo.health import examination
from aeo.health.examination import CONTROLLER, ROLES, WORKER, Machine
from aeo.layout import Local, Shared

#: Faults shown of one evaluation; all are in the JSON.
MOST = 20
_MARKS = {Level.OK: ("ok", "green"), Level.WARNING: ("WARNING", "yellow"), Level.FAULT: ("FAULT", "red")}
_FLAGS = (
    *("shared_root", "broker_url", "jobs_dir", "host", "port", "controller_url", "auth_token", "local_root", "slots"),
    *("transfer_url", "transfer_password", "clean_above"),
)


@click.command(
    epilog="""\b
Without --store it looks at this machine: what its configuration (AEO_* and flags, as its services have them) makes it,
whether it can be that, and what to do where it cannot. It makes and changes nothing.
--store runs on the controller's machine, while it runs or not, and changes nothing. It compares the store, the
event log and the job folders: every planned trial is in exactly one state, none was committed twice.

\b
Exit codes: 0 all is right, 1 something is not, or a part is away; 2 wrong input. Warnings are no fault.

\b
Examples:
  aeo doctor
  aeo doctor --role worker --controller-url http://127.0.0.1:7380 --json
  aeo doctor --store
  aeo doctor --store my-evaluation --shared-root /srv/aeo
  aeo doctor --store --json"""
)
@click.argument("ids", nargs=-1, metavar="[ID|NAME]...")
@click.option("--store", is_flag=True, help="Check these evaluations, or all, in store and on disk.")
@click.option(
    "--role",
    "roles",
    multiple=True,
    type=click.Choice(ROLES),
    help="What this machine is; repeatable (default: what it is found to be).",
)
@settings(_FLAGS, {"broker_url": "The broker's address (default: the embedded server's)."})
@place.as_json
@click.pass_context
def doctor(
    ctx: click.Context, /, ids: tuple[str, ...], store: bool, roles: tuple[str, ...], as_json: bool, **flags: str | None
) -> None:
    """Check that all is as it must be: this machine, or with --store the evaluations."""
    if ids and not store:
        raise InputError("evaluations are checked in the store.", field="ID", fix="Add --store.")
    config = read(flags)
    hide_secrets()
    if store:
        with place.existing(config) as site:
            found = audit.check(site, ids)
        if as_json:
            show.as_json({"evaluations": [encode(item) for item in found]})
        else:
            _print(found)
        ctx.exit(int(any(item.faults for item in found)))
    config = replace(config, auth_token=config.auth_token or own_token(config, config.controller_url))
    ctx.exit(_machine(config, frozenset(roles) or _roles(config, flags), as_json=as_json))


def _roles(config: Config, flags: dict[str, str | None]) -> frozenset[str]:
    """What this machine is, by what lies here and what was set for it."""
    given = {name for name in _FLAGS if flags.get(name) or os.environ.get(PREFIX + name.upper())}
    roles = set()
    if "shared_root" in given or Shared(config.shared_root, config.shared_root).lock.is_file():
        roles.add(CONTROLLER)
    if given & {"local_root", "controller_url"} or Local(config.local_root).identity.is_file():
        roles.add(WORKER)
    return frozenset(roles)


def _machine(config: Config, roles: frozenset[str], *, as_json: bool) -> int:
    machine = Machine(config=config, roles=roles, broker_url=_broker(config))
    with show.busy("looking at this machine"):
        found = list(examination.examine(machine))
    worst = examination.worst(found)
    if as_json:
        show.as_json(
            {"roles": sorted(roles), "level": worst.value, "conditions": [encode(condition) for condition in found]}
        )
    else:
        _show(found, roles)
    return int(worst is Level.FAULT)


def _broker(config: Config) -> str:
    if config.broker_url:
        return config.broker_url
    try:
        return server.address(config.shared_root.resolve() / "redis")
    except (Unavailable, OSError):
        return ""


def _show(found: Sequence[Condition], roles: frozenset[str]) -> None:
    what = " and ".join(sorted(roles)) or "any machine of a pool (see --role)"
    click.echo(f"Looked at as {what}:")
    wide = max(len(condition.about) for condition in found)
    for condition in found:
        mark, color = _MARKS[condition.level]
        click.echo(f"  {click.style(f'{mark:<8}', fg=color)}{condition.about:<{wide}}  {clean(condition.text)}")
        if condition.fix:
            click.echo(f"  {'':<8}{'':<{wide}}  -> {clean(condition.fix)}")
    counts = [(sum(item.level is level for item in found), level.value) for level in (Level.FAULT, Level.WARNING)]
    click.echo(", ".join(f"{count} {name}{'' if count == 1 else 's'}" for count, name in counts) + ".")


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
