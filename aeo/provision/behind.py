"""The same steps in the background of a process that does other things: how they go stands in the record."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from aeo.core.errors import AeoError, Conflict
from aeo.provision import record, work
from aeo.provision.record import Machine
from aeo.provision.wish import Wish, machine_of, wish_of
from aeo.provision.work import Say
from aeo.site import Site

log = logging.getLogger(__name__)

#: Seconds for a thread to have written its first line.
_BEGIN_SECONDS = 20.0


def provision(site: Site, wish: Wish, *, by: str) -> Machine:
    """Begin to make a machine a worker, or go on with it; returns what it will be.

    Raises:
        InputError: the wish cannot be fulfilled as it is.
        Conflict: the id is another machine's, or somebody is at it.
    """
    machine = machine_of(site, wish, by=by)
    _begin(site, machine.id, lambda say: work.provision(site, wish, say, by=by, shown=True))
    return machine


def again(site: Site, id: str, *, by: str) -> None:
    """Go on where the last steps of a machine stopped.

    Raises:
        NotFound: it is not remembered.
        Conflict: somebody is at it.
    """
    provision(site, wish_of(record.get(site.shared, id)), by=by)


def upgrade(site: Site, id: str, *, by: str) -> None:
    """Begin to bring a worker to the AEO that runs here.

    Raises:
        NotFound: it was not provisioned.
        Conflict: somebody is at it.
    """
    record.get(site.shared, id)
    _begin(site, id, lambda say: work.upgrade(site, id, say, by=by))


def decommission(site: Site, id: str, *, by: str, now: bool = False, gone: bool = False) -> None:
    """Begin to take leave of a worker.

    Raises:
        NotFound: it was not provisioned.
        Conflict: somebody is at it.
    """
    record.get(site.shared, id)
    _begin(site, id, lambda say: work.decommission(site, id, say, by=by, now=now, gone=gone))


def _begin(site: Site, id: str, do: Callable[[Say], object]) -> None:
    if not work.is_idle(site.shared, id):
        raise Conflict(f"somebody is at {id} already.", field="id", fix="Wait for its end.")
    begun = threading.Event()
    refused: list[AeoError] = []

    def run() -> None:
        try:
            # All is written down already.
            do(lambda _: begun.set())
        except AeoError as error:
            log.error("%s: %s", id, error)
            if not begun.is_set():
                # Nothing is written down of it: another one came first, or what it starts from is gone.
                refused.append(error)
        except Exception:
            log.exception("unexpected failure while working on %s", id)
        finally:
            begun.set()

    threading.Thread(target=run, name=f"provision {id}", daemon=True).start()
    begun.wait(_BEGIN_SECONDS)
    if refused:
        raise refused[0]
