"""Secrets of trials: set and removed by administrators, read by nobody, given to the worker that runs a trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from apiflask import APIBlueprint
from flask import Response
from pydantic import BaseModel, Field

from aeo.codec import encode
from aeo.core.errors import Unavailable
from aeo.secrets import delivery, needs, vault
from webapp.api.replies import reply
from webapp.api.schemas import In, Name
from webapp.auth import Role, check_entrance, current_user
from webapp.auth import needs as needs_role
from webapp.site import current_site

bp = APIBlueprint("secrets", __name__, tag="Secrets")


class SecretIn(In):
    value: str = Field(
        max_length=vault.LONGEST, description=f"At least {vault.SHORTEST} characters. No answer has it.", repr=False
    )


class SecretItem(BaseModel):
    name: str
    set_at: datetime
    set_by: str
    used_by: list[str] | None = Field(
        description="Names of the evaluations that have not ended and name it; null where that cannot be said now."
    )


class SecretsOut(BaseModel):
    secrets: list[SecretItem]


class RekeyedOut(BaseModel):
    secrets: int = Field(description="How many have the new key.")


class ClaimIn(In):
    worker: Name
    trial: Name
    token: Name = Field(description="Of the run.")
    proof: str = Field(
        max_length=64,
        description="HMAC-SHA256 of evaluation, trial, worker and token, one a line; its key is the SHA-256 "
        "(hexadecimal) of the worker's password of the broker.",
    )


class GivenOut(BaseModel):
    secrets: dict[str, str] = Field(description="Those that the evaluation names and that are set.")


@bp.get("/secrets")
@bp.output(SecretsOut)
@bp.doc(summary="List the secrets", description="Names, when and by whom each was set; no value, nor a part of one.")
@needs_role(Role.ADMIN)
def index() -> Response:
    return _all(needs.used(current_site()))


def _all(used: Mapping[str, Sequence[str]] | None) -> Response:
    found = vault.list_all(current_site())
    rows = [{**encode(one), "used_by": None if used is None else used.get(one.name, [])} for one in found]
    return reply({"secrets": rows})


def _after() -> Response:
    """What there is now; what was done is done, also where the store is away."""
    try:
        return _all(needs.used(current_site()))
    except Unavailable:
        return _all(None)


@bp.put("/secrets/<name>")
@bp.input(SecretIn, arg_name="body")
@bp.output(SecretsOut)
@bp.doc(summary="Set a secret", description="Trials that begin from now on get it. It can be set anew, not read.")
@needs_role(Role.ADMIN)
def put(name: str, body: SecretIn) -> Response:
    vault.put(current_site(), name, body.value, by=str(current_user.name))
    return _after()


@bp.delete("/secrets/<name>")
@bp.output(SecretsOut)
@bp.doc(
    summary="Remove a secret",
    description="Trials that run keep it; those that begin without it end with SecretMissingError.",
    responses={404: "There is none of this name"},
)
@needs_role(Role.ADMIN)
def delete(name: str) -> Response:
    vault.remove(current_site(), name)
    return _after()


@bp.post("/secrets/rekey")
@bp.output(RekeyedOut)
@bp.doc(summary="Encrypt all secrets with a new key", description="The old key is forgotten.")
@needs_role(Role.ADMIN)
def rekey() -> Response:
    return reply({"secrets": vault.rekey(current_site())})


@bp.post("/evaluations/<id>/secrets")
@bp.input(ClaimIn, arg_name="body")
@bp.output(GivenOut)
@bp.doc(
    summary="Give the secrets of a trial to the worker that runs it",
    description="For workers: only for a run of their own, as long as its lease lasts. A token alone gets nothing.",
    responses={403: "This worker does not run this trial now"},
)
@needs_role(Role.ADMIN)
def give(id: str, body: ClaimIn) -> Response:
    check_entrance(body.worker)
    found = delivery.give(current_site(), id, body.trial, worker=body.worker, token=body.token, proof=body.proof)
    return reply({"secrets": dict(found)})
