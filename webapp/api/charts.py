"""What the charts of an evaluation are drawn from."""

from __future__ import annotations

import json
from datetime import datetime
from urllib.parse import urlencode

from apiflask import APIBlueprint
from flask import Response, url_for
from flask_babel import gettext as _
from flask_babel import ngettext

from aeo import charts, progress, summaries
from aeo.charts import Run
from aeo.core.model import TrialState
from aeo.core.names import check_name
from aeo.store import trials
from aeo.store.evaluations import EvaluationStatus
from aeo.summaries import Column, Group
from webapp.api.replies import reply
from webapp.api.schemas_charts import (
    ErrorsOut,
    GroupsOut,
    GroupsQuery,
    HeatmapOut,
    HeatQuery,
    HistogramOut,
    HistogramQuery,
    TimelineOut,
)
from webapp.pages import words
from webapp.site import current_site

bp = APIBlueprint("charts", __name__, tag="Charts")
_404 = {404: "No such evaluation"}


def _found(id_or_name: str) -> EvaluationStatus:
    return progress.found(current_site(), check_name(id_or_name, "evaluation", field="id"))


def _plain(value: dict[str, object]) -> Response:
    """The answer of thousands of items that are plain already: to look at each takes longer than to read them."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Response(text.encode("utf-8", "replace"), content_type="application/json")


def _page(status: EvaluationStatus) -> str:
    return url_for("evaluation_page.show", id_or_name=status.id)


@bp.get("/evaluations/<id_or_name>/heatmap")
@bp.input(HeatQuery, location="query", arg_name="query")
@bp.output(HeatmapOut)
@bp.doc(summary="Each trial by task and attempt, a page of tasks", responses=_404)
def heatmap(id_or_name: str, query: HeatQuery) -> Response:
    status = _found(id_or_name)
    page = charts.heat(current_site(), status, offset=query.offset, limit=query.limit)
    return _plain(
        {
            "final": status.state.final,
            "base": _page(status) + "/trials/",
            "rows": page.tasks,
            "columns": _columns(page.columns),
            "cells": [
                (cell.task, cell.column, cell.outcome, cell.reward, _tenths(cell.seconds), cell.trial)
                for cell in page.cells
            ],
            "total": page.total,
        }
    )


def _tenths(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 1)


def _columns(columns: tuple[Column, ...]) -> list[str]:
    """What tells the columns apart, and no more."""
    agents, models = ({getattr(column, name) for column in columns} for name in ("agent", "model"))
    attempts = {column.attempt for column in columns}
    return [
        " · ".join(
            part
            for part, several in (
                # First, as long names are cut.
                (str(column.attempt), len(attempts) > 1 or len(columns) == 1),
                (column.model, len(models) > 1),
                (column.agent, len(agents) > 1),
            )
            if several and part
        )
        for column in columns
    ]


@bp.get("/evaluations/<id_or_name>/timeline")
@bp.output(TimelineOut)
@bp.doc(summary="What ran on which slot of which worker, and when", responses=_404)
def timeline(id_or_name: str) -> Response:
    status = _found(id_or_name)
    site = current_site()
    lanes, page = charts.gantt(site, status), _page(status)
    return _plain(
        {
            "final": status.state.final,
            "lanes": [f"{lane.worker} · {lane.slot}" for lane in lanes],
            "bars": [_bar(page, number, run) for number, lane in enumerate(lanes) for run in lane.runs],
            "now": _milliseconds(trials.now(site.db)),
            "x": "time",
        }
    )


def _bar(page: str, lane: int, run: Run) -> tuple[int, float, float | None, str, str, str]:
    one = run.size == 1
    return (
        lane,
        _milliseconds(run.started_at),
        _milliseconds(run.finished_at) if run.outcome else None,
        run.outcome.value if run.outcome else TrialState.RUNNING.value,
        run.trial if one else _trials(run.size),
        f"{page}/trials/{run.trial}" if one else "",
    )


def _trials(count: int) -> str:
    return str(ngettext("%(num)s trial", "%(num)s trials", count))


def _milliseconds(moment: datetime) -> float:
    return round(moment.timestamp() * 1000)


@bp.get("/evaluations/<id_or_name>/histogram")
@bp.input(HistogramQuery, location="query", arg_name="query")
@bp.output(HistogramOut)
@bp.doc(summary="How many trials took how long", responses=_404)
def histogram(id_or_name: str, query: HistogramQuery) -> Response:
    status = _found(id_or_name)
    bins = summaries.histogram(current_site().book, status.id, query.bins)
    edges = [item.low for item in bins] + [bins[-1].high] if bins else []
    return reply(
        {
            "final": status.state.final,
            "edges": edges,
            "counts": [item.count for item in bins],
            "unit": "seconds",
        }
    )


@bp.get("/evaluations/<id_or_name>/errors")
@bp.output(ErrorsOut)
@bp.doc(summary="Exceptions of the trials by type and outcome", responses=_404)
def errors(id_or_name: str) -> Response:
    status = _found(id_or_name)
    return reply({"final": status.state.final, "errors": summaries.errors(current_site().book, status.id)})


@bp.get("/evaluations/<id_or_name>/groups")
@bp.input(GroupsQuery, location="query", arg_name="query")
@bp.output(GroupsOut)
@bp.doc(summary="Scores of the trials by what they have in common", responses=_404)
def groups(id_or_name: str, query: GroupsQuery) -> Response:
    status = _found(id_or_name)
    found = summaries.groups(current_site().book, status.id, query.by)
    means = [group.mean for group in found if group.mean is not None]
    return reply(
        {
            "final": status.state.final,
            "groups": [_group(group) for group in found],
            "labels": [words.name(group.name) if group.name else _("not said") for group in found],
            "series": [
                {
                    "kind": "series-1",
                    "name": "",
                    "values": [group.mean for group in found],
                    "low": [group.low for group in found],
                    "high": [group.high for group in found],
                }
            ],
            "links": [_trials_of(status, query.by, group) for group in found],
            "max": 1 if means and max(means) <= 1 else None,
        }
    )


def _group(group: Group) -> dict[str, object]:
    return {
        "name": group.name,
        "planned": group.planned,
        "scored": group.scored,
        "outcomes": group.outcomes,
        "mean": group.mean,
        "low": group.low,
        "high": group.high,
        "seconds": group.seconds,
        "cost_usd": group.cost_usd,
    }


def _trials_of(status: EvaluationStatus, by: str, group: Group) -> str:
    if not group.name:
        return ""
    return f"{_page(status)}?{urlencode({by: group.name})}#trials-title"
