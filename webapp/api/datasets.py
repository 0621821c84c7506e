"""Datasets: the configured ones, their tasks, downloads."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response, url_for

from aeo import datasets
from aeo.core.names import check_name
from webapp.api.replies import reply
from webapp.api.schemas_datasets import (
    CheckIn,
    CheckOut,
    ChecksOut,
    DatasetIn,
    DatasetOut,
    DatasetsOut,
    DatasetTasksOut,
    DownloadOut,
    PrefetchIn,
    PrefetchOut,
    RemoveDatasetQuery,
    RemovedDatasetOut,
    TasksQuery,
)
from webapp.auth import Role, current_user, needs
from webapp.site import current_site

bp = APIBlueprint("datasets", __name__, tag="Datasets")


@bp.get("/datasets")
@bp.output(DatasetsOut)
@bp.doc(summary="List the configured datasets")
def index() -> Response:
    return reply({"datasets": datasets.list_all(current_site())})


@bp.post("/datasets")
@bp.input(DatasetIn, arg_name="body")
@bp.output(DatasetOut, status_code=201)
@bp.doc(
    summary="Configure a dataset",
    description="A folder of the controller, which is read at once, or a reference to a registry, not asked yet.",
    responses={409: "The name is taken"},
)
@needs(Role.ADMIN)
def add(body: DatasetIn) -> Response:
    site = current_site()
    made = datasets.add(site.shared, **body.model_dump(), by=current_user.name)
    response = reply({"dataset": datasets.show(site, made.name).view}, 201)
    response.headers["Location"] = url_for("datasets.show", name=made.name)
    return response


@bp.get("/datasets/<name>")
@bp.input(TasksQuery, location="query", arg_name="query")
@bp.output(DatasetTasksOut)
@bp.doc(summary="Show a dataset and a page of its tasks", responses={404: "No such dataset"})
def show(name: str, query: TasksQuery) -> Response:
    found = datasets.show(current_site(), _checked(name))
    rows = datasets.select(found.tasks, **query.model_dump(exclude={"offset", "limit"}))
    page = rows[query.offset : query.offset + query.limit]
    return reply({"dataset": found.view, "tasks": page, "total": len(rows)})


@bp.delete("/datasets/<name>")
@bp.input(RemoveDatasetQuery, location="query", arg_name="query")
@bp.output(RemovedDatasetOut)
@bp.doc(
    summary="Configure a dataset no more",
    responses={404: "No such dataset", 409: "It is being downloaded"},
)
@needs(Role.ADMIN)
def remove(name: str, query: RemoveDatasetQuery) -> Response:
    return reply({"removed": datasets.remove(current_site().shared, _checked(name), files=query.files)})


@bp.post("/datasets/<name>/download")
@bp.output(DownloadOut, status_code=202)
@bp.doc(
    summary="Download a dataset, or go on with it",
    description="It goes on whatever becomes of this process; ask for it with GET.",
    responses={404: "No such dataset", 409: "It is being downloaded"},
)
@needs(Role.ADMIN)
def download(name: str) -> Response:
    return reply({"download": datasets.start(current_site(), _checked(name), by=current_user.name)}, 202)


@bp.get("/datasets/<name>/download")
@bp.output(DownloadOut)
@bp.doc(summary="Show a dataset's last download; null if there was none", responses={404: "No such dataset"})
def show_download(name: str) -> Response:
    return reply({"download": datasets.status(current_site(), _checked(name))})


@bp.delete("/datasets/<name>/download")
@bp.output(DownloadOut)
@bp.doc(
    summary="Stop a dataset's download",
    description="What was fetched is kept for the next start.",
    responses={404: "No such dataset, or no download of it", 409: "It does not run"},
)
@needs(Role.ADMIN)
def cancel(name: str) -> Response:
    return reply({"download": datasets.cancel(current_site(), _checked(name))})


@bp.get("/dataset-checks")
@bp.output(ChecksOut)
@bp.doc(summary="Check every dataset", description="Each task's content beside what was recorded and what is listed.")
@needs(Role.MEMBER)  # every file is read
def check_all() -> Response:
    return reply({"reports": datasets.checking.check_all(current_site())})


@bp.get("/datasets/<name>/check")
@bp.output(CheckOut)
@bp.doc(summary="Check a dataset", responses={404: "No such dataset"})
@needs(Role.MEMBER)
def check(name: str) -> Response:
    return reply({"report": datasets.checking.check(current_site(), _checked(name))})


@bp.post("/datasets/<name>/check")
@bp.input(CheckIn, arg_name="body")
@bp.output(CheckOut)
@bp.doc(
    summary="Record what is there of a dataset as right",
    responses={404: "No such dataset", 409: "It is not on the controller"},
)
@needs(Role.ADMIN)
def accept(name: str, body: CheckIn) -> Response:  # noqa: ARG001 - it says that this is meant
    return reply({"report": datasets.checking.accept(current_site(), _checked(name))})


@bp.post("/datasets/<name>/prefetch")
@bp.input(PrefetchIn, arg_name="body")
@bp.output(PrefetchOut, status_code=202)
@bp.doc(
    summary="Send a dataset's tasks and their images to workers ahead of a run",
    description="Workers fetch them beside what they run, and skip what they have; ask for it with GET.",
    responses={404: "No such dataset or worker", 409: "It is not on the controller, or no worker can take it"},
)
def prefetch(name: str, body: PrefetchIn) -> Response:
    made = datasets.prefetch.start(current_site(), _checked(name), **body.model_dump(), by=current_user.name)
    return reply({"prefetch": made}, 202)


@bp.get("/datasets/<name>/prefetch")
@bp.output(PrefetchOut)
@bp.doc(summary="Show how far workers are with a dataset's prefetch", responses={404: "No such dataset"})
def show_prefetch(name: str) -> Response:
    return reply({"prefetch": datasets.prefetch.show(current_site(), _checked(name))})


@bp.delete("/datasets/<name>/prefetch")
@bp.output(PrefetchOut)
@bp.doc(
    summary="Stop a dataset's prefetch",
    description="What came stays on the workers.",
    responses={404: "No such dataset"},
)
def cancel_prefetch(name: str) -> Response:
    return reply({"prefetch": datasets.prefetch.cancel(current_site(), _checked(name))})


def _checked(name: str) -> str:
    return check_name(name, "dataset name", field="name")
