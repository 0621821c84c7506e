"""``aeo controller``, ``aeo worker``, ``aeo up``: the long-running programs."""

from __future__ import annotations

import ipaddress
import logging
import os
import platform
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields, replace
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from aeo import logs, processes
from aeo.cli.client import own_token
from aeo.cli.demo import demo
from aeo.cli.numbers import whole
from aeo.config import PREFIX, Config, from_environment, secret
from aeo.core.errors import InputError
from aeo.core.model import MOST_SLOTS
from aeo.core.scaling import Limits
from aeo.core.words import count
from aeo.embedded import local
from aeo.embedded.children import interruptible
from aeo.embedded.elastic import Elastic, elastic, scaled
from aeo.embedded.local import Controller
from aeo.scaling import LOCAL

__all__ = ["controller", "demo", "up", "worker"]

log = logging.getLogger(__name__)

_F = TypeVar("_F", bound=Callable[..., Any])

#: Settings that must not be read by everyone on the machine, as arguments can.
SECRETS = ("auth_token", "broker_url", "worker_broker_url", "transfer_password", "notify_url", "smtp_url")

#: What each flag means, for help.
_HELP: Mapping[str, str] = {
    "host": "Address to listen on.",
    "port": "Port to listen on.",
    "shared_root": "The controller's folder: evaluations, tasks, inbox, embedded server.",
    "jobs_dir": "Where merged jobs appear (default: jobs in the shared root).",
    "auth_token": "The token of API, pages and workers (default: made at first start, kept in the shared root).",
    "broker_url": "redis:// or rediss:// address of the broker (default: an embedded server).",
    "worker_broker_url": "The broker's address as workers reach it (default: the same).",
    "transfer_url": "Where workers push results to: a path, ssh://… or rsync://… (default: a daemon of its own).",
    "transfer_password": "Password for rsync://.",
    "worker_credentials": "What workers sign in to the broker with: own, shared, or auto (own where it can).",
    "lease_seconds": "How long a trial stays a silent worker's.",
    "grace_seconds": "Silence after which a worker counts as lost.",
    "refresh_seconds": "Least time between two updates of a running job's result.json.",
    "breaker_runs": "An evaluation is paused by its last so many runs; 0: never.",
    "worker_breaker_runs": "A worker is paused by its last so many runs; 0: never.",
    "breaker_share": "Share of those runs that must have failed by infrastructure, above 0 and at most 1.",
    "max_body": "Largest request body.",
    "max_asset_mb": "Most that the mounts and files which a configuration names beside its tasks may have, MiB.",
    "flower_url": "Address of a Flower, linked to from the workers' page.",
    "viewer_url": "Address of a viewer of job folders, linked to from evaluations; {job} in it is the job's name.",
    "secret_names": "Variables, comma-separated, whose values are taken out of all that is committed and shown.",
    "secrets_key_file": "The key of `aeo secrets`, outside of the shared root (default: ~/.config/aeo/secrets.key).",
    "tell_secrets": "Which of its keys a worker says it has, by name, never by value; -: none [default: *].",
    "notify_url": "A webhook that is told what finished, what was paused, which worker was lost.",
    "notify_email": "Addresses, comma-separated, that get the same by e-mail.",
    "notify_from": "The sender of e-mails (default: aeo at this machine's name).",
    "smtp_url": "Mail server: smtp:// or smtps://, [USER:PASSWORD@]HOST[:PORT] (default: this machine's, port 25).",
    "log_format": "Lines of the log: text, or json with evaluation, batch, trial and worker.",
    "controller_url": "The controller's address.",
    "worker_id": "The worker's id, unique among all.",
    "display_name": "Its name on pages (default: the id).",
    "local_root": "The worker's own folder: tasks, running trials, results not yet pushed.",
    "slots": "Trials at once.",
    "overcommit": "What trials may declare together, in parts of this machine's cpus, memory and disk.",
    "max_starting": "Trials at once in the phase that makes their environment; 0: as their executor advises.",
    "poll_interval": "Time between heartbeats.",
    "stop_seconds": "What a running trial gets to stop before it is killed.",
    "max_file_mb": "Largest file of a result that is sent home, MiB; larger ones stay here and are listed.",
    "clean_above": "Share of the disk in use above which old task copies, kept files and images are removed; 1: never.",
    "clean_days": "Days for which they are kept all the same.",
}
#: Units, where a flag's value has one.
_UNITS: Mapping[str, str] = {"poll_interval": "SECONDS", "max_body": "BYTES", "controller_url": "URL"}
_OF_WORKERS: Mapping[str, str] = {
    "host": "This machine's name on pages (default: its own name).",
    "shared_root": "Where the controller's folder is mounted here (default: at the path the controller says).",
    "auth_token": "The controller's token (default: on its own machine the one in its shared root).",
    "broker_url": "The broker's address (default: what the controller says).",
    "transfer_url": "Where results go: a path, ssh://… or rsync://… (default: what the controller says).",
}
_CONTROLLER = (
    *("host", "port", "shared_root", "jobs_dir", "auth_token", "broker_url", "worker_broker_url", "transfer_url"),
    "worker_credentials",
    *("transfer_password", "lease_seconds", "grace_seconds", "refresh_seconds", "breaker_runs", "worker_breaker_runs"),
    *("breaker_share", "max_body", "max_asset_mb", "viewer_url", "flower_url", "secret_names", "notify_url"),
    "notify_email",
    "secrets_key_file",
    *("notify_from", "smtp_url", "log_format"),
)
_WORKER = (
    *("controller_url", "worker_id", "display_name", "host", "shared_root", "local_root", "slots", "poll_interval"),
    *("overcommit", "max_starting"),
    *("auth_token", "broker_url", "transfer_url", "transfer_password", "stop_seconds", "max_file_mb"),
    *("clean_above", "clean_days"),
    *("secret_names", "tell_secrets", "log_format"),
)
_UP = ("host", "port", "shared_root", "jobs_dir", "auth_token", "slots", "poll_interval")


def settings(names: tuple[str, ...], texts: Mapping[str, str]) -> Callable[[_F], _F]:
    """A flag for each of these settings."""
    defaults = {item.name: item.default for item in fields(Config)}

    def option(name: str) -> Callable[[_F], _F]:
        text, default = {**_HELP, **texts}[name], defaults[name]
        if "default" not in text and isinstance(default, (str, int, float, Path)) and str(default):
            text += f" [default: {default}]"
        if name in SECRETS:
            text += " @FILE reads it from a file."
        flag = "--" + name.replace("_", "-")
        metavar = _UNITS.get(name) or name.split("_")[-1].upper()
        return click.option(flag, name, help=f"{text} [{PREFIX}{name.upper()}]", metavar=metavar)

    def apply(command: _F) -> _F:
        return reduce(lambda inner, name: option(name)(inner), reversed(names), command)

    return apply


def read(flags: Mapping[str, str | None], environment: Mapping[str, str] | None = None) -> Config:
    """The configuration from flags and ``AEO_*``; a secret may be named as ``@FILE`` in either.

    Raises:
        InputError: a value is not valid, or a file cannot be read.
    """
    environment = os.environ if environment is None else environment
    resolved = dict(flags)
    for name in SECRETS:
        value = resolved.get(name) or environment.get(PREFIX + name.upper(), "")
        if value.startswith("@"):
            resolved[name] = secret(value, "--" + name.replace("_", "-"))
    return from_environment(environment, **resolved)


def hide_secrets() -> None:
    """Run this program anew without the secrets among its arguments, if it was given any: `ps` shows arguments."""
    kept, found = _split(sys.orig_argv)
    if found:
        variables = {PREFIX + name.upper(): value for name, value in found.items()}
        os.execve(sys.executable, kept, {**os.environ, **variables})  # noqa: S606


def _split(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Arguments without the secrets' flags, and the secrets."""
    kept, found, rest = [], {}, iter(arguments)
    names = {"--" + name.replace("_", "-"): name for name in SECRETS}
    for argument in rest:
        flag, given, value = argument.partition("=")
        if flag in names:
            found[names[flag]] = value if given else next(rest, "")
        else:
            kept.append(argument)
    return kept, found


@click.command(
    epilog="""\b
Examples:
  aeo controller
  aeo controller --shared-root /srv/aeo --jobs-dir /srv/jobs
  AEO_BROKER_URL=redis://:password@10.0.0.5:6379/0 aeo controller"""
)
@settings(_CONTROLLER, {})
def controller(**flags: str | None) -> None:
    """Run the controller: web pages, API and the control process, until Ctrl-C or SIGTERM."""
    config = read(flags)
    hide_secrets()
    logs.to_stderr(config, process="controller")
    run(config)


@click.command(
    epilog="""\b
Examples:
  AEO_AUTH_TOKEN=... aeo worker --controller-url http://127.0.0.1:7380 --worker-id gpu-1 --slots 4
  aeo worker --auth-token @~/.aeo-token --transfer-url ssh://aeo@controller/srv/aeo

A token in an argument is seen by everyone on the machine for a moment: prefer AEO_AUTH_TOKEN or @FILE."""
)
@settings(_WORKER, _OF_WORKERS)
@click.pass_context
def worker(ctx: click.Context, /, **flags: str | None) -> None:
    """Run a worker on this machine until SIGTERM or Ctrl-C; a second signal gives running trials back."""
    named = flags["host"] or os.environ.get(f"{PREFIX}HOST")
    config = read({**flags, "host": named or platform.node()})
    found = "" if config.auth_token else own_token(config, config.controller_url)
    config = replace(config, auth_token=config.auth_token or found)
    mounted = flags["shared_root"] or os.environ.get(f"{PREFIX}SHARED_ROOT")
    hide_secrets()
    logs.to_stderr(config, process="worker", worker=config.worker_id)
    if found:
        log.info("the token is that of %s, where a controller of this machine keeps it", config.shared_root)
    ctx.exit(processes.worker(config, mounted=Path(mounted).expanduser() if mounted else None))


@click.command(
    epilog="""\b
Examples:
  aeo up
  aeo up --workers 3 --slots 2
  aeo up --worker big=8 --worker small=1
  aeo up --min-workers 1 --max-workers 6 --slots 2"""
)
@click.option("--workers", "count", type=click.IntRange(0), help="How many workers, each with --slots (default 1).")
@click.option("--worker", "named", multiple=True, metavar="NAME=SLOTS", help="A worker by name; repeatable.")
@click.option("--min-workers", "least", type=click.IntRange(1), help="Least workers that come and go [default: 1].")
@click.option("--max-workers", "most", type=click.IntRange(1), help="Most of them; they follow the trials that wait.")
@click.option("--provisioner", default=LOCAL, metavar="NAME", help=f"The plug-in that makes them [default: {LOCAL}].")
@settings(_UP, {"slots": "Slots of each worker that is not started by name."})
def up(
    count: int | None,
    named: tuple[str, ...],
    least: int | None,
    most: int | None,
    provisioner: str,
    **flags: str | None,
) -> None:
    """Run server, controller and workers on this machine, until Ctrl-C or SIGTERM."""
    config = read(flags)
    limits = _limits(least, most, count, config.slots)
    wanted = None if limits is None else elastic(limits, provisioner)
    workers = [_named(text) for text in named]
    more = count if count is not None else int(not workers and wanted is None)
    workers += [(f"worker-{place}", config.slots) for place in range(1, more + 1)]
    hide_secrets()
    logs.to_stderr(config, process="up")
    run(config, workers, wanted)


def _limits(least: int | None, most: int | None, count: int | None, slots: int) -> Limits | None:
    if least is None and most is None:
        return None
    if most is None:
        raise InputError("is needed with --min-workers.", field="--max-workers")
    if count is not None:
        raise InputError(
            "is not for workers that come and go.", field="--workers", fix="Leave it, or --max-workers, out."
        )
    if most < (least or 1):
        raise InputError("is below --min-workers.", field="--max-workers")
    return Limits(least=least or 1, most=most, slots=slots)


def _named(text: str) -> tuple[str, int]:
    name, _, slots = text.partition("=")
    number = whole(slots, 1, MOST_SLOTS)
    if not name or number is None:
        fix = f"Give NAME=SLOTS, such as a=4, SLOTS a whole number from 1 to {MOST_SLOTS}."
        raise InputError(f"{text!r} names no worker.", field="--worker", fix=fix)
    return name, number


def run(config: Config, workers: Sequence[tuple[str, int]] = (), wanted: Elastic | None = None) -> None:
    """Run a controller and these workers (id, slots), and others as ``wanted`` says, until a signal.

    Raises:
        AeoError: it could not start, or a part gave up.
    """
    processes.check_address(config)
    with interruptible() as hurry:
        try:
            with local.controller(config) as running:
                hurry.append(running.crew.hurry)
                _announce(config, running)
                _run_workers(running, workers)
                with nullcontext() if wanted is None else scaled(running, wanted):
                    if wanted is not None:
                        least, most = wanted.limits.least, wanted.limits.most
                        click.echo(f"{count(least, 'worker')} to {most}, as trials wait; Ctrl-C stops.", err=True)
                    while not running.crew.failed.wait(3600):
                        pass
                running.crew.check()
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)


def _run_workers(running: Controller, workers: Sequence[tuple[str, int]]) -> None:
    """Start these workers, and say when all are online."""
    boots = running.boots()
    for id, slots in workers:
        running.add_worker(id, slots)
    names = {id for id, _ in workers}
    while not names <= {id for id, boot in running.boots().items() if boots.get(id) != boot}:
        if running.crew.failed.wait(0.2):
            return
    if workers:
        slots = sum(slots for _, slots in workers)
        click.echo(f"{count(len(workers), 'worker')} ready ({count(slots, 'slot')}); Ctrl-C stops.", err=True)


def _announce(config: Config, running: Controller) -> None:
    click.echo(f"Controller: {running.url}", err=True)
    if not _loopback(config.host):
        click.echo(
            f"WARNING: {config.host} is reachable from other machines, over plain HTTP. Whoever reads the network gets "
            "the token, and with it runs programs on every worker. Prefer 127.0.0.1 behind SSH or a TLS proxy.",
            err=True,
        )
    if sys.stderr.isatty():
        click.echo(f"Sign in:    {running.url}/?token={running.config.auth_token}", err=True)
    else:
        # Not a terminal: a log, which others may read.
        click.echo(f"Its token is kept in {running.shared.token}.", err=True)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
