"""The controller's folder and store, for commands that work on its machine without asking it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from aeo.config import Config
from aeo.core.errors import InputError
from aeo.embedded import server
from aeo.layout import Shared
from aeo.site import Site
from aeo.store.connection import connect

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
#: Settings that say where the controller is.
WHERE = ("shared_root", "broker_url")


@contextmanager
def existing(config: Config) -> Iterator[Site]:
    """Open the site of a controller that was started before; makes nothing.

    Raises:
        InputError: the folder is no controller's.
        Unavailable: the store does not answer.
    """
    root = config.shared_root.resolve()
    shared = Shared(root, (config.jobs_dir or root / "jobs").resolve())
    if not shared.evaluations.is_dir() or not shared.inbox.is_dir():
        raise InputError(
            f"{root} is no controller's folder.",
            field="--shared-root",
            fix="Run this on the controller's machine and name its shared root.",
        )
    url = config.broker_url or server.address(shared.redis)
    db = connect(url)
    try:
        yield Site(config=replace(config, shared_root=root, broker_url=url), shared=shared, db=db)
    finally:
        db.close()
