"""The dashboard: what runs and until when, what to look at, and everything there was."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, make_response, render_template, request
from flask_babel import gettext as _

from aeo import overview, progress, summaries
from aeo.core.model import EvaluationState, Outcome, WorkerState
from aeo.site import Site
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import Score
from webapp.auth import Role, current_user
from webapp.pages import alert_words
from webapp.pages.addresses import with_query
from webapp.pages.words import name as word
from webapp.site import current_site

#: Evaluations on one page of the history.
ROWS = 25
#: Alerts shown at once; the others are folded.
ALERTS = 6
#: Letters of a search.
LONGEST_SEARCH = 200
#: In place of a state: every one that is not final.
OPEN = "open"

bp = Blueprint("home", __name__)


@bp.get("/")
def index() -> Response:
    """Show the dashboard, or the part of it that htmx asks for."""
    site = current_site()
    part = _part()
    if part:
        page = make_response(render_template(f"parts/home_{part}.html", **PARTS[part](site)))
        if "part" not in request.args:  # a person asked, not a poll
            page.headers["HX-Push-Url"] = _address()
        return page
    return make_response(render_template("home.html", **{**_now(site), **_history(site)}))


def _part() -> str:
    """The part that is asked for; "" for the whole page."""
    if "HX-Request" not in request.headers or "HX-History-Restore-Request" in request.headers:
        return ""
    asked = request.args.get("part") or request.headers.get("HX-Target", "")
    return asked if asked in PARTS else ""


def _address() -> str:
    """The present address without what means nothing: forms send their empty fields, too."""
    return with_query(**{key: None for key, value in request.args.items() if not value})


def _now(site: Site) -> dict[str, Any]:
    seen = overview.look(site)
    alerts = alert_words.shown(seen.alerts)
    return {
        "seen": seen,
        "alerts": alerts[:ALERTS],
        "more_alerts": alerts[ALERTS:],
        "workers": [(state, seen.workers[state]) for state in WorkerState if seen.workers.get(state)],
        "may_submit": current_user.may(Role.MEMBER),
        "new_address": f"{request.script_root}/evaluations/new",
        "workers_address": f"{request.script_root}/workers",
    }


def _history(site: Site) -> dict[str, Any]:
    search = request.args.get("q", "")[:LONGEST_SEARCH].strip()
    chosen, mine = request.args.get("state", ""), request.args.get("mine") == "1"
    offset = max(0, min(request.args.get("offset", 0, type=int), 10**9))
    found, total = progress.history(
        site,
        search=search,
        state=_states(chosen),
        owner=current_user.name if mine else None,
        offset=offset,
        limit=ROWS,
    )
    return {
        "evaluations": found,
        "scores": {item.id: _scores(site, item) for item in found},
        "total": total,
        "offset": offset,
        "rows": ROWS,
        "search": search,
        "chosen": chosen,
        "mine": mine,
        "filtered": bool(search or _states(chosen) or mine),
        "states": [("", _("all states")), (OPEN, _("not ended")), *((s.value, word(s)) for s in EvaluationState)],
        "longest_search": LONGEST_SEARCH,
        "infra_rate": overview.infra_rate,
        "Outcome": Outcome,
        "ask_history": _ask("history"),
        "home": f"{request.script_root}/",
        "new_address": f"{request.script_root}/evaluations/new",
        "may_submit": current_user.may(Role.MEMBER),
    }


def _scores(site: Site, status: EvaluationStatus) -> list[Score]:
    """The main reward of each agent, model and dataset, as far as something is scored."""
    if not status.outcomes.get(Outcome.SCORED):
        return []
    main: dict[str, Score] = {}
    for score in summaries.scores(site.book, status.id):
        main.setdefault(str(sorted(score.labels.items())), score)
    return list(main.values())


def _states(chosen: str) -> list[EvaluationState]:
    if chosen == OPEN:
        return [state for state in EvaluationState if not state.final]
    return [state for state in EvaluationState if state.value == chosen]


def _ask(part: str) -> str:
    """The present address, asking for one part only."""
    query = with_query().partition("?")[2]
    return f"{request.script_root}/?part={part}" + (f"&{query}" if query else "")


PARTS = {"now": _now, "history": _history}
