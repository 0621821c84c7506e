"""All that is looked at on one machine, in the order a person would repair it."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aeo import __version__, executors, lock
from aeo.config import Config
from aeo.core.condition import Condition, Level, fault, ok, warning
from aeo.core.errors import AeoError
from aeo.executors import care
from aeo.health import broker, controller, disk, enrolment, files, folder, port, program, secrets, transfer
from aeo.layout import Local, Shared

CONTROLLER, WORKER = "controller", "worker"
ROLES = (CONTROLLER, WORKER)
_PRUNE = "Remove old evaluations: `aeo prune --older-than 30d`; or move what else lies on that disk."
_CLEAN = "Restart the worker (above AEO_CLEAN_ABOVE it removes what is old), or move what else lies on that disk."


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a machine is to do, and how it is configured."""

    config: Config
    #: Some of `ROLES`; none: only what every machine needs is looked at.
    roles: frozenset[str]
    #: The broker as the controller reaches it; empty if its own was never started.
    broker_url: str = ""


def examine(machine: Machine) -> Iterator[Condition]:
    """Look at everything; a look that breaks is a fault of its own, and keeps no other from being made."""
    parts: list[tuple[str, Callable[[], Iterable[Condition]]]] = [("programs", lambda: _programs(machine))]
    if CONTROLLER in machine.roles:
        parts.append((CONTROLLER, lambda: _controller(machine)))
    if WORKER in machine.roles:
        parts.append((WORKER, lambda: _worker(machine)))
    slots = 0 if machine.roles == {CONTROLLER} else machine.config.slots
    parts.append(("executors", lambda: _executors(machine.config.local_root.absolute(), slots)))
    for name, look in parts:
        try:
            yield from look()
        except Exception as error:
            yield fault(name, f"cannot be looked at: {type(error).__name__}: {error}", "Tell it to AEO's makers.")


def worst(conditions: Sequence[Condition]) -> Level:
    """The worst level of all."""
    levels = {item.level for item in conditions}
    return next((level for level in (Level.FAULT, Level.WARNING) if level in levels), Level.OK)


def _programs(machine: Machine) -> Iterator[Condition]:
    yield from program.python()
    yield ok("aeo", __version__)
    yield program.judge(program.measure(*program.RSYNC))
    if machine.config.transfer_url.startswith("ssh://"):
        yield program.judge(program.measure(*program.SSH))
    yield files.judge(files.measure(), machine.config.slots)


def _controller(machine: Machine) -> Iterator[Condition]:
    config = machine.config
    root = config.shared_root.resolve()
    shared = Shared(root, (config.jobs_dir or root / "jobs").resolve())
    seen = folder.measure(root, (shared.token, shared.web_secret, shared.users, shared.secrets))
    yield from folder.judge(seen, about="shared root", flag="--shared-root")
    if seen.exists and not (seen.folder and seen.usable):
        return
    yield from _room({root, shared.jobs_dir}, config.clean_above, _PRUNE)
    yield from secrets.judge(config, shared)
    yield from enrolment.judge(shared)
    if lock.is_held(shared.lock):
        yield from _running(machine, shared)
        return
    yield from _port(config)
    if config.broker_url:
        yield from broker.judge(broker.measure(config.broker_url))
    if seen.exists and shared.evaluations.is_dir():
        fix = "Start it: `aeo controller` (or `aeo control` beside `aeo web`), or its service."
        yield warning("controller", "no control process runs here", fix)


def _port(config: Config) -> Iterator[Condition]:
    tried = port.measure(config.host, config.port)
    # A web process of its own holds no lock; it says what it is.
    if tried.error == errno.EADDRINUSE and controller.measure(_url(config), "").version:
        yield ok("port", f"{config.host}:{config.port} is a controller's")
    else:
        yield from port.judge(tried)


def _url(config: Config) -> str:
    """The controller's address on this machine."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(config.host, config.host)  # noqa: S104 compared, not listened on
    return f"http://[{host}]:{config.port}" if ":" in host else f"http://{host}:{config.port}"


def _running(machine: Machine, shared: Shared) -> Iterator[Condition]:
    config = machine.config
    if machine.broker_url:
        yield from broker.judge(broker.measure(machine.broker_url))
    token = config.auth_token
    if not token:
        with suppress(OSError):
            token = shared.token.read_text().strip()
    answer = controller.measure(_url(config), token)
    # Not the clock: it is the same machine's.
    yield from (item for item in controller.judge(answer, __version__) if item.about != "clock")


def _worker(machine: Machine) -> Iterator[Condition]:
    config = machine.config
    local = Local(config.local_root.absolute())
    seen = folder.measure(local.root)
    yield from folder.judge(seen, about="local root", flag="--local-root")
    if not seen.exists or (seen.folder and seen.usable):
        yield from _room({local.root, *_folders()}, config.clean_above, _CLEAN)
    yield from controller.judge(controller.measure(config.controller_url, config.auth_token), __version__)
    # What the controller would tell at registration can be tried by nothing but a registration.
    if config.broker_url and CONTROLLER not in machine.roles:
        yield from broker.judge(broker.measure(config.broker_url))
    if config.transfer_url:
        yield transfer.judge(transfer.measure(config.transfer_url, config.transfer_password))


def _room(folders: Iterable[Path], watermark: float, fix: str) -> Iterator[Condition]:
    """Judge the disks of these folders, each disk once."""
    seen: set[int] = set()
    for path in sorted(folders):
        try:
            room = disk.measure(path)
            device = room.path.stat().st_dev
        except OSError as error:
            yield fault("disk", f"{path} cannot be looked at: {error.strerror}", "See whether it is mounted.")
            continue
        if device not in seen:
            seen.add(device)
            yield from disk.judge(room, watermark=watermark, fix=fix)


def _folders() -> Iterator[Path]:
    for _, one in _careful():
        yield from one.folders()


def _executors(local_root: Path, slots: int) -> Iterator[Condition]:
    for name, one in _careful():
        try:
            yield from one.conditions(local_root, slots)
        except Exception as error:  # a plug-in's fault
            yield fault(name, f"the executor cannot look at this machine: {error}", "Tell it to the executor's makers.")


def _careful() -> Iterator[tuple[str, care.Care]]:
    for name in executors.installed():
        with suppress(AeoError, ImportError):
            found = care.care_of(executors.load(name))
            if found is not None:
                yield name, found
