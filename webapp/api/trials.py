"""One trial closely: its runs, files, trajectory and tests; files as they are come from the pages' addresses."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import artifacts, executors, progress
from aeo.artifacts import Place, report, runs, trajectory, windows
from aeo.core.errors import InputError, NotFound
from aeo.core.model import TrialState
from aeo.core.names import check_name
from aeo.executors import views
from aeo.site import Site
from aeo.store import watched
from aeo.store.evaluations import EvaluationStatus
from webapp.api.replies import reply
from webapp.api.schemas_trials import (
    FilesOut,
    RunQuery,
    RunsOut,
    TestsOut,
    TextOut,
    TextQuery,
    TrajectoryOut,
    TrajectoryQuery,
)
from webapp.site import current_site

bp = APIBlueprint("trials", __name__, tag="Trials")


@bp.get("/evaluations/<id_or_name>/trials/<name>/runs")
@bp.output(RunsOut)
@bp.doc(summary="List the runs of a trial, and why it was run again", responses={404: "No such evaluation or trial"})
def show_runs(id_or_name: str, name: str) -> Response:
    site, status = _known(id_or_name, name)
    return reply({"runs": runs.of(site, status.id, name)})


@bp.get("/evaluations/<id_or_name>/trials/<name>/files")
@bp.input(RunQuery, location="query", arg_name="query")
@bp.output(FilesOut)
@bp.doc(summary="List a trial's files, also while it runs", responses={404: "No such evaluation, trial or run"})
def files(id_or_name: str, name: str, query: RunQuery) -> Response:
    site, status = _known(id_or_name, name)
    place = _place(site, status, name, query.run)
    listing = place.listing() if place else artifacts.Listing(entries=())
    return reply(
        {
            "files": listing.entries,
            "more": listing.more,
            "live": place is not None and place.live,
            "views": _views(status, listing.names),
        }
    )


@bp.get("/evaluations/<id_or_name>/trials/<name>/text")
@bp.input(TextQuery, location="query", arg_name="query")
@bp.output(TextOut)
@bp.doc(summary="Read a part of a text of a trial, its end unless asked otherwise", responses={404: "No such file"})
def text(id_or_name: str, name: str, query: TextQuery) -> Response:
    site, status = _known(id_or_name, name)
    place = _there(_place(site, status, name, query.run))
    if query.begin is not None:
        return reply(windows.at(place, query.file, query.begin, limit=query.limit, grows=place.live))
    return reply(windows.before(place, query.file, query.end, limit=query.limit, grows=place.live))


@bp.get("/evaluations/<id_or_name>/trials/<name>/trajectory")
@bp.input(TrajectoryQuery, location="query", arg_name="query")
@bp.output(TrajectoryOut)
@bp.doc(summary="Read what the agent did, some steps at a time", responses={404: "No such file or trajectory"})
def show_trajectory(id_or_name: str, name: str, query: TrajectoryQuery) -> Response:
    site, status = _known(id_or_name, name)
    place = _there(_place(site, status, name, query.run))
    file = query.file or _main(status, place)
    found, total = trajectory.steps(
        place,
        file,
        offset=query.offset,
        limit=query.limit,
        tool=query.tool,
        agent=query.agent,
        whole=query.whole,
    )
    seen = trajectory.overview(place, file, agent=query.agent)
    return reply({"file": file, "overview": seen, "steps": found, "total": total})


@bp.get("/evaluations/<id_or_name>/trials/<name>/tests")
@bp.input(RunQuery, location="query", arg_name="query")
@bp.output(TestsOut)
@bp.doc(summary="Read the results of a trial's tests", responses={404: "No such evaluation, trial or run"})
def tests(id_or_name: str, name: str, query: RunQuery) -> Response:
    site, status = _known(id_or_name, name)
    place = _place(site, status, name, query.run)
    reports: dict[str, report.Report] = {}
    if place is not None:
        for file in (file for part in _views(status, place.listing().names).parts for file in part.reports):
            try:
                reports[file] = report.read(place, file)
            except InputError:
                continue
    return reply({"reports": reports})


def _known(id_or_name: str, name: str) -> tuple[Site, EvaluationStatus]:
    site = current_site()
    status = progress.found(site, check_name(id_or_name, "evaluation", field="id"))
    placed = progress.line(site, status.id, check_name(name, "trial", field="name"))
    if placed.state is TrialState.RUNNING:
        watched.watch(site.db, status.id, name, seconds=artifacts.WATCH_SECONDS)
    return site, status


def _place(site: Site, status: EvaluationStatus, name: str, run: str) -> Place | None:
    return artifacts.find(site, status.id, name, run=check_name(run, "run", field="run") if run else "")


def _there(place: Place | None) -> Place:
    if place is None:
        raise NotFound("The trial has no files yet.", field="name")
    return place


def _views(status: EvaluationStatus, names: frozenset[str]) -> views.TrialFiles:
    try:
        return views.of(executors.load(status.executor), names)
    except InputError:  # it is not installed here any more
        return views.plain(names)


def _main(status: EvaluationStatus, place: Place) -> str:
    found = [name for part in _views(status, place.listing().names).parts for name in part.trajectories]
    if not found:
        raise NotFound("The trial has no trajectory.", field="file")
    return found[0]
