"""Who may do what: a token as a bearer, or once in a browser, which then has a session; and the roles of users.

Unless a view says otherwise with `needs`, whoever has a token may look, and members may change something.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable
from hashlib import sha256
from typing import TypeVar
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from apiflask import APIFlask
from flask import (
    Blueprint,
    Flask,
    Request,
    Response,
    current_app,
    flash,
    g,
    redirect,
    render_template,
    request,
    session,
    url_for,
)
from flask_babel import gettext as _
from flask_login import AnonymousUserMixin, LoginManager, UserMixin, current_user, login_user, logout_user
from werkzeug.exceptions import Forbidden as NotFromHere
from werkzeug.wrappers import Response as AnyResponse

from aeo import users
from aeo.core.errors import Forbidden, InputError, Problem, Refused, Unavailable
from aeo.provision import entrance
from aeo.store.evaluations import EvaluationStatus
from aeo.users import OPERATOR, Account, Role
from webapp.attempts import Attempts
from webapp.problems import answer, is_api
from webapp.site import KEY, current_site

__all__ = ["Role", "check_csrf", "check_owner", "csrf_token", "current_user", "may_change", "needed", "needs"]

_View = TypeVar("_View", bound=Callable[..., object])

#: Endpoints open to everyone. Everything else asks for a token.
OPEN = frozenset({"health.show", "openapi.spec", "static", "auth.sign_in"})
#: What a worker's own token is good for; these views see to it that it is for that worker.
ENTRANCES = frozenset({"workers.register", "secrets.give"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ATTEMPTS = "aeo.attempts"

bp = Blueprint("auth", __name__)


class Person(UserMixin):  # type: ignore[misc]
    """Who asks. The id is made of the token, so a new token ends every session."""

    def __init__(self, id: str, name: str, role: Role):
        self.id = id
        self.name = name
        self.role = role

    def may(self, role: Role | str) -> bool:
        """Whether this user may do what ``role`` may."""
        return self.role >= Role(role)


class Entrant(UserMixin):  # type: ignore[misc]
    """A provisioned worker: it may present itself and ask for what its trials get, and do nothing else."""

    role = None

    def __init__(self, worker: str):
        self.id = f"worker:{worker}"
        self.name = self.worker = worker

    def may(self, role: Role | str) -> bool:  # noqa: ARG002 (as of a person)
        """Nothing: see `ENTRANCES`."""
        return False


class Nobody(AnonymousUserMixin):  # type: ignore[misc]
    """Who has not signed in."""

    name = ""
    role = None

    def may(self, role: Role | str) -> bool:  # noqa: ARG002 (as of a person)
        """Nothing."""
        return False


def register(app: APIFlask) -> None:
    """Guard every endpoint of ``app`` but `OPEN`.

    Raises:
        InputError: there is no token to guard with.
    """
    if not app.extensions[KEY].config.auth_token:
        raise InputError("is empty.", field="--auth-token", fix="An API without a token is not served.")
    app.extensions[ATTEMPTS] = Attempts()
    manager = LoginManager(app)
    manager.session_protection = None  # it ties a session to an address; people move between networks
    manager.anonymous_user = Nobody
    manager.user_loader(_of_session)
    manager.request_loader(_of_bearer)
    app.before_request(_guard)
    app.jinja_env.globals.update(csrf_token=csrf_token, may_change=may_change)
    app.register_blueprint(bp)


def needs(role: Role) -> Callable[[_View], _View]:
    """Let only users of ``role`` and above use a view, whatever the method; to stand below the view's route."""

    def mark(view: _View) -> _View:
        view.needs = role  # type: ignore[attr-defined]
        return view

    return mark


def needed(app: Flask, endpoint: str, method: str) -> Role:
    """Return the role that a request to ``endpoint`` needs."""
    asked: Role | None = getattr(app.view_functions[endpoint], "needs", None)
    return asked or (Role.VIEWER if method in SAFE else Role.MEMBER)


def check_entrance(worker: str) -> None:
    """See that a worker's own token is used for that worker.

    Raises:
        Forbidden: it is another's.
    """
    person = current_user._get_current_object()
    if isinstance(person, Entrant) and person.worker != worker:
        raise Forbidden(f"This token lets in the worker {person.worker}, not {worker}.")


def check_owner(status: EvaluationStatus) -> None:
    """See that the user may change this evaluation: a member their own, an admin every one.

    Raises:
        Forbidden: not this user.
    """
    if may_change(status):
        return
    if not current_user.may(Role.MEMBER):
        raise Forbidden(_too_little(Role.MEMBER))
    whose = f"of {status.owner}" if status.owner else "of nobody"
    raise Forbidden(f"The evaluation {status.name} is {whose}; a member changes only their own.")


def may_change(status: EvaluationStatus) -> bool:
    """Return whether the user may change this evaluation."""
    mine = bool(status.owner) and status.owner == current_user.name
    return bool(current_user.may(Role.ADMIN) or (mine and current_user.may(Role.MEMBER)))


def _too_little(role: Role) -> str:
    return f"{current_user.name} is {_article(current_user.role)} here; this needs {_article(role)}."


def _article(role: Role) -> str:
    return f"{'an' if role is Role.ADMIN else 'a'} {role.value}"


def _mark(secret: str) -> str:
    """What a session keeps of a token: enough to end with it, not enough to be it."""
    key = current_app.secret_key if isinstance(current_app.secret_key, bytes) else b""
    return hmac.new(key, secret.encode(), sha256).hexdigest()


def _operator() -> Person:
    return Person(_mark(current_site().config.auth_token), OPERATOR, Role.ADMIN)


def _person(account: Account) -> Person:
    # No name has a colon.
    return Person(f"{account.user.name}:{_mark(account.digest)}", account.user.name, account.user.role)


def _of_token(token: str) -> Person | None:
    if _same(token, current_site().config.auth_token):
        return _operator()
    account = users.by_token(current_site().shared, token)
    return _person(account) if account else None


def _of_session(id: str) -> Person | None:
    """Whose session it is; nobody's when the token it began with is no longer valid."""
    if "Authorization" in request.headers:
        return None  # then that counts, and only that
    name = id.rpartition(":")[0]
    if not name:
        person: Person | None = _operator()
    else:
        account = _unless_away(lambda: users.find(current_site().shared, name))
        person = _person(account) if account else None
    return person if person and _same(id, person.id) else None


def _of_bearer(asking: Request) -> Person | Entrant | None:
    scheme, _gap, token = asking.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        return None
    # Failures are not counted: one worker with an old token would lock out all others behind the same address.
    worker = entrance.owner(current_site().shared, token.strip())
    return Entrant(worker) if worker else _unless_away(lambda: _of_token(token.strip()))


_Found = TypeVar("_Found")


def _unless_away(look: Callable[[], _Found | None]) -> _Found | None:
    """Remember for the guard that nobody can be known: the error's own page asks who it is for, too."""
    if "users_away" in g:
        return None
    try:
        return look()
    except Unavailable as error:
        g.users_away = error
        return None


def csrf_token() -> str:
    """Return the token that a form of this session must send along."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(24)
    return str(session["csrf"])


def check_csrf() -> None:
    """See that a request riding on a session was sent by a page of ours.

    Raises:
        NotFromHere: it comes from another site, or its CSRF token is missing or wrong.
    """
    if not _from_here():
        raise NotFromHere("The request comes from another site.")
    sent = request.headers.get("X-CSRF-Token") or ("" if is_api() else request.form.get("csrf_token", ""))
    if not _same(sent, str(session.get("csrf") or "")):
        raise NotFromHere("The page was too old or not ours. Reload it and try again.")


def _from_here() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.host


def _same(sent: str, wanted: str) -> bool:
    """Compare in constant time; nothing equals an empty secret."""
    return bool(wanted) and hmac.compare_digest(sent.encode(), wanted.encode())


def _guard() -> AnyResponse | None:
    if request.endpoint is None:
        return None  # an unknown address is answered 404 or 405, whoever asks
    if not is_api() and "token" in request.args and request.method in SAFE and request.endpoint != "static":
        return _sign_in_by_address(request.args["token"])
    if request.endpoint in OPEN:
        return None
    bearer = "Authorization" in request.headers
    if not current_user.is_authenticated:
        return _stranger(bearer)
    if not bearer and request.method not in SAFE:
        check_csrf()
    role = needed(current_app, request.endpoint, request.method)
    if isinstance(person := current_user._get_current_object(), Entrant):
        if request.endpoint in ENTRANCES:
            return None
        raise Forbidden(f"This token lets in the worker {person.worker}, and is good for nothing else.")
    if not current_user.may(role):
        raise Forbidden(_too_little(role))
    return None


def _stranger(bearer: bool) -> AnyResponse:
    if "users_away" in g:
        raise g.users_away
    if bearer:
        raise Refused("The token is wrong.")
    if is_api():
        raise Refused("The token is missing.")
    if "HX-Request" in request.headers:
        # A part of a page whose session ended meanwhile: the form belongs in the whole window.
        page = _here_only(request.headers.get("HX-Current-URL", "/"))
        return Response("", 401, {"HX-Redirect": url_for("auth.sign_in", next=page)})
    return redirect(url_for("auth.sign_in", next=_here()), 303)


def _try_token(token: str) -> tuple[int, str]:
    """Sign in; returns 200, or 401 or 429 with the words for the person."""
    attempts: Attempts = current_app.extensions[ATTEMPTS]
    address = request.remote_addr or ""
    wait = attempts.wait(address)
    if wait > 0:
        return 429, _("Too many wrong tokens. Try again in %(seconds)s seconds.", seconds=int(wait) + 1)
    person = _of_token(token)
    if person is None:
        attempts.failed(address)
        return 401, _("The token is wrong.")
    attempts.succeeded(address)
    session.clear()
    session.permanent = True
    login_user(person)
    return 200, ""


def _sign_in_by_address(token: str) -> AnyResponse:
    """Take the token out of the address, whether it is right or not."""
    target = _here()
    status, words = _try_token(token)
    if status != 200:
        flash(words)
        target = url_for("auth.sign_in", next=target)
    return redirect(target, 303)


def _here() -> str:
    """The present address on this site, without a token."""
    return _address(request.path, request.query_string.decode("latin-1"))


def _address(path: str, query: str) -> str:
    kept = [(key, value) for key, value in parse_qsl(query, keep_blank_values=True) if key != "token"]
    # Two slashes at the start would name another host.
    clean = "/" + quote(path.lstrip("/\\"))
    return f"{clean}?{urlencode(kept)}" if kept else clean


def _next() -> str:
    """Where to go after signing in."""
    return _here_only(request.values.get("next", "/"))


def _here_only(address: str) -> str:
    """The path and query of an address on this site; of another one, the first page."""
    try:
        wanted = urlsplit(address)
    except ValueError:
        return "/"
    elsewhere = wanted.netloc not in ("", request.host) or not wanted.path.startswith("/")
    if elsewhere or wanted.path == url_for("auth.sign_in"):
        return "/"
    return _address(unquote(wanted.path), wanted.query)


@bp.route("/sign-in", methods=["GET", "POST"])
def sign_in() -> Response | AnyResponse | tuple[str, int]:
    """Show the form; take the token."""
    if request.method == "GET":
        if current_user.is_authenticated and "Authorization" not in request.headers:
            return redirect(_next(), 303)
        return render_template("sign_in.html", next=_next()), 200
    check_csrf()
    target = _next()
    status, words = _try_token(request.form.get("token", "").strip())
    if status == 200:
        return redirect(target, 303)
    if status == 429:
        return answer(429, [Problem(message=words)], {"Retry-After": "60"})
    flash(words)
    return render_template("sign_in.html", next=target), status


@bp.post("/sign-out")
@needs(Role.VIEWER)
def sign_out() -> AnyResponse:
    """End the session."""
    logout_user()
    session.clear()
    return redirect(url_for("auth.sign_in"), 303)
