"""What the controller remembers of a machine it made a worker of, and how its last steps went. No secret is in it.

::

    <shared_root>/provisioned/<id>/
    ├── machine.json     where it is
    ├── entrance         digest of the token that lets it in
    ├── tunnel.json      how its tunnel is
    ├── progress.jsonl   its last steps
    └── lock             held while steps are done, however they end
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timezone

from aeo import codec, folders, lock
from aeo.core.errors import Conflict, InputError, NotFound
from aeo.layout import Shared
from aeo.provision.steps import Event, StepState

#: Bytes read of the last steps.
_LIMIT = 1024 * 1024


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine that was made a worker, and all that is needed to look after it."""

    #: The worker's.
    id: str
    #: ``[user@]host``, or a name of ``~/.ssh/config``.
    target: str
    #: 0: as ssh says.
    ssh_port: int = 0
    slots: int = 1
    #: The controller's address as that machine reaches it; "" is a tunnel.
    direct: str = ""
    #: The controller's port on that machine's loopback, if there is a tunnel.
    tunnel_port: int = 0
    #: Executors that must work there; none: all of this machine.
    executors: tuple[str, ...] = ()
    #: Everything is sent from here, nothing is fetched there.
    offline: bool = False
    #: Folder of ours there; "" until it was looked at.
    base: str = ""
    #: ``system``, ``user`` or ``plain``.
    service: str = ""
    #: AEO's there, and the mark of the very files; "" until it was installed.
    version: str = ""
    mark: str = ""
    #: Whether its tunnel is to be kept up now.
    tunnel: bool = False
    by: str = ""
    at: datetime | None = None

    @property
    def url(self) -> str:
        """The controller as that machine reaches it."""
        return self.direct or f"http://127.0.0.1:{self.tunnel_port}"

    @property
    def where(self) -> str:
        """For people."""
        return f"{self.target}:{self.ssh_port}" if self.ssh_port else self.target


@dataclass(frozen=True, kw_only=True)
class Line:
    """How a tunnel is."""

    up: bool
    #: Why it is not, and what to do.
    why: str = ""
    fix: str = ""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How the last steps of a machine went, or go."""

    #: ``provision``, ``upgrade`` or ``decommission``.
    what: str
    by: str
    started_at: datetime
    #: Somebody is at it.
    running: bool
    #: The last of each step, in their order.
    steps: tuple[Event, ...]

    @property
    def failed(self) -> Event | None:
        """The step that failed."""
        return next((event for event in self.steps if event.state is StepState.FAILED), None)

    @property
    def finished(self) -> bool:
        """It came to a good end."""
        return bool(self.steps) and self.steps[-1].step == END


#: Written when all steps are done.
END = "end"


@dataclass(frozen=True, kw_only=True)
class _Head:
    what: str
    by: str
    at: datetime


def machines(shared: Shared) -> list[Machine]:
    """Every machine that is remembered, by id."""
    with suppress(OSError):
        return [found for path in sorted(shared.provisioned.iterdir()) if (found := find(shared, path.name))]
    return []


def find(shared: Shared, id: str) -> Machine | None:
    """One machine; None when it is not remembered."""
    try:
        return codec.loads(Machine, (shared.machine(id) / "machine.json").read_bytes())
    except (OSError, InputError):
        return None


def get(shared: Shared, id: str) -> Machine:
    """One machine.

    Raises:
        NotFound: it is not remembered.
    """
    found = find(shared, id)
    if found is None:
        known = ", ".join(item.id for item in machines(shared)) or "none"
        raise NotFound(
            f"{id} was not made a worker by aeo provision.", field="WORKER", fix=f"Machines that were: {known}."
        )
    return found


def keep(shared: Shared, machine: Machine) -> None:
    """Remember a machine as it is now."""
    folder = shared.machine(machine.id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folders.write(folder / "machine.json", codec.dumps(machine))


def forget(shared: Shared, id: str) -> None:
    """Remember a machine no more."""
    folder = shared.machine(id)
    with suppress(OSError):
        (folder / "machine.json").unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def tidy(shared: Shared, id: str) -> None:
    """Remove what was written of steps for a machine that is not remembered, unless somebody is at it."""
    folder = shared.machine(id)
    if not (folder / "machine.json").exists() and not lock.is_held(folder / "lock"):
        shutil.rmtree(folder, ignore_errors=True)


def line(shared: Shared, id: str) -> Line | None:
    """How the machine's tunnel is; None when nobody keeps one."""
    try:
        return codec.loads(Line, (shared.machine(id) / "tunnel.json").read_bytes())
    except (OSError, InputError):
        return None


def set_line(shared: Shared, id: str, now: Line | None) -> None:
    """Say how it is; None: nobody keeps it."""
    path = shared.machine(id) / "tunnel.json"
    # The folder may be gone with the machine.
    with suppress(OSError):
        if now is None:
            path.unlink(missing_ok=True)
        else:
            folders.write(path, codec.dumps(now))


@contextmanager
def working(shared: Shared, id: str, what: str, *, by: str) -> Iterator[Callable[[Event], None]]:
    """Hold a machine while its steps are done; gives what writes them down.

    Raises:
        Conflict: somebody is at it already.
    """
    folder = shared.machine(id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        held = lock.hold(folder / "lock", what, field="--id")
        with held:
            progress = folder / "progress.jsonl"
            head = _Head(what=what, by=by, at=datetime.now(timezone.utc))
            folders.write(progress, codec.dumps(head) + "\n")

            def write(event: Event) -> None:
                with suppress(OSError), progress.open("a") as file:
                    file.write(codec.dumps(event) + "\n")

            yield write
            write(Event(step=END, state=StepState.DONE))
    except Conflict:
        raise Conflict(f"somebody is at {id} already.", field="--id", fix="Wait for its end.") from None


def progress(shared: Shared, id: str) -> Progress | None:
    """How its last steps went; None when there were none."""
    running = lock.is_held(shared.machine(id) / "lock")
    try:
        with (shared.machine(id) / "progress.jsonl").open("rb") as file:
            lines = file.read(_LIMIT).splitlines()
        head = codec.loads(_Head, lines[0])
    except (OSError, InputError, IndexError):
        return None
    last: dict[str, Event] = {}
    for text in lines[1:]:
        with suppress(InputError):
            event = codec.loads(Event, text)
            last[event.step] = event
    return Progress(what=head.what, by=head.by, started_at=head.at, running=running, steps=tuple(last.values()))
