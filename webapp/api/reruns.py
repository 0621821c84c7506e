"""Reruns: what did not go well is run again in a new evaluation, which keeps the good results."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response, url_for

from aeo import checks, rerun
from aeo.core.names import check_name
from aeo.core.rerun import Choice
from aeo.submission import Submission
from webapp.api.replies import reply
from webapp.api.schemas import SubmittedOut
from webapp.api.schemas_plans import CheckOut
from webapp.api.schemas_reruns import RerunIn
from webapp.auth import current_user
from webapp.site import current_site

bp = APIBlueprint("reruns", __name__, tag="Evaluations")


@bp.post("/evaluations/<id_or_name>/rerun")
@bp.input(RerunIn, arg_name="body")
@bp.output(SubmittedOut, status_code=201)
@bp.doc(
    summary="Rerun an evaluation, keeping its good results",
    description="Makes a new evaluation. What ended with one of `errors` or `outcomes`, and what never ran to its end, "
    "is run again; all else is taken over. `text` or `config` may be an edited configuration: then a result is only "
    "kept where its trial is the same in all that could change it. `warnings` tell how many are kept, and why others "
    "are not. A failure leaves nothing behind.",
    responses={404: "No such evaluation", 409: "It has not ended, or the name is taken", 413: "The body is too large"},
)
def submit(id_or_name: str, body: RerunIn) -> Response:
    made = rerun.rerun(current_site(), _id(id_or_name), _choice(body), _request(body), owner=current_user.name)
    response = reply({"evaluation": made.status, "warnings": made.warnings}, 201)
    response.headers["Location"] = url_for("evaluations.show", id_or_name=made.status.id)
    return response


@bp.post("/evaluations/<id_or_name>/rerun/plan")
@bp.input(RerunIn, arg_name="body")
@bp.output(CheckOut)
@bp.doc(
    summary="Check a rerun: plan it without running it",
    description="As `/plan`; `carried` is how many results would be kept.",
    responses={404: "No such evaluation", 409: "It has not ended", 413: "The body is too large"},
)
def check(id_or_name: str, body: RerunIn) -> Response:
    request, inherit = rerun.prepared(current_site(), _id(id_or_name), _choice(body), _request(body))
    return reply(checks.check(current_site(), request, inherit=inherit))


def _id(id_or_name: str) -> str:
    return check_name(id_or_name, "evaluation", field="id")


def _choice(body: RerunIn) -> Choice:
    return Choice(errors=frozenset(body.errors), outcomes=frozenset(body.outcomes))


def _request(body: RerunIn) -> Submission:
    return Submission(**body.model_dump(exclude={"errors", "outcomes"}))
