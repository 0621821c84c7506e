"""The process that had this worker's root before: what it left, where it is known to be dead.

Its trials are dead with it, and need not wait for their leases to end. It is known by the lock of the root, which the
kernel gives to nobody else before that process, and whatever it forked, has ended. So it is for one that had this very
lock on this running kernel, which is its seat. A copy of the root, the same root on another machine, or after a restart
of this one, may have been that of a process that lives: there the grace stays.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Set
from contextlib import suppress
from pathlib import Path
from typing import IO

from aeo import logs, outbox, records
from aeo.core.errors import AeoError, InputError
from aeo.core.model import Claim
from aeo.layout import Local, manifest_of, run_name
from aeo.leases import Hold
from aeo.sender import BACKLOG, Parcel
from aeo.site import WorkerSite
from aeo.store import trials
from aeo.store.trials import Requeued
from aeo.transfer import manifest as manifests

log = logging.getLogger(__name__)

#: Made anew by each start of the kernel, and the same in all its containers.
_KERNEL = Path("/proc/sys/kernel/random/boot_id")
#: Why its trials are given back.
REASON = "the worker's process died; another one has begun in its place"


def runs_left(local: Local, identity: IO[str]) -> frozenset[str]:
    """Names of the runs that were going on in this root, in a process that is dead; none where that is not known.

    ``identity`` is the file whose lock this process holds. What had begun to move to the outbox is no such run.
    """
    outbox.finish_moves(local)
    seat = _seat(identity)
    if not seat or _last_seat(local) != seat:
        return frozenset()
    return frozenset(path.name for path in local.batches.glob("*/*") if path.is_dir())


def take_seat(local: Local, identity: IO[str]) -> None:
    """Have the next process know by which lock this one had the root; once what was left in it is gone.

    Where something could not be removed that another seat's process had left, the next one must not take it for ours.
    And whoever has that seat next must not take what this one leaves for its own: that seat is given up first.

    Raises:
        InputError: it cannot be given up.
    """
    seat, last = _seat(identity), _last_seat(local)
    if last != seat:
        try:
            local.seat.unlink(missing_ok=True)
        except OSError as error:
            raise InputError(f"{local.seat} cannot be removed: {error.strerror}.", field="--local-root") from None
    if not seat or last == seat or any(local.batches.iterdir()):
        return
    part = local.seat.with_name(f".{local.seat.name}.part")
    # Without it the next process leaves it to the leases.
    with suppress(OSError):
        part.write_text(seat)
        part.replace(local.seat)


def _seat(identity: IO[str]) -> str:
    """The lock and the running kernel that keeps it; "" where the system does not say."""
    try:
        kernel = _KERNEL.read_text().strip()
    except OSError:
        return ""
    lock = os.fstat(identity.fileno())
    return f"{kernel} {lock.st_dev} {lock.st_ino}" if kernel else ""


def _last_seat(local: Local) -> str:
    try:
        return local.seat.read_text()
    except (OSError, ValueError):
        return ""


def give_back(site: WorkerSite, runs: Set[str]) -> int:
    """Give back the trials of these runs, before their leases end; returns how many.

    It counts against their requeues as a lease that ended does: a trial may be what killed the process.
    """
    given = 0
    for claim in _claims(site, runs):
        with logs.of_run(claim):
            try:
                given += _give_back(site, claim)
            except AeoError as error:
                log.warning("%s is given back when its lease ends: %s", claim.trial, error)
    if given:
        log.warning("given back, as the process that ran them died: %d trials", given)
    return given


def _give_back(site: WorkerSite, claim: Claim) -> bool:
    limit = records.header(site.local.evaluation(claim.evaluation)).spec.max_requeues
    where = (claim.evaluation, claim.trial, claim.token)
    answer = trials.requeue(site.db, *where, reason=REASON, max_requeues=limit)
    if answer is Requeued.EXHAUSTED:
        # What becomes of it is the controller's to decide: as soon as its lease has ended, so now.
        trials.renew(site.db, claim, lease_seconds=0)
    return answer is Requeued.AGAIN


def adopt(site: WorkerSite) -> int:
    """Send its finished runs as this process's own, with their leases kept until they have arrived; returns how many.

    Those that have no lease any more, and more than may be on their way at once, are left to the outbox.
    """
    adopted = 0
    waiting = {folder.name: folder for folder in outbox.unsent(site)}
    for claim in _claims(site, waiting.keys())[: BACKLOG * site.config.slots]:
        with logs.of_run(claim):
            try:
                _adopt(site, claim, waiting[run_name(claim.trial, claim.token)])
                adopted += 1
            except (AeoError, RuntimeError) as error:
                log.warning("the result of %s is left to the outbox: %s", claim.trial, error)
    return adopted


def _adopt(site: WorkerSite, claim: Claim, folder: Path) -> None:
    manifest = manifests.load(manifest_of(folder))
    hold = Hold(
        site.leases,
        site.db,
        claim,
        lease_seconds=site.config.lease_seconds,
        deadline_seconds=math.inf,
        stop_seconds=0.0,
        stop=lambda _: None,
        stopping=lambda: False,
    )
    hold.trial_over()
    parcel = Parcel(
        claim=claim,
        hold=hold,
        run_dir=folder,
        started_at=manifest.started_at,
        finished_at=manifest.finished_at,
        # It is in the outbox, and a cancel must not wait for a line that is away.
        gives_up=lambda _: hold.cancelled,
        give_back=lambda _: None,
        folder=folder,
    )
    hold.begin()
    try:
        site.sender.take(site, parcel)
    except BaseException:
        hold.end()
        raise


def _claims(site: WorkerSite, runs: Set[str]) -> list[Claim]:
    """Those of these runs that hold their trials still; none where the store does not say: their leases end."""
    if not runs:
        return []
    try:
        claims = trials.workers_claims(site.db, site.config.worker_id)
    except AeoError as error:
        log.warning("what the process before this one held is not known: %s", error)
        return []
    return [claim for claim in claims if run_name(claim.trial, claim.token) in runs]
