"""The one configuration, read once from ``AEO_*`` variables and flags.

Every field ``some_name`` is set by the variable ``AEO_SOME_NAME`` or the flag ``--some-name``; a flag wins.
"""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from aeo.core.errors import InputError
from aeo.core.model import MOST_SLOTS

PREFIX = "AEO_"
#: This machine, as addresses name it: no proxy reaches it.
LOOPBACK = ("127.0.0.1", "localhost", "::1")
LOG_FORMATS = ("text", "json")
WORKER_CREDENTIALS = ("auto", "shared", "own")


@dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of a controller or a worker. Secrets are never shown by ``repr``."""

    #: Address and port of the controller's web process.
    host: str = "127.0.0.1"
    port: int = 7380
    #: The controller's runtime root: evaluations, tasks, inbox, embedded server.
    shared_root: Path = Path("aeo-data")
    #: Where merged jobs appear; empty means ``<shared_root>/jobs``.
    jobs_dir: Path | None = None
    #: The one token of the API and the pages; empty means: made at first start, kept in ``<shared_root>/token``.
    auth_token: str = field(default="", repr=False)
    #: Redis-protocol server; empty means the embedded one.
    broker_url: str = field(default="", repr=False)
    #: Broker address told to workers; empty means ``broker_url``.
    worker_broker_url: str = field(default="", repr=False)
    #: What workers sign in to the broker with: ``own`` credentials each, the ``shared`` password of the broker, or
    #: ``auto``, their own where the broker can.
    worker_credentials: str = "auto"
    #: Where workers push to: a path, ``ssh://user@host[:port]/path`` or ``rsync://user@host[:port]/module``.
    #: On a controller: the address told to workers (empty: its own shared root as a path).
    transfer_url: str = ""
    #: Password for ``rsync://``; passed to rsync by environment, never by argument.
    transfer_password: str = field(default="", repr=False)

    #: The controller as the worker and the command line reach it.
    controller_url: str = "http://127.0.0.1:7380"
    worker_id: str = platform.node().split(".")[0] or "worker"
    display_name: str = ""
    #: The worker's own scratch: tasks, running trials, outbox.
    local_root: Path = Path("aeo-worker")
    #: Trials at once on this worker.
    slots: int = 1
    #: What trials may declare together, in parts of the worker's cpus, memory and disk.
    overcommit: float = 1.0
    #: Trials at once in the phase that makes their environment; 0 leaves it to their executor.
    max_starting: int = 0
    #: Seconds between heartbeats.
    poll_interval: float = 5.0

    #: Seconds a lease lasts without renewal.
    lease_seconds: float = 60.0
    #: Seconds without a heartbeat before a worker is lost.
    grace_seconds: float = 60.0
    #: Seconds between two writes of a running job's result.json, at least.
    refresh_seconds: float = 3.0
    #: Seconds a running trial gets to stop before it is killed.
    stop_seconds: float = 10.0
    #: MiB. Larger files of a result stay on the worker and are listed in its notes.
    max_file_mb: float = 512.0
    #: MiB. What a configuration names beside its tasks (mounts, files of agents) may have together.
    max_asset_mb: float = 2048.0
    #: Share of its disk in use above which a worker removes what it no longer needs; 1 is never.
    clean_above: float = 0.85
    #: Days for which it keeps what may be of use again.
    clean_days: float = 7.0
    #: An evaluation is paused when more than the share of its last so many runs failed by infrastructure; 0 is never.
    breaker_runs: int = 20
    #: The same for a worker.
    worker_breaker_runs: int = 8
    #: Share of failed runs, above 0 and at most 1.
    breaker_share: float = 0.5
    #: Largest body of a request, bytes.
    max_body: int = 16 * 1024 * 1024
    #: A program of its own that shows job folders, as a browser reaches it (http or https); empty means none. ``{job}``
    #: stands for the job's name; without it, ``/jobs/<name>`` is added.
    viewer_url: str = ""
    #: A Flower that looks at the broker, as a browser reaches it (http or https); empty means none.
    flower_url: str = ""
    #: Names of variables of the controller's environment, comma-separated: their values are taken out of all that is
    #: committed and served.
    secret_names: tuple[str, ...] = ()
    #: Where the key is that `aeo secrets` are encrypted with, outside of the shared root; empty means
    #: ``aeo/secrets.key`` in this user's folder of configuration. Made at first use.
    secrets_key_file: Path | None = None
    #: Which secrets of its environment a worker tells the controller it has, by name, never by value: names, and
    #: patterns with ``*`` for names that look like secrets. ``-`` is none.
    tell_secrets: tuple[str, ...] = ("*",)
    #: Where it is posted, as JSON, that an evaluation finished or was paused or a worker was lost; empty means nowhere.
    #: Most chat programs' addresses are secrets, so this is one.
    notify_url: str = field(default="", repr=False)
    #: Who gets an e-mail of the same.
    notify_email: tuple[str, ...] = ()
    #: Its sender; empty means ``aeo@<this machine>``.
    notify_from: str = ""
    #: Mail server: ``smtp://[user:password@]host[:port]`` (encrypted where it offers that) or ``smtps://…``.
    smtp_url: str = field(default="smtp://127.0.0.1:25", repr=False)
    #: Lines of the log of the long-running processes: ``text`` or ``json``.
    log_format: str = "text"


def from_environment(environment: Mapping[str, str] | None = None, **flags: Any) -> Config:
    """Read the configuration; flags that are None do not count.

    Raises:
        InputError: a variable or flag has no valid value; the message names it.
    """
    environment = os.environ if environment is None else environment
    types = get_type_hints(Config)
    values: dict[str, Any] = {}
    for item in fields(Config):
        raw = flags.get(item.name)
        place = "--" + item.name.replace("_", "-")
        if raw is None:
            raw, place = environment.get(PREFIX + item.name.upper()), PREFIX + item.name.upper()
        if raw is None or raw == "":
            continue
        values[item.name] = _convert(raw, types[item.name], place)
    return _check(Config(**values))


def secret(said: str, field: str) -> str:
    """What a secret was given as: itself, or ``@FILE`` where it is.

    Raises:
        InputError: the file cannot be read, or is empty.
    """
    if not said.startswith("@"):
        return said
    path = Path(said[1:])
    try:
        text = path.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}.", field=field) from None
    if not text:
        raise InputError(f"{path} is empty.", field=field)
    return text


def _convert(raw: Any, wanted: Any, place: str) -> Any:
    if wanted in (Path, Path | None):
        return Path(raw).expanduser()
    if wanted == tuple[str, ...]:
        return tuple(part.strip() for part in raw.split(",") if part.strip()) if isinstance(raw, str) else tuple(raw)
    try:
        return wanted(raw)
    except (TypeError, ValueError):
        raise InputError(f"{raw!r} is no {wanted.__name__}.", field=place) from None


def _check(config: Config) -> Config:
    for name in (
        "slots",
        "overcommit",
        "poll_interval",
        "lease_seconds",
        "grace_seconds",
        "refresh_seconds",
        "stop_seconds",
        "max_file_mb",
        "max_asset_mb",
        "clean_days",
        "max_body",
    ):
        value = getattr(config, name)
        if not (math.isfinite(value) and value > 0):
            raise InputError("must be a finite number above 0.", field="--" + name.replace("_", "-"))
    if config.slots > MOST_SLOTS:
        raise InputError(f"must be a whole number from 1 to {MOST_SLOTS}.", field="--slots")
    if config.max_starting < 0:
        raise InputError("must be 0 or more.", field="--max-starting")
    if not 0 < config.breaker_share <= 1:
        raise InputError("must be above 0 and at most 1.", field="--breaker-share")
    if not 0 < config.clean_above <= 1:
        raise InputError("must be above 0 and at most 1.", field="--clean-above")
    for name, url in (("viewer", config.viewer_url), ("flower", config.flower_url)):
        if url and not url.startswith(("http://", "https://")):
            raise InputError("must begin with http:// or https://.", field=f"--{name}-url")
    _check_telling(config)
    if config.worker_credentials not in WORKER_CREDENTIALS:
        raise InputError("must be auto, shared or own.", field="--worker-credentials")
    if config.log_format not in LOG_FORMATS:
        raise InputError("must be text or json.", field="--log-format")
    if not 0 <= config.port < 65536:
        raise InputError("must be between 0 and 65535.", field="--port")
    return config


def _check_telling(config: Config) -> None:
    # None of the messages shows a value: these are secrets.
    if config.notify_url and not _is_address(config.notify_url, "http", "https"):
        raise InputError("must be an address that begins with http:// or https://.", field="--notify-url")
    if not _is_address(config.smtp_url, "smtp", "smtps"):
        raise InputError("must be smtp://[USER:PASSWORD@]HOST[:PORT] or smtps://….", field="--smtp-url")
    for name, address in (*(("email", one) for one in config.notify_email), ("from", config.notify_from or "@")):
        if "@" not in address or not address.isprintable() or any(mark in address for mark in ' ,;<>"'):
            raise InputError(f"{address!r} is no e-mail address.", field=f"--notify-{name}")


def _is_address(url: str, *schemes: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
