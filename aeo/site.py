"""What the code of one machine works with: its configuration, its folders, its connection to the store."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from aeo.config import Config
from aeo.layout import Local, Shared
from aeo.leases import Leases
from aeo.sender import Sender
from aeo.shelf import Shelf
from aeo.starts import Starts
from aeo.store.connection import Db, connect
from aeo.summaries import Book
from aeo.transfer.remote import Remote


@dataclass(frozen=True, kw_only=True)
class Site:
    """The controller's."""

    config: Config
    shared: Shared
    db: Db

    @cached_property
    def book(self) -> Book:
        """The summaries that every table is read from."""
        return Book(self.shared.summaries)


@dataclass(frozen=True, kw_only=True)
class WorkerSite:
    """A worker's."""

    config: Config
    local: Local
    db: Db
    #: Where results go and tasks come from.
    remote: Remote
    #: Asked between trials: why no further trial may be claimed; "" when it may.
    draining: Callable[[], str] = lambda: ""
    #: Asked between trials: why none may start for the moment; "" when one may.
    crowded: Callable[[], str] = lambda: ""
    #: Set when running trials must stop now and be given back.
    stopping: threading.Event = field(default_factory=threading.Event)
    #: The leases it holds.
    leases: Leases = field(default_factory=Leases)
    #: What sends finished runs, and the tokens of those it has.
    sender: Sender = field(default_factory=Sender)
    sending: set[str] = field(default_factory=set)
    #: The trials that are starting.
    starts: Starts = field(default_factory=Starts)
    #: What batches that gave their turn go on with, by their ids.
    resting: Shelf[Any] = field(default_factory=Shelf)


def open_site(config: Config) -> Site:
    """Open the controller's site: makes its folders (0700) and connects to the store.

    Raises:
        Unavailable: the store does not answer.
    """
    shared = Shared(config.shared_root.resolve(), (config.jobs_dir or config.shared_root / "jobs").resolve())
    shared.root.mkdir(parents=True, exist_ok=True, mode=0o700)
    for folder in (shared.evaluations, shared.tasks, shared.inbox, shared.jobs_dir):
        folder.mkdir(parents=True, exist_ok=True)
    return Site(config=config, shared=shared, db=connect(config.broker_url))
