"""``aeo flower``: Flower with the settings every process on the broker must share."""

from __future__ import annotations

import os
from importlib.util import find_spec

import click

from aeo.celery import make_app
from aeo.cli.parts import kept_token
from aeo.cli.processes import hide_secrets, read, settings
from aeo.config import Config
from aeo.core.errors import InputError
from aeo.embedded import server
from aeo.layout import Shared

#: Who signs in at Flower; the password is the controller's token.
USER = "aeo"

_TEXTS = {
    "shared_root": "The controller's folder, to find its broker and its token.",
    "auth_token": "Password of the user aeo (default: the controller's token, from its shared root).",
    "broker_url": "The broker, if the controller was given one.",
}


@click.command(
    epilog="""\b
Examples:
  aeo flower
  AEO_SHARED_ROOT=/srv/aeo aeo flower --port 5556

Sign in as aeo with the controller's token. Flower only looks: what it could change would be changed behind the
controller's back. Further settings are Flower's own FLOWER_* variables, which win."""
)
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=5555, show_default=True, help="Port to listen on.")
@settings(("shared_root", "auth_token", "broker_url"), _TEXTS)
def flower(address: str, port: int, **flags: str | None) -> None:
    """Run Flower until Ctrl-C or SIGTERM: workers, queues and messages as Celery sees them."""
    config = read(flags)
    hide_secrets()
    if find_spec("flower") is None:
        raise InputError("Flower is not installed.", fix="pip install 'agent-eval-orchestrator[flower]'")
    _run(config, address, port, config.auth_token or kept_token(config))


def _run(config: Config, address: str, port: int, token: str) -> None:
    # Here, so that other commands do not load it.
    import flower.options
    from tornado.options import options

    del flower
    broker = config.broker_url or server.address(Shared(config.shared_root.resolve(), config.shared_root).redis)
    # Not by argument, where `ps` would show the token.
    options.basic_auth = [f"{USER}:{token}"]
    options.address, options.port, options.read_only = address, port, True
    # Flower guards pages by this alone, and its API too.
    os.environ.pop("FLOWER_UNAUTHENTICATED_API", None)
    make_app(broker, worker="flower").start(argv=["flower"])
