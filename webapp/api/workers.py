"""Workers: registration, the list, what a person wants of them."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import codec, workers
from aeo.core.model import WorkerInfo
from aeo.core.names import check_name
from aeo.store import workers as store
from aeo.workers import WorkerView
from webapp.api.replies import reply
from webapp.api.schemas import (
    AddressesOut,
    NoteIn,
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
    return reply({"workers": workers.views(current_site())})


@bp.post("/workers")
@bp.input(WorkerIn, arg_name="body")
@bp.output(AddressesOut)
@bp.doc(
    summary="Register a worker, at each of its starts",
    description="The answer has the broker's address with its password: what this token is trusted with.",
    responses={409: "A live worker has this id, or a person removed this one"},
)
@needs(Role.ADMIN)
def register(body: WorkerIn) -> Response:
    site = current_site()
    info = codec.decode(WorkerInfo, body.model_dump())
    check_entrance(info.id)
    workers.admit(site, info)
    config = site.config
    return reply(
        {
            "broker_url": config.worker_broker_url or config.broker_url,
            "transfer_url": config.transfer_url or str(site.shared.root),
            "transfer_password": config.transfer_password,
            "lease_seconds": config.lease_seconds,
            "grace_seconds": config.grace_seconds,
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


@bp.post("/workers/<worker_id>/allow")
@bp.output(RemovedWorkersOut)
@bp.doc(
    summary="Let a removed worker in again",
    description="It registers at its next heartbeat. The answer lists who is still kept out.",
    responses={404: "None of this id is kept out"},
)
@needs(Role.ADMIN)
def allow(worker_id: str) -> Response:
    workers.allow(current_site(), _checked(worker_id))
    return removed()


@bp.get("/removed-workers")
@bp.output(RemovedWorkersOut)
@bp.doc(summary="List the worker processes that were removed and are kept out")
def removed() -> Response:
    return reply({"removed": store.removed(current_site().db)})


@bp.get("/workers/<worker_id>")
@bp.output(WorkerDetailOut)
@bp.doc(summary="Look at one worker: its last hour, what it runs, what waits for it", responses={404: "No such worker"})
def show(worker_id: str) -> Response:
    return reply(workers.detail(current_site(), _checked(worker_id)))


def _checked(worker_id: str) -> str:
    return check_name(worker_id, "worker id", field="id")


def _shown(view: WorkerView) -> Response:
    return reply({"worker": view})
