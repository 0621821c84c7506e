"""Who may use this controller, for administrators: the list, adding, a new token, removing."""

from __future__ import annotations

from flask import Blueprint, Response, flash, make_response, redirect, render_template, request, url_for
from flask_babel import gettext as _
from werkzeug.wrappers import Response as AnyResponse

from aeo import users
from aeo.core.errors import Conflict, InputError, NotFound, Problem
from aeo.core.names import check_name
from aeo.users import Role
from webapp.auth import needs
from webapp.site import current_site

bp = Blueprint("users_page", __name__)


@bp.get("/users")
@needs(Role.ADMIN)
def index() -> Response:
    """Show the named users."""
    return _page()


@bp.post("/users")
@needs(Role.ADMIN)
def change() -> AnyResponse:
    """Add a user, give one a new token, or remove one; a token is shown in this one answer."""
    do, name = request.form.get("do", ""), request.form.get("name", "").strip()
    shared = current_site().shared
    try:
        check_name(name, "user name", field="name")
        if do == "add":
            return _page(made=name, token=users.add(shared, name, _role(request.form.get("role", ""))))
        if do == "renew":
            return _page(made=name, token=users.renew(shared, name))
        if do != "remove":
            raise InputError("is none of add, renew and remove.", field="do")
        users.remove(shared, name)
    except InputError as error:
        status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 422
        return _page(status, problems=error.problems)
    flash(_("%(name)s is removed; token and sessions have ended.", name=name), "good")
    return redirect(url_for("users_page.index"), 303)


def _role(given: str) -> Role:
    try:
        return Role(given)
    except ValueError:
        raise InputError(f"{given[:40]!r} is no role.", field="role", fix="Choose one of the list.") from None


def _page(status: int = 200, *, problems: tuple[Problem, ...] = (), made: str = "", token: str = "") -> Response:
    # The token is in this one answer: a redirect would have to keep it somewhere.
    page = render_template(
        "users.html",
        users=users.list_all(current_site().shared),
        operator=users.OPERATOR,
        longest=users.LONGEST_NAME,
        roles=_roles(),
        problems=problems,
        made=made,
        token=token,
    )
    return make_response(page, status)


def _roles() -> dict[str, str]:
    return {
        Role.VIEWER.value: _("Viewer: looks at everything, changes nothing"),
        Role.MEMBER.value: _("Member: also submits, and changes their own evaluations"),
        Role.ADMIN.value: _("Administrator: also workers, datasets, users and everybody's evaluations"),
    }
