"""``aeo web``, ``aeo control``: the parts of a controller, each a program of its own, beside a broker of your own."""

from __future__ import annotations

import os
import time
from dataclasses import replace

import click

from aeo import folders, lock, logs, processes
from aeo.cli.client import Client, reach
from aeo.cli.numbers import Number
from aeo.cli.processes import hide_secrets, read, settings
from aeo.config import Config
from aeo.core.errors import InputError, Unavailable
from aeo.core.words import be, count
from aeo.embedded import local
from aeo.layout import Shared

_SHARED = ("shared_root", "jobs_dir", "auth_token", "broker_url", "worker_broker_url", "transfer_url")
_TIMES = ("lease_seconds", "grace_seconds", "refresh_seconds")
_TELLING = ("transfer_password", "lease_seconds", "grace_seconds")
_WEB = ("host", "port", *_SHARED, *_TELLING, "max_body", "max_asset_mb", "viewer_url")
_BREAKERS = ("breaker_runs", "worker_breaker_runs", "breaker_share")
_TEXTS = {"broker_url": "redis:// or rediss:// address of the broker; needed."}
#: Seconds between two looks of a command that waits.
_LOOK_SECONDS = 0.5


@click.command(
    epilog="""\b
Examples:
  aeo web --broker-url @/etc/aeo/broker --shared-root /srv/aeo
  aeo web --host 0.0.0.0      (in a container; its port is published on the host's loopback)

`aeo controller` runs this, `aeo control` and a broker together."""
)
@settings((*_WEB, "flower_url", "secret_names", "secrets_key_file"), _TEXTS)
@click.pass_context
def web(ctx: click.Context, /, **flags: str | None) -> None:
    """Run the web process alone: pages and API, until Ctrl-C or SIGTERM."""
    config = _prepare(read(flags))
    # Made here alone: two that make one at the same moment would hold different ones.
    token = local.keep_token(_shared(config).token, config.auth_token)
    logs.to_stderr(config, process="web")
    ctx.exit(processes.web(replace(config, auth_token=token)))


@click.command(
    epilog="""\b
Examples:
  aeo control --broker-url @/etc/aeo/broker --shared-root /srv/aeo

One on a shared root: a second one ends at once."""
)
@settings((*_SHARED, *_TIMES, *_BREAKERS, "secret_names", "secrets_key_file"), _TEXTS)
@click.pass_context
def control(ctx: click.Context, /, **flags: str | None) -> None:
    """Run the control process alone: commits, merges, repairs, until Ctrl-C or SIGTERM."""
    config = _prepare(read(flags))
    logs.to_stderr(config, process="control")
    with lock.hold(_shared(config).lock, "controller", field="--shared-root"):
        code = processes.control(config)
    ctx.exit(code)


def _prepare(config: Config) -> Config:
    """Make the folders."""
    hide_secrets()
    if not config.broker_url:
        fix = "Name one, or run `aeo controller`, which brings its own."
        raise InputError("is empty, and the parts have no embedded broker.", field="--broker-url", fix=fix)
    root = folders.make(config.shared_root, field="--shared-root", mode=0o700)
    jobs = folders.make(config.jobs_dir or root / "jobs", field="--jobs-dir")
    return replace(config, shared_root=root, jobs_dir=jobs)


def _shared(config: Config) -> Shared:
    return Shared(config.shared_root, config.jobs_dir or config.shared_root / "jobs")


@click.command(
    name="sign-in",
    epilog="""\b
Examples:
  aeo sign-in
  aeo sign-in --shown https://aeo.example.org
  aeo sign-in --workers 2

The address opens everything: it stands in no log, and belongs in none.""",
)
@click.option("--shown", metavar="URL", help="The controller's address as your browser reaches it (default: AEO_URL).")
@click.option("--workers", "wanted", type=click.IntRange(0), default=0, help="Wait until so many workers are online.")
@click.option("--patience", type=Number(0, 10**6), default=60.0, show_default=True, help="Seconds to wait at most.")
@settings(("shared_root", "auth_token"), {"auth_token": "The controller's token (default: from its shared root)."})
def sign_in(shown: str | None, wanted: int, patience: float, **flags: str | None) -> None:
    """Print an address that signs a browser in, once the controller answers."""
    config = read(flags)
    hide_secrets()
    url = os.environ.get("AEO_URL", "").strip() or config.controller_url
    token = config.auth_token or kept_token(config)
    client = reach(url, token)
    online = _await_workers(client, wanted, time.monotonic() + patience)
    if wanted:
        click.echo(f"{online} of {count(wanted, 'worker')} {be(wanted)} online.")
    click.echo(f"Sign in: {(shown or client.url).rstrip('/')}/?token={token}")


def kept_token(config: Config) -> str:
    """The token that a controller on this machine keeps in its shared root.

    Raises:
        InputError: there is none, or it is another user's.
    """
    path = _shared(config).token
    try:
        return path.read_text().strip()
    except (OSError, UnicodeDecodeError):
        fix = "Name the controller's shared root with --shared-root, or its token with --auth-token @FILE."
        raise InputError(f"{path} cannot be read.", field="--auth-token", fix=fix) from None


def _await_workers(client: Client, wanted: int, deadline: float) -> int:
    """Wait for the controller, and for so many workers; returns how many are online when that, or the time, is over."""
    while True:
        late = time.monotonic() >= deadline
        try:
            online = sum(1 for worker in client.workers()["workers"] if worker["state"] == "online")
            if online >= wanted or late:
                return online
        except Unavailable:
            if late:
                raise
        time.sleep(_LOOK_SECONDS)
