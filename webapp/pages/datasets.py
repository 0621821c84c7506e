"""Datasets: which there are, what is in them, how their tasks went so far; getting and registering them."""

from __future__ import annotations

from flask import Blueprint, Response, flash, make_response, redirect, render_template, request, url_for
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import datasets, executors
from aeo.core.errors import AeoError, Conflict, InputError, NotFound, Problem, Unavailable
from aeo.core.model import WorkerState
from aeo.core.names import check_name
from aeo.datasets import DatasetDetail, DownloadState
from aeo.store import workers as worker_store
from aeo.store.prefetches import PrefetchState
from aeo.workers import check_id
from webapp.auth import Role, needs
from webapp.auth import current_user as user
from webapp.site import current_site

#: Tasks on one page.
ROWS = 100
#: Answered in place of 200 when a live part will not change any more.
FINAL = 286

bp = Blueprint("datasets_page", __name__)


@bp.get("/datasets")
def index() -> Response:
    """Show the configured datasets; a part of it while one is downloaded."""
    if request.args.get("part") == "datasets_list":
        views = datasets.list_all(current_site())
        part = render_template("parts/datasets_list.html", views=views, **_words())
        return make_response(part, 200 if _any_running(views) else FINAL)
    return _index()


@bp.post("/datasets")
@needs(Role.ADMIN)
def add() -> AnyResponse:
    """Configure a dataset from the form."""
    asked = {key: request.form.get(key, "").strip() for key in ("name", "executor", "path", "reference", "registry")}
    try:
        made = datasets.add(current_site().shared, **asked, by=user.name)
    except (InputError, Unavailable) as error:
        return _index(problems=_problems(error), status=_status(error))
    flash(_("%(name)s is configured.", name=made.name), "good")
    return redirect(url_for("datasets_page.show", name=made.name), 303)


@bp.get("/datasets/<name>")
def show(name: str) -> Response:
    """Show one dataset and its tasks; its download alone while that runs."""
    if request.args.get("part") == "dataset_download":
        return _download_part(name)
    if request.args.get("part") == "dataset_prefetch":
        return _prefetch_part(name)
    return _show(name)


@bp.post("/datasets/<name>")
@needs(Role.ADMIN)
def change(name: str) -> AnyResponse:
    """Download a dataset, stop that, or configure the dataset no more."""
    site, do = current_site(), request.form.get("do", "")
    check_name(name, "dataset name", field="name")
    try:
        if do == "download":
            datasets.start(site, name, by=user.name)
        elif do == "cancel":
            datasets.cancel(site, name)
        elif do == "remove":
            datasets.remove(site.shared, name, files=request.form.get("files") == "1")
            flash(_("%(name)s is removed.", name=name), "good")
            return redirect(url_for("datasets_page.index"), 303)
        else:
            raise InputError("is none of download, cancel and remove.", field="do")
    except (InputError, Unavailable) as error:
        if isinstance(error, NotFound) and do != "cancel":
            raise
        return _show(name, problems=_problems(error), status=_status(error))
    return redirect(url_for("datasets_page.show", name=name), 303)


@bp.post("/datasets/<name>/prefetch")
def prefetch(name: str) -> AnyResponse:
    """Let workers fetch a dataset ahead of a run, or stop that."""
    site, do = current_site(), request.form.get("do", "")
    check_name(name, "dataset name", field="name")
    try:
        if do == "prefetch":
            workers = [check_id(id, field="workers") for id in request.form.getlist("workers") if id]
            images = request.form.get("images") == "1"
            tasks = request.form.get("tasks", "").strip()[:200].split()
            datasets.prefetch.start(site, name, tasks=tasks, workers=workers, images=images, by=user.name)
        elif do == "cancel":
            datasets.prefetch.cancel(site, name)
        else:
            raise InputError("is neither prefetch nor cancel.", field="do")
    except (InputError, Unavailable) as error:
        if isinstance(error, NotFound) and name not in datasets.read(site.shared):
            raise
        return _show(name, problems=_problems(error), status=_status(error))
    return redirect(url_for("datasets_page.show", name=name) + "#prefetch", 303)


def _index(*, problems: tuple[Problem, ...] = (), status: int = 200) -> Response:
    views = datasets.list_all(current_site())
    page = render_template(
        "datasets.html",
        views=views,
        live=_any_running(views),
        problems=problems,
        executors=[name for name in executors.installed() if executors.datasets_of(executors.load(name))],
        plain=executors.PLAIN,
        **_words(),
    )
    return make_response(page, status)


def _show(name: str, *, problems: tuple[Problem, ...] = (), status: int = 200) -> Response:
    found = datasets.show(current_site(), check_name(name, "dataset name", field="name"))
    sort = request.args.get("sort", "name")
    rows = datasets.select(
        found.tasks,
        search=request.args.get("search", "")[:200],
        category=request.args.get("category", ""),
        difficulty=request.args.get("difficulty", ""),
        sort=sort if sort in datasets.SORTS else "name",
        descending=request.args.get("desc") == "1",
    )
    offset = max(0, min(request.args.get("offset", 0, type=int), 10**9))
    page = render_template(
        "dataset.html",
        view=found.view,
        rows=rows[offset : offset + ROWS],
        total=len(rows),
        offset=offset,
        limit=ROWS,
        ran=any(row.past for row in found.tasks),
        problems=problems,
        workers=_workers(found),
        prefetch=datasets.prefetch.show(current_site(), name),
        travels=any(row.info.content for row in found.tasks),
        takers=_takers(found),
        **_words(),
    )
    return make_response(page, status)


def _prefetch_part(name: str) -> Response:
    found = datasets.show(current_site(), check_name(name, "dataset name", field="name"))
    now = datasets.prefetch.show(current_site(), name)
    part = render_template(
        "parts/dataset_prefetch.html", view=found.view, prefetch=now, takers=_takers(found), **_words()
    )
    response = make_response(part, 200 if now.running else FINAL)
    if not now.running:
        # Who has which task is another part of the page.
        response.headers["HX-Refresh"] = "true"
    return response


def _takers(found: DatasetDetail) -> list[str]:
    """Workers that can be asked for it: those that live and have its executor."""
    return [
        status.info.id
        for status in worker_store.all(current_site().db)
        if status.state is not WorkerState.LOST and found.view.dataset.executor in status.info.executors
    ]


def _download_part(name: str) -> Response:
    found = datasets.show(current_site(), check_name(name, "dataset name", field="name"))
    part = render_template("parts/dataset_download.html", view=found.view, **_words())
    running = found.view.download is not None and found.view.download.state is DownloadState.RUNNING
    response = make_response(part, 200 if running else FINAL)
    if not running:
        # The tasks are another part of the page.
        response.headers["HX-Refresh"] = "true"
    return response


def _workers(found: DatasetDetail) -> int:
    """How many workers hold at least one of the tasks."""
    return len(found.view.present)


def _any_running(views: list[datasets.DatasetView]) -> bool:
    return any(view.download and view.download.state is DownloadState.RUNNING for view in views)


def _problems(error: AeoError) -> tuple[Problem, ...]:
    return error.problems if isinstance(error, InputError) else (Problem(message=str(error)),)


def _status(error: AeoError) -> int:
    if isinstance(error, Unavailable):
        return 503
    return 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 422


def _words() -> dict[str, object]:
    return {
        "download_states": {
            DownloadState.RUNNING: ("is-running", _("being downloaded")),
            DownloadState.DONE: ("is-succeeded", _("downloaded")),
            DownloadState.FAILED: ("is-failed", _("download failed")),
            DownloadState.CANCELLED: ("is-cancelled", _("download stopped")),
            DownloadState.INTERRUPTED: ("wait", _("download interrupted")),
        },
        "prefetch_states": {
            PrefetchState.WAITING: ("wait", _("waits")),
            PrefetchState.RUNNING: ("is-running", _("fetching")),
            PrefetchState.DONE: ("is-succeeded", _("all is there")),
            PrefetchState.FAILED: ("is-failed", _("something is missing")),
            PrefetchState.CANCELLED: ("is-cancelled", _("stopped")),
        },
        "phases": {"agent": _("agent"), "verifier": _("verifier"), "environment": _("environment build")},
        "DownloadState": DownloadState,
    }
