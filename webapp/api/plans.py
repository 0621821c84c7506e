"""Plans: what a submission would become."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import checks
from aeo.submission import Submission
from webapp.api.replies import reply
from webapp.api.schemas import SubmissionIn
from webapp.api.schemas_plans import CheckOut
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
