"""Workers: registration, the list, the weight."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import codec, workers
from aeo.core.errors import NotFound
from aeo.core.model import WorkerInfo
from aeo.core.names import check_name
from aeo.store import workers as store
from webapp.api.replies import reply
from webapp.api.schemas import AddressesOut, WeightIn, WorkerIn, WorkerOut, WorkersOut
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
    responses={409: "A live worker has this id"},
)
def register(body: WorkerIn) -> Response:
    site = current_site()
    check_name(body.id, "worker id", field="id")
    store.register(site.db, codec.decode(WorkerInfo, body.model_dump()), ttl_seconds=site.config.grace_seconds)
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
def set_weight(worker_id: str, body: WeightIn) -> Response:
    site = current_site()
    check_name(worker_id, "worker id", field="id")
    store.set_weight(site.db, worker_id, body.weight)
    changed = [view for view in workers.views(site) if view.info.id == worker_id]
    if not changed:
        raise NotFound(f"no worker {worker_id!r} is registered.", field="id")
    return reply({"worker": changed[0]})
