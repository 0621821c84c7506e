"""Whether the controller can work."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as Late
from typing import Any

from apiflask import APIBlueprint
from flask import Response

from aeo import __version__
from aeo.core.errors import Unavailable
from aeo.store import health
from aeo.store.connection import Db
from webapp.api.replies import reply
from webapp.api.schemas import HealthOut
from webapp.site import current_site

#: Seconds to wait for the store: less than what a load balancer allows.
PATIENCE = 2.0

bp = APIBlueprint("health", __name__, tag="Health")
_pings = ThreadPoolExecutor(max_workers=2, thread_name_prefix="ping")


@bp.get("/health")
@bp.output(HealthOut)
@bp.doc(summary="Tell whether the controller can work; needs no token", responses={503: "The store is away"})
def show() -> Response:
    alive = ping(current_site().db)
    body: dict[str, Any] = {
        "status": "ok" if alive else "unavailable",
        "redis": alive,
        "version": __version__,
        # Whoever started this process knows by it that it is the one who answers.
        "instance": os.environ.get("AEO_INSTANCE", ""),
    }
    return reply(body, 200 if alive else 503)


def ping(db: Db) -> bool:
    """Ask the store, for `PATIENCE` seconds at most, however patient its client is."""
    asked = _pings.submit(health.ping, db)
    try:
        return asked.result(timeout=PATIENCE)
    except (Late, Unavailable):
        asked.cancel()
        return False
