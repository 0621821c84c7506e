"""Named users, for administrators."""

from __future__ import annotations

from apiflask import APIBlueprint
from flask import Response

from aeo import users
from aeo.core.errors import NotFound
from aeo.core.names import check_name
from webapp.api.replies import reply
from webapp.api.schemas_users import UserIn, UserOut, UsersOut, UserTokenOut
from webapp.auth import Role, needs
from webapp.site import current_site

bp = APIBlueprint("users", __name__, tag="Users")


@bp.get("/users")
@bp.output(UsersOut)
@bp.doc(summary="List the named users")
@needs(Role.ADMIN)
def index() -> Response:
    return reply({"users": users.list_all(current_site().shared)})


@bp.post("/users")
@bp.input(UserIn, arg_name="body")
@bp.output(UserTokenOut, status_code=201)
@bp.doc(
    summary="Add a user",
    description="The answer has the user's token. It is shown this once; only its hash is kept.",
    responses={409: "Somebody has this name"},
)
@needs(Role.ADMIN)
def add(body: UserIn) -> Response:
    return _with_token(body.name, users.add(current_site().shared, body.name, Role(body.role)), 201)


@bp.post("/users/<name>/renew")
@bp.output(UserTokenOut)
@bp.doc(
    summary="Give a user a new token",
    description="The old token and all the user's sessions end at once.",
    responses={404: "No such user"},
)
@needs(Role.ADMIN)
def renew(name: str) -> Response:
    return _with_token(name, users.renew(current_site().shared, _checked(name)))


@bp.delete("/users/<name>")
@bp.output(UserOut)
@bp.doc(
    summary="Remove a user",
    description="The token and all the user's sessions end at once. What the user submitted runs on.",
    responses={404: "No such user"},
)
@needs(Role.ADMIN)
def remove(name: str) -> Response:
    return reply({"user": users.remove(current_site().shared, _checked(name))})


def _checked(name: str) -> str:
    return check_name(name, "user name", field="name")


def _with_token(name: str, token: str, status: int = 200) -> Response:
    account = users.find(current_site().shared, name)
    if account is None:
        raise NotFound(f"the user {name!r} was removed meanwhile.", field="name")
    return reply({"user": account.user, "token": token}, status)
