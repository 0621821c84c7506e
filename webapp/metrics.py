"""``/metrics``, for Prometheus.

It asks for a token as everything else does, a viewer's is enough: "from this machine" proves nothing, as workers'
tunnels and TLS proxies arrive from here too, and the names of workers are nobody's business. Make Prometheus a user of
its own: ``aeo user add prometheus --role viewer``.
"""

from __future__ import annotations

from flask import Blueprint, Response, request

from aeo import metrics
from webapp.api.health import ping
from webapp.site import current_site

PATH = "/metrics"

bp = Blueprint("metrics", __name__)


@bp.get(PATH)
def show() -> Response:
    """Show the state of now; also while the store is away."""
    site = current_site()
    text, content_type = metrics.page(site, alive=ping(site.db), accept=request.headers.get("Accept", ""))
    return Response(text, content_type=content_type)
