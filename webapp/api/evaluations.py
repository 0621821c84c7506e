"""Evaluations and their trials."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response, url_for

from aeo import evaluations, progress
from aeo.core.names import check_name
from aeo.store import evaluations as store
from aeo.submission import Submission
from webapp.api.replies import reply
from webapp.api.schemas import (
    DetailOut,
    EvaluationOut,
    EvaluationsOut,
    EvaluationsQuery,
    PauseIn,
    SubmissionIn,
    SubmittedOut,
    TrialOut,
    TrialsOut,
    TrialsQuery,
)
from webapp.auth import check_owner, current_user
from webapp.site import current_site

bp = APIBlueprint("evaluations", __name__, tag="Evaluations")


def _checked(id_or_name: str) -> str:
    return check_name(id_or_name, "evaluation", field="id")


@bp.post("/evaluations")
@bp.input(SubmissionIn, arg_name="body")
@bp.output(SubmittedOut, status_code=201)
@bp.doc(
    summary="Submit an evaluation",
    description="Either `text` (a file as it is) or `config` (the same, parsed). A failure leaves nothing behind.",
    responses={409: "The name is taken", 413: "The body is too large"},
)
def submit(body: SubmissionIn) -> Response:
    made = evaluations.submit(current_site(), Submission(**body.model_dump()), owner=current_user.name)
    response = reply({"evaluation": made.status, "warnings": made.warnings}, 201)
    response.headers["Location"] = url_for("evaluations.show", id_or_name=made.status.id)
    return response


@bp.get("/evaluations")
@bp.input(EvaluationsQuery, location="query", arg_name="query")
@bp.output(EvaluationsOut)
@bp.doc(summary="List evaluations, newest first")
def index(query: EvaluationsQuery) -> Response:
    found, total = progress.history(current_site(), **dict(query))
    return reply({"evaluations": found, "total": total})


@bp.get("/evaluations/<id_or_name>")
@bp.output(DetailOut)
@bp.doc(summary="Look at one evaluation: progress, scores with coverage, shares", responses={404: "No such evaluation"})
def show(id_or_name: str) -> Response:
    return reply(progress.detail(current_site(), _checked(id_or_name)))


@bp.get("/evaluations/<id_or_name>/trials")
@bp.input(TrialsQuery, location="query", arg_name="query")
@bp.output(TrialsOut)
@bp.doc(summary="List an evaluation's trials in planned order", responses={404: "No such evaluation"})
def trials(id_or_name: str, query: TrialsQuery) -> Response:
    found, total = progress.trials(current_site(), _checked(id_or_name), **dict(query))
    return reply({"trials": found, "total": total})


@bp.get("/evaluations/<id_or_name>/trials/<name>")
@bp.output(TrialOut)
@bp.doc(summary="Look at one trial", responses={404: "No such evaluation or trial"})
def trial(id_or_name: str, name: str) -> Response:
    return reply(progress.trial(current_site(), _checked(id_or_name), check_name(name, "trial", field="name")))


@bp.post("/evaluations/<id_or_name>/cancel")
@bp.output(EvaluationOut)
@bp.doc(
    summary="Cancel an evaluation",
    description="What waits never runs, what runs is stopped, what is finished is merged.",
    responses={404: "No such evaluation", 409: "It has ended"},
)
def cancel(id_or_name: str) -> Response:
    return reply({"evaluation": evaluations.cancel(current_site(), _own(id_or_name), by=current_user.name)})


@bp.post("/evaluations/<id_or_name>/pause")
@bp.input(PauseIn, arg_name="body")
@bp.output(EvaluationOut)
@bp.doc(
    summary="Pause an evaluation",
    description="No further trial starts until it is resumed; what runs goes on.",
    responses={404: "No such evaluation", 409: "It does not run"},
)
def pause(id_or_name: str, body: PauseIn) -> Response:
    id = _own(id_or_name)
    return reply({"evaluation": evaluations.pause(current_site(), id, body.reason.strip(), by=current_user.name)})


@bp.post("/evaluations/<id_or_name>/resume")
@bp.output(EvaluationOut)
@bp.doc(
    summary="Resume a paused evaluation",
    description="Whoever paused it, a person or too many infrastructure errors.",
    responses={404: "No such evaluation", 409: "It is not paused"},
)
def resume(id_or_name: str) -> Response:
    return reply({"evaluation": evaluations.resume(current_site(), _own(id_or_name), by=current_user.name)})


def _own(id_or_name: str) -> str:
    """The id of an evaluation that the user may change."""
    status = store.find(current_site().db, _checked(id_or_name))
    check_owner(status)
    return status.id
