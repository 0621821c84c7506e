"""What runs now, in one answer, and what to look at."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import alerts, overview
from aeo.core import alerts as core
from aeo.core.alerts import Alert
from aeo.store import evaluations as store
from webapp.api.replies import reply
from webapp.api.schemas import AlertsOut, DashboardOut
from webapp.site import current_site

#: Ended evaluations shown.
RECENT = 10
#: How many of the newest evaluations are searched for ended ones.
SEARCHED = 100

bp = APIBlueprint("dashboard", __name__, tag="Dashboard")


@bp.get("/dashboard/tasks")
@bp.output(DashboardOut)
@bp.doc(summary="Show what runs, what waits, what to look at, and what ended last")
def tasks() -> Response:
    site = current_site()
    seen = overview.look(site)
    newest, _ = store.page(site.db, offset=0, limit=SEARCHED)
    return reply(
        {
            "evaluations": [item.status for item in seen.open],
            "ends": {item.status.id: item.end for item in seen.open},
            "recent": [item for item in newest if item.state.final][:RECENT],
            "slots": {"busy": seen.busy, "total": seen.slots},
            "queued_batches": seen.queued,
            "pending_trials": seen.pending,
            "workers": {state.value: count for state, count in seen.workers.items()},
            "alerts": [_worded(alert) for alert in seen.alerts],
        }
    )


@bp.get("/alerts")
@bp.output(AlertsOut)
@bp.doc(summary="List what somebody should look at, the worst first")
def index() -> Response:
    return reply({"alerts": [_worded(alert) for alert in alerts.now(current_site())]})


def _worded(alert: Alert) -> dict[str, object]:
    return {
        "kind": alert.kind,
        "level": alert.level,
        "text": core.text(alert),
        "worker": alert.worker,
        "evaluation": alert.evaluation,
        "trial": alert.trial,
        "since": alert.since,
    }
