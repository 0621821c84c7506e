"""What runs now, in one answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from apiflask import APIBlueprint
from flask import Response

from aeo import workers
from aeo.core.errors import NotFound
from aeo.core.model import WorkerState
from aeo.store import evaluations as store
from aeo.store.connection import Db
from aeo.store.evaluations import EvaluationStatus
from webapp.api.replies import reply
from webapp.api.schemas import DashboardOut
from webapp.site import current_site

#: Ended evaluations shown.
RECENT = 10
#: How many of the newest evaluations are searched for ended ones.
SEARCHED = 100

bp = APIBlueprint("dashboard", __name__, tag="Dashboard")


@bp.get("/dashboard/tasks")
@bp.output(DashboardOut)
@bp.doc(summary="Show what runs, what waits, and what ended last")
def tasks() -> Response:
    site = current_site()
    running = sorted(_open(site.db), key=lambda item: item.submitted_at, reverse=True)
    newest, _ = store.page(site.db, offset=0, limit=SEARCHED)
    pool = workers.views(site)
    present = [worker for worker in pool if worker.state is not WorkerState.LOST]
    return reply(
        {
            "evaluations": running,
            "recent": [item for item in newest if item.state.final][:RECENT],
            "slots": {
                "busy": sum(worker.busy for worker in present),
                "total": sum(worker.info.capacity.slots for worker in present),
            },
            "queued_batches": sum(worker.queued for worker in pool),
            "pending_trials": sum(item.pending for item in running),
            "workers": Counter(worker.state.value for worker in pool),
        }
    )


def _open(db: Db) -> Iterator[EvaluationStatus]:
    for id in store.open_ids(db):
        # One may be deleted meanwhile.
        with suppress(NotFound):
            yield store.get(db, id)
