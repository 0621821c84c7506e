"""One trial: how it went and why, what the agent did, what the tests said, its logs and files; live while it runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import quote

from flask import Blueprint, Response, make_response, render_template, request, url_for
from flask_babel import gettext as _

from aeo import artifacts, executors, progress, summaries
from aeo.artifacts import Entry, Listing, Place, report, runs, tail, trajectory, windows
from aeo.artifacts.runs import Run
from aeo.core.errors import InputError, NotFound
from aeo.core.model import TrialState
from aeo.core.names import check_name
from aeo.executors import views
from aeo.executors.views import Part, TrialFiles
from aeo.progress import Placed
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import connection, trials, watched
from aeo.store.evaluations import EvaluationStatus
from aeo.store.trials import Running
from webapp.pages import kinds, terminal
from webapp.pages.addresses import with_query
from webapp.site import current_site

#: Answered when a live part will not change any more.
FINAL = 286
#: Steps of a trajectory at once.
STEPS = 40
#: Files of one page of the list.
FILES = 200
#: Bytes of the text of an error, and of a verifier's output, shown at first.
SHORT = 16 * 1024

bp = Blueprint("trial_page", __name__)


@dataclass(frozen=True)
class Look:
    """What one answer shows, read as far as it is needed."""

    site: Site
    status: EvaluationStatus
    placed: Placed
    #: Token of a run that was put aside; empty for the one that counts.
    run: str

    @cached_property
    def place(self) -> Place | None:
        return artifacts.find(self.site, self.status.id, self.trial, run=self.run)

    @cached_property
    def listing(self) -> Listing:
        return self.place.listing() if self.place else Listing(entries=())

    @cached_property
    def files(self) -> TrialFiles:
        try:
            return views.of(executors.load(self.status.executor), self.listing.names)
        except InputError:  # it is not installed here any more
            return views.plain(self.listing.names)

    @cached_property
    def running(self) -> Running | None:
        if self.done:
            return None
        return next(
            (run for run in trials.running(self.site.db, self.status.id) if run.claim.trial == self.trial), None
        )

    @property
    def trial(self) -> str:
        return self.placed.line.trial

    @property
    def done(self) -> bool:
        return self.placed.state is TrialState.DONE

    @property
    def waits_for_files(self) -> bool:
        return self.place is None and not self.done

    @property
    def here(self) -> str:
        return url_for("trial_page.show", id_or_name=self.status.id, name=self.trial)

    def file_address(self, name: str, kind: str = "files") -> str:
        run = f"?run={quote(self.run)}" if self.run else ""
        return f"{self.here}/{kind}/{quote(name)}{run}"


@bp.get("/evaluations/<id_or_name>/trials/<name>")
def show(id_or_name: str, name: str) -> Response:
    """Show a trial, or the part of its page that is asked for."""
    look = _look(id_or_name, name)
    part = request.args.get("part", "")
    if part in PARTS:
        return PARTS[part](look)
    values = {**_head(look), **_view(look)}
    before, after = summaries.neighbours(look.site.book, look.status.id, look.trial)
    page = render_template(
        "trial.html", **values, before=before, after=after, runs=_runs(look), errors=_error_text(look)
    )
    return make_response(page)


def _look(id_or_name: str, name: str) -> Look:
    site = current_site()
    status = progress.found(site, check_name(id_or_name, "evaluation", field="id"))
    placed = progress.line(site, status.id, check_name(name, "trial", field="name"))
    run = request.args.get("run", "")
    if run:
        check_name(run, "run", field="run")
    elif placed.state is TrialState.RUNNING:
        watched.watch(site.db, status.id, name, seconds=tail.WATCH_SECONDS)
    return Look(site, status, placed, run)


def _head(look: Look) -> dict[str, Any]:
    """What stands above: state, result, phases."""
    line = look.placed.line
    running = look.running
    return {
        "look": look,
        "line": line,
        "status": look.status,
        "state": look.placed.state,
        "claim": look.placed.claim,
        "running": running,
        "elapsed": (connection.now(look.site.db) - running.started_at).total_seconds() if running else None,
        "phases": _gantt(line.phases, line.seconds),
        "phase_names": kinds.phases(),
        "message": hiding.redactor(look.site).text(line.error_message),
        "here": look.here,
        "part": request.args.get("part", ""),
    }


def _head_part(look: Look) -> Response:
    page = render_template("parts/trial_head.html", **_head(look))
    return make_response(page, FINAL if look.done else 200)


@dataclass(frozen=True)
class Bar:
    """A phase in the chart: shares of the whole in percent."""

    name: str
    x: float
    width: float
    seconds: float


def _gantt(phases: Mapping[str, float], whole: float | None) -> list[Bar]:
    total = max(whole or 0.0, sum(phases.values()), 1e-9)
    bars, at = [], 0.0
    for name, seconds in phases.items():
        # A phase of no time is still one to see.
        bars.append(Bar(name, round(100 * at / total, 3), max(0.4, round(100 * seconds / total, 3)), seconds))
        at += seconds
    return bars


def _runs(look: Look) -> tuple[Run, ...]:
    return runs.of(look.site, look.status.id, look.trial)


def _error_text(look: Look) -> str:
    if look.place is None or not look.files.error:
        return ""
    try:
        return windows.before(look.place, look.files.error, limit=SHORT).text
    except (NotFound, InputError):
        return ""


# The views: one of them is shown below the head.


def _view(look: Look) -> dict[str, Any]:
    asked = request.args.get("view", "")
    view = asked if asked in VIEWS else _first_view(look)
    names = {"trajectory": _("Trajectory"), "tests": _("Tests"), "logs": _("Logs"), "files": _("Files")}
    keep = f"&run={quote(look.run)}" if look.run else ""
    return {
        "look": look,
        "here": look.here,
        "view": view,
        "tabs": [(names[key], f"{look.here}?view={key}{keep}", key == view) for key in VIEWS],
        "terminal": terminal.html,
        **VIEWS[view](look),
    }


def _first_view(look: Look) -> str:
    if look.placed.state is TrialState.DONE and any(part.trajectories for part in look.files.parts):
        return "trajectory"
    return "logs"


def _view_part(look: Look) -> Response:
    return make_response(render_template("parts/trial_view.html", **_view(look)))


def _trajectory_view(look: Look) -> dict[str, Any]:
    names = [name for part in look.files.parts for name in part.trajectories]
    return {"names": names, **(_trajectory(look, names) if names else {})}


def _trajectory(look: Look, names: list[str]) -> dict[str, Any]:
    asked = request.args.get("file", "")
    name = asked if asked in names else names[0]
    agent, tool = request.args.get("agent", ""), request.args.get("tool", "")
    offset = max(0, request.args.get("offset", 0, type=int))
    step = request.args.get("step", 0, type=int)
    if step > 0 and not tool:
        offset = step - 1
    values: dict[str, Any] = {"name": name, "agent": agent, "tool": tool, "offset": offset, "limit": STEPS}
    place = _there(look)
    try:
        seen = trajectory.overview(place, name, agent=agent)
        found, total = trajectory.steps(place, name, offset=offset, limit=STEPS, tool=tool, agent=agent)
    except (InputError, NotFound) as error:
        return {**values, "problem": str(error)}
    most = max(seen.tools.values(), default=1)
    return {**values, "seen": seen, "steps": found, "total": total, "most": most, "kinds": kinds}


def _steps_part(look: Look) -> Response:
    """Further steps, or one in full."""
    names = [name for part in look.files.parts for name in part.trajectories]
    if not names or look.place is None:
        raise NotFound("The trial has no trajectory.")
    number = request.args.get("whole", 0, type=int)
    values = _trajectory(look, names)
    if "problem" in values:
        raise InputError(values["problem"], field="file")
    if number > 0:
        values["steps"], _total = trajectory.steps(
            look.place, values["name"], offset=number - 1, limit=1, agent=values["agent"], whole=True
        )
        values["total"] = 0
    return make_response(render_template("parts/trial_steps.html", look=look, here=look.here, **values))


@dataclass(frozen=True)
class Checked:
    """What the verifier of one part left."""

    part: Part
    #: File to the report read from it, or to what is wrong with it.
    reports: Mapping[str, report.Report | str]
    #: File and the end of its text.
    outputs: tuple[tuple[str, windows.Window], ...]


def _tests_view(look: Look) -> dict[str, Any]:
    found = [part for part in look.files.parts if part.reports or part.verifier] if look.place else []
    return {"checked": [_checked(look, part) for part in found], "statuses": kinds.statuses()}


def _checked(look: Look, part: Part) -> Checked:
    place = _there(look)
    reports: dict[str, report.Report | str] = {}
    for name in part.reports:
        try:
            reports[name] = report.read(place, name)
        except (InputError, NotFound) as error:
            reports[name] = str(error)
    outputs = [
        (name, windows.before(place, name, limit=SHORT))
        for name in part.verifier[:20]
        if kinds.is_text(name) and not windows.is_binary(place, name)
    ]
    return Checked(part, reports, tuple(outputs))


def _logs_view(look: Look) -> dict[str, Any]:
    logs = [entry for entry in look.listing.entries if entry.name in set(look.files.logs)]
    order = {name: index for index, name in enumerate(look.files.logs)}
    logs.sort(key=lambda entry: order[entry.name])
    asked = request.args.get("file", "")
    name = asked if asked in look.listing.names else _best_log(logs)
    return {"logs": logs, "name": name, **(_window(look, name) if name and look.place else {})}


def _best_log(logs: list[Entry]) -> str:
    """The first that says something, else one that may."""
    return next((entry.name for entry in logs if entry.size), logs[0].name if logs else "")


def _window(look: Look, name: str) -> dict[str, Any]:
    """The part of a file that is asked for, by default its end."""
    place = _there(look)
    end, begin = request.args.get("end", type=int), request.args.get("begin", type=int)
    if windows.is_binary(place, name):
        return {"binary": True}
    if begin is not None:
        window = windows.at(place, name, begin, grows=place.live)
    else:
        window = windows.before(place, name, end, grows=place.live)
    return {
        "name": name,
        "window": window,
        "live": place.live and not look.run,
        "at": tail.position(place, name, window.end),
        "terminal": terminal.html,
    }


def _window_part(look: Look) -> Response:
    name = request.args.get("file", "")
    values = _window(look, name)
    if values.get("binary"):
        raise InputError("is no text.", field="file")
    return make_response(render_template("parts/trial_window.html", look=look, here=look.here, **values))


def _files_view(look: Look) -> dict[str, Any]:
    collected = {name for part in look.files.parts for name in part.artifacts}
    # What was collected of the agent's work first.
    entries = sorted(look.listing.entries, key=lambda entry: (entry.name not in collected, entry.name))
    offset = max(0, request.args.get("offset", 0, type=int))
    name = request.args.get("file", "")
    values = {"entries": entries[offset : offset + FILES], "offset": offset, "limit": FILES, "total": len(entries)}
    return {**values, "collected": collected, "preview": _preview(look, name) if name else None, "kinds": kinds}


def _preview(look: Look, name: str) -> dict[str, Any]:
    place = _there(look)
    begin, size = place.extent(name)
    picture = kinds.picture(place.read(name, begin, kinds.HEAD))
    if picture:
        return {"name": name, "size": size, "picture": True}
    if windows.is_binary(place, name):
        return {"name": name, "size": size, "picture": False}
    return {"size": size, "picture": False, **_window(look, name)}


def _there(look: Look) -> Place:
    if look.place is None:
        raise NotFound("The trial has no files yet.")
    return look.place


VIEWS: Mapping[str, Callable[[Look], dict[str, Any]]] = {
    "trajectory": _trajectory_view,
    "tests": _tests_view,
    "logs": _logs_view,
    "files": _files_view,
}
PARTS: Mapping[str, Callable[[Look], Response]] = {
    "head": _head_part,
    "view": _view_part,
    "steps": _steps_part,
    "window": _window_part,
}


def step_address(here: str, **changes: object) -> str:
    """The present address, asking for steps only."""
    query = with_query(**changes).partition("?")[2]
    return f"{here}?part=steps" + (f"&{query}" if query else "")
