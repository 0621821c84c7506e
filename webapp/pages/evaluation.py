"""One evaluation: how far, how well, where, and what went wrong.

The page is made of parts, each with what its template needs; those of `PARTS` are also answered alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

import yaml
from flask import Blueprint, Response, flash, make_response, redirect, render_template, request, url_for
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import charts, evaluations, progress, records, summaries
from aeo.codec import encode
from aeo.core.errors import Conflict
from aeo.core.model import Outcome, Spec
from aeo.core.names import check_name
from aeo.progress import EvaluationDetail
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import connection
from aeo.store import evaluations as store
from aeo.store.evaluations import EvaluationStatus
from aeo.submission import HEADER
from webapp.auth import Role, check_owner, current_user, may_change
from webapp.pages import trial_table
from webapp.pages.addresses import with_query
from webapp.pages.words import name as word
from webapp.site import current_site

#: What the table of groups can show, in the order of its tabs.
GROUPS = ("category", "difficulty", "agent", "model", "dataset")
#: Running trials shown.
LONGEST = 8
#: Trials beyond which groups are read only after the rest of the page is there.
LARGE = 2000
#: Words of the address that are not the table's: of the groups and of the heat map.
BY, TASKS = "by", "tasks"
#: Tells htmx to ask no more: nothing will change.
STOP_ASKING = 286
#: Where an evaluation is written, cloned and rerun.
NEW = "/evaluations/new"

bp = Blueprint("evaluation_page", __name__)


@bp.get("/evaluations/<id_or_name>")
def show(id_or_name: str) -> Response:
    """Show an evaluation, or the part of its page that htmx asks for."""
    site = current_site()
    status = progress.found(site, check_name(id_or_name, "evaluation", field="id"))
    part = _part()
    if part:
        page = render_template(f"parts/evaluation_{part}.html", **_common(status), **PARTS[part](site, status))
        response = make_response(page, STOP_ASKING if status.state.final else 200)
        if "part" not in request.args:  # a person asked, not a poll
            response.headers["HX-Push-Url"] = _address(part)
        return response
    values = _common(status)
    for make in PARTS.values():
        values |= make(site, status)
    values |= _heat(site, status) | _about(site, status, values)
    return make_response(render_template("evaluation.html", **values))


def _part() -> str:
    """The part that is asked for; "" for the whole page, which also every other request of htmx gets."""
    if "HX-Request" not in request.headers or "HX-History-Restore-Request" in request.headers:
        return ""
    asked = request.args.get("part") or request.headers.get("HX-Target", "")
    return asked if asked in PARTS else ""


def _address(part: str) -> str:
    """The page's address as it is to stand in the browser now: each part of the page changes its own words of it."""

    def own(key: str) -> bool:
        return key == BY if part == "groups" else key not in (BY, TASKS)

    try:
        shown = parse_qsl(urlsplit(request.headers.get("HX-Current-URL", "")).query)
    except ValueError:  # no address
        shown = []
    asked = [(key, value) for key, value in request.args.items() if value]
    query = [pair for pair in shown if not own(pair[0])] + [pair for pair in asked if own(pair[0])]
    path = request.script_root + request.path
    return f"{path}?{urlencode(query)}" if query else path


def _common(status: EvaluationStatus) -> dict[str, Any]:
    here = url_for("evaluation_page.show", id_or_name=status.id)
    return {
        "status": status,
        "final": status.state.final,
        "here": here,
        "ask": partial(_ask, here),
        "data": partial(_data, status.id),
        "trial_address": lambda trial: f"{here}/trials/{quote(trial, safe='')}",
        "new_address": request.script_root + NEW,
        "may_change": may_change(status),
        "may_submit": current_user.may(Role.MEMBER),
        "Outcome": Outcome,
    }


def _ask(here: str, part: str, **more: object) -> str:
    """The present address, asking for one part only."""
    query = with_query(**more).partition("?")[2]
    return f"{here}?part={part}" + (f"&{query}" if query else "")


def _data(id: str, what: str, **query: object) -> str:
    path = f"{request.script_root}/api/evaluations/{id}/{what}"
    return path + ("?" + "&".join(f"{key}={value}" for key, value in query.items()) if query else "")


def _about(site: Site, status: EvaluationStatus, parts: Mapping[str, Any]) -> dict[str, Any]:
    """What is not in a part, and so stays as it is until the page is opened again."""
    asked = records.header(site.shared.evaluation(status.id))
    return {
        "warnings": asked.plan.warnings,
        "configuration": _configuration(site, asked.spec),
        "choices": trial_table.choices(
            site, status, workers=parts["detail"].shares, errors=[error["type"] for error in parts["errors"]]
        ),
        "oob": False,
    }


def _configuration(site: Site, spec: Spec) -> str:
    header = {key: encode(getattr(spec, key)) for key in HEADER}
    text = yaml.safe_dump({**header, **encode(spec.config)}, sort_keys=False, allow_unicode=True, width=100)
    return hiding.redactor(site).text(text)


def _viewer(site: Site, status: EvaluationStatus) -> str:
    address, job = site.config.viewer_url, quote(status.name, safe="")
    if not address:
        return ""
    return address.replace("{job}", job) if "{job}" in address else f"{address.rstrip('/')}/jobs/{job}"


def _live(site: Site, status: EvaluationStatus) -> dict[str, Any]:
    detail = progress.detail(site, status.id)
    shared = {
        key: value
        for key, value in (detail.scores[0].labels.items() if detail.scores else ())
        if all(item.labels.get(key) == value for item in detail.scores)
    }
    return {
        "detail": detail,
        "now": connection.now(site.db),
        "scores": _scores(detail),
        # What all scores have in common is said once.
        "shared": shared,
        "told_apart": [
            key
            for key in ("agent", "model", "dataset")
            if key not in shared and any(key in item.labels for item in detail.scores)
        ],
        "running": sorted(detail.running, key=lambda run: run.started_at),
        "longest": LONGEST,
        "worker_counts": summaries.worker_counts(site.book, status.id),
        "errors": _errors(site, status),
        "viewer": _viewer(site, status),
        # Asked for alone it brings the parts along that are elsewhere on the page.
        "oob": True,
        "was": request.args.get("was", ""),
    }


def _scores(detail: EvaluationDetail) -> list[dict[str, Any]]:
    """One item for each reward; its coverage is what its own mean rests on."""
    return [
        {
            "labels": item.labels,
            "reward": name,
            "mean": item.means.get(name),
            "low": item.lows.get(name),
            "high": item.highs.get(name),
            "scored": item.counts.get(name, item.scored),
            "planned": item.planned,
        }
        for item in detail.scores
        for name in sorted(item.means, key=lambda name: (name != "reward", name)) or [""]
    ]


def _errors(site: Site, status: EvaluationStatus) -> list[dict[str, Any]]:
    """Each type once, with the outcomes it led to."""
    found: dict[str, dict[str, Any]] = {}
    for error in summaries.errors(site.book, status.id):
        known = found.setdefault(error.type, {"type": error.type, "outcomes": [], "count": 0})
        known["outcomes"].append(error.outcome)
        known["count"] += error.count
    return sorted(found.values(), key=lambda error: -error["count"])


def _heat(site: Site, status: EvaluationStatus) -> dict[str, Any]:
    return {
        "extent": charts.extent(site, status),
        "first": max(0, min(request.args.get(TASKS, 0, type=int), 10**9)),
    }


def _groups(site: Site, status: EvaluationStatus) -> dict[str, Any]:
    by = request.args.get(BY, GROUPS[0])
    by = by if by in GROUPS else GROUPS[0]
    later = status.total > LARGE and not _part()
    return {
        "group_by": by,
        "group_tabs": [(word(key).capitalize(), with_query(by=key), key == by) for key in GROUPS],
        "groups": None if later else summaries.groups(site.book, status.id, by),
    }


#: What may be asked for alone, by the id of its element: what its template needs beyond `_common`.
PARTS: Mapping[str, Callable[[Site, EvaluationStatus], dict[str, Any]]] = {
    "live": _live,
    "groups": _groups,
    "trials": trial_table.values,
}


@bp.post("/evaluations/<id>/cancel")
def cancel(id: str) -> AnyResponse:
    """Cancel it."""
    status = _own(id)
    return _done(
        status, lambda: evaluations.cancel(current_site(), status.id, by=current_user.name), _("It is being cancelled.")
    )


@bp.post("/evaluations/<id>/pause")
def pause(id: str) -> AnyResponse:
    """Let no further trial start."""
    status = _own(id)
    reason = request.form.get("reason", "").strip()[:1000]
    return _done(
        status,
        lambda: evaluations.pause(current_site(), status.id, reason, by=current_user.name),
        _("It is paused. What runs goes on to its end."),
    )


@bp.post("/evaluations/<id>/resume")
def resume(id: str) -> AnyResponse:
    """Let trials start again."""
    status = _own(id)
    return _done(status, lambda: evaluations.resume(current_site(), status.id, by=current_user.name), _("It goes on."))


def _own(id: str) -> EvaluationStatus:
    status = store.find(current_site().db, check_name(id, "evaluation", field="id"))
    check_owner(status)
    return status


def _done(status: EvaluationStatus, act: Callable[[], object], words: str) -> AnyResponse:
    """Act, and go back to the page with what came of it; its state may have changed while somebody looked at it."""
    try:
        act()
        flash(words, "good")
    except Conflict as error:
        flash(str(error), "bad")
    return redirect(url_for("evaluation_page.show", id_or_name=status.id), 303)
