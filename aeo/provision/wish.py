"""What a person wants of a machine, and the machine as it is to be remembered then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone

from aeo import tunnel, workers
from aeo.core.errors import Conflict, InputError
from aeo.provision import install, record, serve
from aeo.provision.host import check_target
from aeo.provision.record import Machine
from aeo.provision.visit import settings_text
from aeo.rsyncd import modules
from aeo.site import Site
from aeo.transfer import remote, rsync


@dataclass(frozen=True, kw_only=True)
class Wish:
    """A machine that is to be a worker."""

    target: str
    ssh_port: int = 0
    #: "": the host's name.
    id: str = ""
    #: 0: as it was, else 1; likewise the tunnel's port and the usual one.
    slots: int = 0
    tunnel_port: int = 0
    #: The controller's address as that machine reaches it; "" is a tunnel.
    direct: str = ""
    executors: tuple[str, ...] = ()
    offline: bool = False
    #: More settings of the worker.
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)


def machine_of(site: Site, wish: Wish, *, by: str) -> Machine:
    """The machine as it is to be remembered.

    Raises:
        InputError: something in the wish is wrong.
        Conflict: the id is that of another machine.
    """
    check_target(wish.target)
    serve.check_direct(wish.direct)
    settings_text(wish.settings)
    install.check_executors(wish.executors)
    name = wish.id or wish.target.rpartition("@")[2].split(".")[0]
    id = workers.check_id(name, field="--id")
    known = record.find(site.shared, id)
    if known and (known.target, known.ssh_port) != (wish.target, wish.ssh_port):
        # Of a machine that was never looked at nothing is there.
        if known.base:
            fix = f"Give another id, or first: aeo decommission {id}"
            raise Conflict(f"{id} is {known.where}.", field="--id", fix=fix)
        known = None
    if not wish.direct:
        _check_transfer(site)
        _check_alone(site, id, wish)
    old = known or Machine(id=id, target=wish.target, ssh_port=wish.ssh_port)
    direct = wish.direct.rstrip("/")
    return replace(
        old,
        slots=wish.slots or old.slots,
        direct=direct,
        tunnel_port=0 if direct else wish.tunnel_port or old.tunnel_port or tunnel.CONTROLLER_PORT,
        tunnel=old.tunnel and not direct,
        executors=wish.executors or old.executors,
        offline=wish.offline or old.offline,
        by=by,
        at=datetime.now(timezone.utc),
    )


def wish_of(machine: Machine) -> Wish:
    """The wish that made it."""
    return Wish(
        target=machine.target,
        ssh_port=machine.ssh_port,
        id=machine.id,
        slots=machine.slots,
        tunnel_port=machine.tunnel_port,
        direct=machine.direct,
        executors=machine.executors,
        offline=machine.offline,
    )


def _check_alone(site: Site, id: str, wish: Wish) -> None:
    """A second tunnel to a machine would need ports there that the first one has."""
    name = wish.target.rpartition("@")[2]
    for other in record.machines(site.shared):
        there = (other.target.rpartition("@")[2], other.ssh_port) == (name, wish.ssh_port)
        if other.id != id and other.tunnel and there:
            where = f"{other.target} -p {other.ssh_port}" if other.ssh_port else other.target
            raise Conflict(
                f"{other.id} is on this machine already, with a tunnel: two workers there would need the same ports.",
                field="--id",
                fix=f"Let it run more trials at once: aeo provision {where} --id {other.id} --slots N",
            )


def _check_transfer(site: Site) -> None:
    url = modules.way(site.config, site.shared)
    if url and remote.parse(url).kind != "local":
        return
    if url or rsync.installed():
        fix = "Leave it out, on the controller too: it serves files itself."
    else:
        fix = "Install the package rsync here, and start the controller anew: it serves files itself then."
    raise InputError(
        "results go to a folder of this machine, which no tunnel carries.", field="--transfer-url", fix=fix
    )
