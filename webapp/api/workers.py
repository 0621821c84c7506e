"""Workers: registration, the list, what a person wants of them."""

from __future__ import annotations

from contextlib import suppress

from apiflask import APIBlueprint
from flask import Response

from aeo import codec, credentials, sharing, workers
from aeo.core.errors import AeoError
from aeo.core.model import WorkerInfo
from aeo.core.names import check_name
from aeo.rsyncd import modules
from aeo.store import workers as store
from aeo.workers import WorkerView
from webapp.api.replies import reply
from webapp.api.schemas import (
    AddressesOut,
    NoteIn,
    RegisterQuery,
    RemovedOut,
    RemovedWorkersOut,
    RemoveQuery,
    WeightIn,
    WorkerDetailOut,
    WorkerIn,
    WorkerOut,
    WorkersOut,
)
from webapp.auth import Role, check_entrance, current_user, needs
from webapp.site import current_site

bp = APIBlueprint("workers", __name__, tag="Workers")


@bp.get("/workers")
@bp.output(WorkersOut)
@bp.doc(summary="List the workers")
def index() -> Response:
    site = current_site()
    return reply({"workers": workers.views(site), "out": sharing.kept_out(site)})


@bp.post("/workers")
@bp.input(WorkerIn, arg_name="body")
@bp.input(RegisterQuery, location="query", arg_name="query")
@bp.output(AddressesOut)
@bp.doc(
    summary="Register a worker, at each of its starts",
    description=(
        "The answer has the broker's address with credentials of this worker's own, new ones each time: those of its "
        "earlier process end. Where the broker has no such users it has the broker's own password. The transfer "
        "address likewise, where the controller serves files itself."
    ),
    responses={409: "A live worker has this id, or a person removed or revoked this one"},
)
@needs(Role.ADMIN)
def register(body: WorkerIn, query: RegisterQuery) -> Response:
    site = current_site()
    info = codec.decode(WorkerInfo, body.model_dump())
    check_entrance(info.id)
    workers.admit(site, info)
    try:
        given = credentials.issue(site, info, again=query.again)
    except AeoError:
        # It gets no share of anything while it cannot sign in.
        with suppress(AeoError):
            store.leave(site.db, info.id, info.boot)
        raise
    config = site.config
    own = modules.offered(config, site.shared)
    return reply(
        {
            "broker_url": given.broker_url,
            "transfer_url": modules.address(site.shared, info.id)
            if own
            else config.transfer_url or str(site.shared.root),
            "transfer_password": given.files if own else config.transfer_password,
            "shared_root": str(site.shared.root) if own else "",
            "shared_mark": modules.mark(site.shared) if own else "",
            "lease_seconds": config.lease_seconds,
            "grace_seconds": config.grace_seconds,
            "kept": given.kept,
        }
    )


@bp.put("/workers/<worker_id>/weight")
@bp.input(WeightIn, arg_name="body")
@bp.output(WorkerOut)
@bp.doc(
    summary="Set a worker's weight in later allotments; null goes back to its capacity",
    responses={404: "No such worker"},
)
@needs(Role.ADMIN)
def set_weight(worker_id: str, body: WeightIn) -> Response:
    site = current_site()
    store.set_weight(site.db, _checked(worker_id), body.weight)
    return _shown(workers.view(site, worker_id))


@bp.post("/workers/<worker_id>/pause")
@bp.input(NoteIn, arg_name="body")
@bp.output(WorkerOut)
@bp.doc(
    summary="Pause a worker",
    description="It claims nothing until it is resumed, also after a restart; what it runs goes on.",
    responses={404: "No such worker"},
)
@needs(Role.ADMIN)
def pause(worker_id: str, body: NoteIn) -> Response:
    return _shown(workers.pause(current_site(), _checked(worker_id), by=current_user.name, note=body.note.strip()))


@bp.post("/workers/<worker_id>/resume")
@bp.output(WorkerOut)
@bp.doc(summary="Let a paused or draining worker take work again", responses={404: "No such worker"})
@needs(Role.ADMIN)
def resume(worker_id: str) -> Response:
    return _shown(workers.resume(current_site(), _checked(worker_id)))


@bp.post("/workers/<worker_id>/drain")
@bp.output(WorkerOut)
@bp.doc(
    summary="Drain a worker",
    description="It finishes what it runs and claims nothing more, until it is restarted or resumed.",
    responses={404: "No such worker"},
)
@needs(Role.ADMIN)
def drain(worker_id: str) -> Response:
    return _shown(workers.drain(current_site(), _checked(worker_id), by=current_user.name))


@bp.delete("/workers/<worker_id>")
@bp.input(RemoveQuery, location="query", arg_name="query")
@bp.output(RemovedOut)
@bp.doc(
    summary="Forget a worker",
    description=(
        "What it ran is given back to the others. Its process is told, stops what it runs, and stays out until it is "
        "started again or let in."
    ),
    responses={404: "No such worker", 409: "It is alive and runs trials"},
)
@needs(Role.ADMIN)
def remove(worker_id: str, query: RemoveQuery) -> Response:
    return reply({"removed": workers.remove(current_site(), _checked(worker_id), force=query.force)})


@bp.post("/workers/<worker_id>/revoke")
@bp.output(RemovedOut)
@bp.doc(
    summary="Take a worker's credentials away",
    description=(
        "Its connections are cut, what it ran is given back to the others, and no process of this id is let in until "
        "somebody allows it."
    ),
    responses={404: "No such worker"},
)
@needs(Role.ADMIN)
def revoke(worker_id: str) -> Response:
    return reply({"removed": workers.revoke(current_site(), _checked(worker_id))})


@bp.post("/workers/<worker_id>/allow")
@bp.output(RemovedWorkersOut)
@bp.doc(
    summary="Let a removed or revoked worker in again",
    description=(
        "A removed one registers at its next heartbeat, a revoked one at its next start. The answer lists who is still "
        "kept out."
    ),
    responses={404: "None of this id is kept out"},
)
@needs(Role.ADMIN)
def allow(worker_id: str) -> Response:
    workers.allow(current_site(), _checked(worker_id))
    return removed()


@bp.get("/removed-workers")
@bp.output(RemovedWorkersOut)
@bp.doc(summary="List who is kept out: processes of workers that were removed, and workers that were revoked")
def removed() -> Response:
    site = current_site()
    return reply({"removed": store.removed(site.db), "revoked": sorted(credentials.read(site).revoked)})


@bp.get("/workers/<worker_id>")
@bp.output(WorkerDetailOut)
@bp.doc(summary="Look at one worker: its last hour, what it runs, what waits for it", responses={404: "No such worker"})
def show(worker_id: str) -> Response:
    return reply(workers.detail(current_site(), _checked(worker_id)))


def _checked(worker_id: str) -> str:
    return check_name(worker_id, "worker id", field="id")


def _shown(view: WorkerView) -> Response:
    return reply({"worker": view})
