"""Plans: what a submission would become, and what an earlier one took."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import checks, progress, traces
from aeo.core.names import check_name
from aeo.submission import Submission
from webapp.api.replies import reply
from webapp.api.schemas import SubmissionIn
from webapp.api.schemas_plans import CheckOut, TraceOut
from webapp.site import current_site

bp = APIBlueprint("plans", __name__, tag="Evaluations")


@bp.post("/plan")
@bp.input(SubmissionIn, arg_name="body")
@bp.output(CheckOut)
@bp.doc(
    summary="Check a submission: plan it without running it",
    description="Nothing is made. What is wrong stands under `problems`, each with its field and, where there is a "
    "text, its line; without problems it would be accepted now.",
    responses={413: "The body is too large"},
)
def check(body: SubmissionIn) -> Response:
    return reply(checks.check(current_site(), Submission(**body.model_dump())))


@bp.get("/evaluations/<id_or_name>/trace")
@bp.output(TraceOut)
@bp.doc(
    summary="What its trials took, for simulating it",
    description="Only of trials that ran. `aeo simulate` plays them through on another pool.",
    responses={404: "No such evaluation"},
)
def trace(id_or_name: str) -> Response:
    site = current_site()
    return reply(traces.trace(site, progress.found(site, check_name(id_or_name, "evaluation", field="id"))))
