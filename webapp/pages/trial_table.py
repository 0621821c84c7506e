"""The table of an evaluation's trials: everything about it is in the address."""

from __future__ import annotations

from typing import Any

from flask import request
from flask_babel import gettext as _

from aeo import charts, progress, summaries
from aeo.core.model import Outcome, TrialState
from aeo.site import Site
from aeo.store import evaluations as store
from aeo.store.evaluations import EvaluationStatus
from webapp.pages.addresses import with_query
from webapp.pages.words import name as word

#: Trials on one page.
ROWS = 50
#: What can be chosen in the form, beside the search and the state.
CHOICES = ("worker", "agent", "model", "error")
#: What only a link of this page filters by.
LINKED = ("task", "dataset", "category", "difficulty")

_STATES = (TrialState.PENDING, TrialState.RUNNING, TrialState.PUSHED)


def values(site: Site, status: EvaluationStatus) -> dict[str, Any]:
    """What the template needs. A value of the address that means nothing counts as not given."""
    offset = max(0, min(request.args.get("offset", 0, type=int), 10**9))
    sort = request.args.get("sort", "planned")
    filters: dict[str, Any] = {key: request.args[key] for key in (*CHOICES, *LINKED) if request.args.get(key)}
    search, state = request.args.get("search", "").strip()[:200], request.args.get("status", "")
    rows, total = progress.lines(
        site,
        status.id,
        offset=offset,
        limit=ROWS,
        sort=sort if sort in summaries.SORTS else "planned",
        descending=request.args.get("desc") == "1",
        search=search,
        **_of_state(state),
        **filters,
    )
    choices = _choices(site, status, filters)
    return {
        "trials": rows,
        "total": total,
        "offset": offset,
        "rows": ROWS,
        "search": search,
        "chosen": {**filters, "status": state},
        "choices": choices,
        "linked": [
            (word(key), filters[key], with_query(**{key: None, "offset": None})) for key in LINKED if key in filters
        ],
        "filtered": bool(search or state or filters),
        "columns": {key: key in choices for key in ("agent", "model")},
    }


def _of_state(asked: str) -> dict[str, Any]:
    """A state, or for what is done its outcome: one choice for people."""
    if asked in {state.value for state in _STATES}:
        return {"state": TrialState(asked)}
    if asked in {outcome.value for outcome in Outcome}:
        return {"outcome": Outcome(asked)}
    return {}


def _choices(site: Site, status: EvaluationStatus, filters: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    """The options of each select, for those where there is something to choose."""
    columns = charts.extent(site, status).columns
    shares = {item.batch.worker for item in store.batches(site.db, status.id)}
    found = {
        "worker": sorted(shares | summaries.worker_counts(site.book, status.id).keys()),
        "agent": sorted({column.agent for column in columns}),
        "model": sorted({column.model for column in columns}),
        "error": sorted({error.type for error in summaries.errors(site.book, status.id)}),
    }
    states = [(item.value, word(item)) for item in (*Outcome, *_STATES)]
    options = {"status": [("", _("All")), *states]}
    for key, items in found.items():
        known = [item for item in items if item]
        if key in filters and filters[key] not in known:
            known.append(filters[key])
        if len(known) > 1 or key in filters or (key == "error" and known):
            options[key] = [("", _("All")), *((item, item) for item in known)]
    return options
