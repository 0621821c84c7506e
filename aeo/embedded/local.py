"""A controller, and workers beside it, as child processes of this one."""

from __future__ import annotations

import logging
import os
import platform
import secrets
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import httpx

from aeo import credentials, folders, lock, reach
from aeo.config import Config
from aeo.core.errors import AeoError, InputError, Unavailable
from aeo.core.names import check_name
from aeo.embedded import log_files, server
from aeo.embedded.children import Crew, Part
from aeo.layout import Shared
from aeo.store import workers
from aeo.store.connection import connect
from aeo.transfer import remote

log = logging.getLogger(__name__)

#: Seconds the web process gets to answer after its start.
READY_SECONDS = 60.0
#: Seconds between two looks whether the embedded server lives: it may be killed when memory is short.
SERVER_LOOK_SECONDS = 0.5
#: Before a worker's id, in the name of its process.
_PREFIX = "worker "


@dataclass(frozen=True, kw_only=True)
class Controller:
    """A running one. Its configuration is complete: token and broker are known."""

    config: Config
    shared: Shared
    crew: Crew
    #: Where a browser or a worker on this machine reaches it.
    url: str
    #: Tells its own web process from any other at that address.
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    #: Folder of the children's output; None: ours.
    logs: Path | None = None

    def add_worker(self, id: str, slots: int) -> None:
        """Start a worker on this machine; it registers by itself."""
        config = replace(
            self.config,
            controller_url=self.url,
            worker_id=check_name(id, "worker id", field="--worker"),
            display_name="",
            host=platform.node(),
            local_root=self.shared.worker(id),
            slots=slots,
            # It signs in as itself, with what it is told when it registers.
            broker_url=credentials.without_credentials(self.config.broker_url),
            # What the controller answers is right for a worker beside it.
            transfer_url="",
            transfer_password="",
            # None of a worker's business.
            notify_url="",
            smtp_url=Config.smtp_url,
            secrets_key_file=None,
        )
        self.crew.start(
            Part(name=_PREFIX + id, role="worker", config=config, patience=None, output=self.output(f"worker.{id}"))
        )

    def end_worker(self, id: str) -> None:
        """Let a worker that was added finish what it runs, and end."""
        self.crew.end(_PREFIX + id)

    def added(self) -> list[str]:
        """Ids of the workers that were added and are not gone."""
        return [name[len(_PREFIX) :] for name in self.crew.names() if name.startswith(_PREFIX)]

    def boots(self) -> dict[str, str]:
        """Ids of the workers that are alive, each with its boot; none while the store is away."""
        with suppress(Unavailable), closing(connect(self.config.broker_url)) as db:
            return {status.info.id: status.info.boot for status in workers.all(db) if status.heartbeat}
        return {}

    def output(self, name: str) -> Path | None:
        """Where a child's output goes."""
        return None if self.logs is None else self.logs / f"{name}.log"


@contextmanager
def controller(config: Config, *, logs: Path | None = None) -> Iterator[Controller]:
    """Run a controller until the context is left: server if none is configured, web process, control process.

    Raises:
        Conflict: one runs on the same shared root.
        InputError: the configuration cannot work; a child has said why.
        Unavailable: something could not be started.
    """
    _check_addresses(config)
    root = folders.make(config.shared_root, field="--shared-root", mode=0o700)
    jobs = folders.make(config.jobs_dir or root / "jobs", field="--jobs-dir")
    config = replace(config, shared_root=root, jobs_dir=jobs)
    shared = Shared(root, jobs)
    with lock.hold(shared.lock, "controller", field="--shared-root"), _served(config, shared) as config:
        config = replace(config, auth_token=keep_token(shared.token, config.auth_token))
        with Crew() as crew, log_files.kept_short(lambda: _log_files(shared, logs)):
            made = Controller(config=config, shared=shared, crew=crew, url=_url(config), logs=logs)
            for role in ("control", "web"):
                own = {"AEO_INSTANCE": made.instance}
                crew.start(Part(name=role, role=role, config=config, output=made.output(role), environment=own))
            _await_answer(made)
            yield made


def _log_files(shared: Shared, logs: Path | None) -> list[Path]:
    return [shared.redis / "server.log", *(logs.glob("*.log") if logs else ())]


def _start(shared: Shared) -> server.Server:
    """Start the server, or attach to it; it knows no worker's credentials but by us."""
    started = server.start(shared.redis)
    with closing(connect(started.url)) as db:
        credentials.restore(shared, db)
    return started


@contextmanager
def _served(config: Config, shared: Shared) -> Iterator[Config]:
    if config.broker_url:
        yield config
        return
    # Attached or not, it is stopped with us: who holds the root's lock is the only one that uses it.
    running, over = [_start(shared)], threading.Event()

    def watch() -> None:
        while not over.wait(SERVER_LOOK_SECONDS):
            if server.runs(shared.redis):
                continue
            try:
                running[0] = _start(shared)
                log.error("the embedded server was gone; it was started again")
            except (AeoError, OSError) as error:
                log.error("the embedded server is gone and cannot be started: %s", error)

    watcher = threading.Thread(target=watch, name="server", daemon=True)
    watcher.start()
    try:
        yield replace(config, broker_url=running[0].url)
    finally:
        over.set()
        watcher.join()
        server.stop(running[0])


def _check_addresses(config: Config) -> None:
    """See that the addresses given by hand can be used, before anything is made."""
    if config.transfer_url:
        remote.parse(config.transfer_url)
    if config.broker_url:
        try:
            reach.broker(config.broker_url)
        except Unavailable as error:
            message = str(error).rstrip(".") + "."
            raise InputError(message, field="--broker-url", fix="Is it running? Else check --broker-url.") from None


def keep_token(path: Path, given: str) -> str:
    """The token in force, kept here for the command line: the one given, else the one made at the first start."""
    kept = path.read_text().strip() if path.exists() else ""
    token = given or kept or secrets.token_urlsafe(32)
    if token != kept:
        draft = path.with_name(f".{path.name}.new")
        draft.unlink(missing_ok=True)
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(token + "\n")
        draft.replace(path)
    return token


def _url(config: Config) -> str:
    host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(config.host, config.host)  # noqa: S104
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _await_answer(made: Controller) -> None:
    deadline = time.monotonic() + READY_SECONDS
    with httpx.Client(trust_env=False, timeout=5) as client:
        while time.monotonic() < deadline:
            made.crew.check()
            with suppress(httpx.HTTPError, ValueError, AttributeError):
                answer = client.get(f"{made.url}/api/health")
                # Another controller may have the port: ours then ends, and says why.
                if answer.is_success and answer.json().get("instance") == made.instance:
                    return
            made.crew.failed.wait(0.1)
    raise Unavailable(f"The web process does not answer at {made.url}.")
