"""Machines made workers by ssh: adding one from a form, its steps while they run, upgrade and farewell."""

from __future__ import annotations

from typing import Any

from flask import Blueprint, Response, make_response, redirect, render_template, request, url_for
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import workers
from aeo.core.errors import Conflict, InputError, NotFound, Problem
from aeo.provision import behind, record
from aeo.provision.record import Machine, Progress
from aeo.provision.steps import StepState
from aeo.provision.wish import Wish
from aeo.site import Site
from webapp.auth import Role, current_user, needs
from webapp.site import current_site

#: Answered in place of 200 when a live part will not change any more.
FINAL = 286

bp = Blueprint("machines_page", __name__)


@bp.post("/workers")
@needs(Role.ADMIN)
def add() -> AnyResponse:
    """Begin to make a machine a worker."""
    asked = {key: value.strip() for key, value in request.form.items()}
    try:
        wish = Wish(
            target=asked.get("target", ""),
            ssh_port=_number(asked, "ssh_port", 65535),
            id=asked.get("id", ""),
            slots=_number(asked, "slots", 10_000),
            direct=asked.get("direct", ""),
            offline=asked.get("offline") == "1",
        )
        machine = behind.provision(current_site(), wish, by=current_user.name)
    except InputError as error:
        page = render_template("machine_new.html", problems=_named(error.problems))
        return make_response(page, 409 if isinstance(error, Conflict) else 422)
    return redirect(url_for("machines_page.show", worker_id=machine.id), 303)


@bp.get("/workers/<worker_id>/machine")
@needs(Role.ADMIN)
def show(worker_id: str) -> Response:
    """Show a machine and its last steps; these alone while they run."""
    workers.check_id(worker_id)
    if request.args.get("part") != "steps":
        return _show(worker_id)
    machine, progress = _look(worker_id)
    if machine is None and progress is None:
        # It was let go meanwhile.
        return Response("", FINAL, {"HX-Redirect": url_for("workers_page.index")})
    page = render_template("parts/machine_steps.html", machine=machine, progress=progress, **_common(worker_id))
    response = make_response(page, 200 if progress and progress.running else FINAL)
    if not (progress and progress.running):
        # What can be done next is another part of the page.
        response.headers["HX-Refresh"] = "true"
    return response


@bp.post("/workers/<worker_id>/machine")
@needs(Role.ADMIN)
def change(worker_id: str) -> AnyResponse:
    """Go on with a machine, upgrade it, or take leave of it."""
    workers.check_id(worker_id)
    site, do, by = current_site(), request.form.get("do", ""), current_user.name
    try:
        if do == "again":
            behind.again(site, worker_id, by=by)
        elif do == "upgrade":
            behind.upgrade(site, worker_id, by=by)
        elif do == "decommission":
            behind.decommission(
                site, worker_id, by=by, now=request.form.get("now") == "1", gone=request.form.get("gone") == "1"
            )
        else:
            raise InputError("is none of again, upgrade and decommission.", field="do")
    except NotFound:
        raise
    except InputError as error:
        return _show(worker_id, error.problems, 409 if isinstance(error, Conflict) else 422)
    # Who takes leave may be gone before the next page is asked for, or while it is looked at.
    leaving = "1" if do == "decommission" else None
    return redirect(url_for("machines_page.show", worker_id=worker_id, leaving=leaving), 303)


def listed(site: Site) -> list[tuple[Machine, Progress | None]]:
    """Every machine that is remembered, with how its last steps went."""
    return [(machine, record.progress(site.shared, machine.id)) for machine in record.machines(site.shared)]


def words() -> dict[str, Any]:
    """How states and steps are called."""
    return {
        "states": {
            StepState.RUNNING: ("is-running", _("running")),
            StepState.DONE: ("is-succeeded", _("done")),
            StepState.KEPT: ("is-succeeded", _("was so already")),
            StepState.WOULD: ("", _("would be done")),
            StepState.SKIPPED: ("", _("left out")),
            StepState.FAILED: ("is-failed", _("failed")),
        },
        "steps": {
            "reach": _("Reach it by SSH"),
            "check": _("See what it is"),
            "rsync": "rsync",
            "uv": "uv",
            "aeo": _("Install AEO"),
            "settings": _("Write its settings"),
            "executors": _("What executors need"),
            "controller": _("Its way to the controller"),
            "service": _("Its service"),
            "register": _("Wait until it has registered"),
            "remember": _("Remember it"),
            "drain": _("Let it finish what it runs"),
            "files": _("Remove what was installed"),
            "tunnel": _("Take its tunnel down"),
            "credentials": _("Take back what lets it in"),
        },
        "whats": {
            "provision": _("Being made a worker"),
            "upgrade": _("Upgrade"),
            "decommission": _("Farewell"),
        },
        "end": record.END,
    }


def _show(id: str, problems: tuple[Problem, ...] = (), status: int = 200) -> Response:
    machine, progress = _look(id)
    if machine is None:
        if progress is None and "leaving" not in request.args:
            raise NotFound(f"{id} was not made a worker from here.", field="id")
        return make_response(redirect(url_for("workers_page.index"), 303))
    line = record.line(current_site().shared, id)
    page = render_template(
        "machine.html", machine=machine, progress=progress, line=line, problems=problems, **_common(id)
    )
    return make_response(page, status)


def _look(id: str) -> tuple[Machine | None, Progress | None]:
    shared = current_site().shared
    return record.find(shared, id), record.progress(shared, id)


def _common(id: str) -> dict[str, Any]:
    return {"id": id, "machine_words": words(), "StepState": StepState}


def _named(problems: tuple[Problem, ...]) -> tuple[Problem, ...]:
    """Problems with the form's names for flags."""
    names = {"USER@HOST": "target", "--id": "id", "--direct": "direct"}
    return tuple(
        Problem(message=item.message, field=names.get(item.field, item.field), fix=item.fix) for item in problems
    )


def _number(asked: dict[str, str], name: str, most: int) -> int:
    text = asked.get(name, "")
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= most):
        raise InputError(f"{text[:40]!r} is no number from 1 to {most}.", field=name)
    return int(text)
