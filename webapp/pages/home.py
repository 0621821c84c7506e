"""The first page: evaluations with their progress, and the workers."""

from __future__ import annotations

from flask import Blueprint, render_template, request

from aeo import workers
from aeo.core.model import Outcome
from aeo.store import evaluations as store
from webapp.site import current_site

#: Evaluations on one page.
ROWS = 25

bp = Blueprint("home", __name__)


@bp.get("/")
def index() -> str:
    """Show the newest evaluations and all workers."""
    site = current_site()
    offset = max(0, min(request.args.get("offset", 0, type=int), 10**9))
    found, total = store.page(site.db, offset=offset, limit=ROWS)
    return render_template(
        "home.html",
        evaluations=found,
        total=total,
        offset=offset,
        rows=ROWS,
        Outcome=Outcome,
        workers=workers.views(site),
        live=any(not item.state.final for item in found),
    )
