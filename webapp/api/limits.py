"""Limits of model providers: how many trials run at once under a key, and how many start in a minute."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response
from pydantic import BaseModel, Field

from aeo.core.limits import LONGEST, MOST
from aeo.store import limits
from aeo.store.limits import LimitStatus
from webapp.api.replies import reply
from webapp.api.schemas import In
from webapp.auth import Role, needs
from webapp.site import current_site

bp = APIBlueprint("limits", __name__, tag="Limits")

_KEY = "A provider, or provider/model as in the model label of trials."


class LimitKeyIn(In):
    key: str = Field(max_length=LONGEST, description=_KEY)


class LimitIn(LimitKeyIn):
    trials: int = Field(default=0, ge=0, le=MOST, description="Trials at once; 0 is any number.")
    per_minute: float = Field(
        default=0.0, ge=0, le=MOST, description="Trials that start in a minute, evenly spread; 0 is any number."
    )


class LimitsOut(BaseModel):
    limits: list[LimitStatus]


@bp.get("/limits")
@bp.output(LimitsOut)
@bp.doc(summary="List the limits of model providers")
def index() -> Response:
    return reply({"limits": limits.all(current_site().db)})


@bp.put("/limits")
@bp.input(LimitIn, arg_name="body")
@bp.output(LimitsOut)
@bp.doc(
    summary="Limit what runs under a key",
    description="Counts over all workers and evaluations, from the next claim on; what runs goes on.",
)
@needs(Role.ADMIN)
def put(body: LimitIn) -> Response:
    limits.set(current_site().db, body.key, trials=body.trials, per_minute=body.per_minute)
    return index()


@bp.delete("/limits")
@bp.input(LimitKeyIn, location="query", arg_name="query")
@bp.output(LimitsOut)
@bp.doc(summary="Take a limit away", responses={404: "The key has none"})
@needs(Role.ADMIN)
def delete(query: LimitKeyIn) -> Response:
    limits.clear(current_site().db, query.key)
    return index()
