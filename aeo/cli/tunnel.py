"""``aeo tunnel``: brings a worker's machine to the controller by ssh."""

from __future__ import annotations

import click

from aeo import logs, tunnel
from aeo.cli.processes import hide_secrets, read, settings
from aeo.config import Config
from aeo.core.errors import InputError
from aeo.embedded import server
from aeo.embedded.children import interruptible
from aeo.layout import Shared
from aeo.rsyncd import modules

_TEXTS = {
    "shared_root": "The controller's folder, to find its embedded broker.",
    "broker_url": "The broker, if the controller was given one.",
    "worker_broker_url": "The broker's address told to workers, if the controller was given one.",
    "transfer_url": "Where the controller lets workers push results to, if it was told.",
}


@click.command(
    name="tunnel",
    epilog="""\b
Examples:
  aeo tunnel aeo@gpu-1
  aeo tunnel aeo@gpu-1 --ssh-port 2222 --port 18380 --transfer-url rsync://aeo@127.0.0.1:8873/aeo

Give it the controller's own settings, or run it in the same folder with the same AEO_* variables. Keys come from ssh's
agent or ~/.ssh/config; nothing is asked for.""",
)
@click.argument("target", metavar="USER@WORKERHOST")
@click.option(
    "--ssh-port", type=click.IntRange(1, 65535), help="Port of the worker host's sshd (default: as ssh says)."
)
@click.option(
    "--port",
    metavar="THERE[:HERE]",
    help="The controller's port on the worker's machine, and here [default: 17380:7380].",
)
@click.option(
    "--also", multiple=True, metavar="THERE[:HERE]", help="A further port of the worker's loopback to bring here."
)
@settings(("shared_root", "broker_url", "worker_broker_url", "transfer_url"), _TEXTS)
def tunnel_command(
    target: str, ssh_port: int | None, port: str | None, also: tuple[str, ...], **flags: str | None
) -> None:
    """Keep a worker's machine connected: the controller, its broker and rsync appear on that machine's loopback."""
    config = read(flags)
    hide_secrets()
    logs.to_stderr(config, process="tunnel")
    made = tunnel.plan(
        target,
        broker_url=_broker(config),
        transfer_url=modules.way(config, _shared(config)),
        controller=_ports(port or str(tunnel.CONTROLLER_PORT), "--port", config.port),
        more=[_ports(text, "--also") for text in also],
        ssh_port=ssh_port or 0,
    )
    told: list[bool] = []

    def is_up() -> None:
        if told:
            click.echo(f"The tunnel to {target} is up again.", err=True)
        else:
            _announce(made)
        told.append(True)

    with interruptible():
        try:
            tunnel.keep(made, is_up)
        except KeyboardInterrupt:
            click.echo("Stopped.", err=True)


def _broker(config: Config) -> str:
    return config.worker_broker_url or config.broker_url or server.address(_shared(config).redis)


def _shared(config: Config) -> Shared:
    return Shared(config.shared_root.resolve(), config.shared_root.resolve() / "jobs")


def _ports(text: str, flag: str, here: int | None = None) -> tuple[int, int]:
    """Read THERE[:HERE]; without HERE it is ``here``, or the same."""
    first, colon, second = text.partition(":")
    ports = [int(part) if part.isascii() and part.isdigit() else 0 for part in (first, second if colon else first)]
    if not all(0 < port < 65536 for port in ports):
        raise InputError(f"{text!r} is not THERE[:HERE].", field=flag)
    return ports[0], ports[1] if colon or here is None else here


def _announce(made: tunnel.Tunnel) -> None:
    for note in made.notes:
        click.echo(note, err=True)
    ports = ", ".join(f"{forward.there} ({forward.what})" for forward in made.forwards)
    click.echo(f"The tunnel is up: ports of {made.target}'s loopback that lead here: {ports}.", err=True)
    click.echo("There, with the controller's token in the file token, run:", err=True)
    click.echo(f"  {made.worker_command()}")
