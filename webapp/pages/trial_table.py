"""The table of an evaluation's trials: everything about it is in the address."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from flask import request
from flask_babel import gettext as _

from aeo import charts, progress, summaries
from aeo.core.model import Outcome, TrialState
from aeo.site import Site
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
    columns = charts.extent(site, status).columns
    return {
        "trials": rows,
        "total": total,
        "offset": offset,
        "rows": ROWS,
        "search": search,
        "chosen": {**filters, "status": state},
        "linked": [
            (word(key), filters[key], with_query(**{key: None, "offset": None})) for key in LINKED if key in filters
        ],
        "filtered": bool(search or state or filters),
        "columns": {key: len({getattr(column, key) for column in columns}) > 1 for key in ("agent", "model")},
    }


def _of_state(asked: str) -> dict[str, Any]:
    """A state, or for what is done its outcome: one choice for people."""
    if asked in {state.value for state in _STATES}:
        return {"state": TrialState(asked)}
    if asked in {outcome.value for outcome in Outcome}:
        return {"outcome": Outcome(asked)}
    return {}


def choices(
    site: Site, status: EvaluationStatus, *, workers: Iterable[str], errors: Iterable[str]
) -> dict[str, list[tuple[str, str]]]:
    """The options of each select of the form, for those where there is something to choose."""
    columns = charts.extent(site, status).columns
    found = {
        "worker": sorted(workers),
        "agent": sorted({column.agent for column in columns}),
        "model": sorted({column.model for column in columns}),
        "error": sorted(errors),
    }
    states = [(item.value, word(item)) for item in (*Outcome, *_STATES)]
    options = {"status": [("", _("All")), *states]}
    for key, items in found.items():
        asked = request.args.get(key)
        known = [item for item in items if item]
        known += [asked] if asked and asked not in known else []
        if len(known) > 1 or asked or (key == "error" and known):
            options[key] = [("", _("All")), *((item, item) for item in known)]
    return options
