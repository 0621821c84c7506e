"""Who may do what: the one token, as a bearer or once in a browser, which then has a session."""

from __future__ import annotations

import hmac
import secrets
from hashlib import sha256
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from apiflask import APIFlask
from flask import Blueprint, Flask, Response, current_app, flash, redirect, render_template, request, session, url_for
from flask_login import LoginManager, UserMixin, current_user, login_user, logout_user
from werkzeug.exceptions import Forbidden
from werkzeug.wrappers import Response as AnyResponse

from aeo.core.errors import InputError, Problem, Refused
from webapp.attempts import Attempts
from webapp.problems import answer, is_api
from webapp.site import KEY, current_site

#: Endpoints open to everyone. Everything else asks for the token.
OPEN = frozenset({"health.show", "openapi.spec", "static", "auth.sign_in"})
SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
ATTEMPTS = "aeo.attempts"

bp = Blueprint("auth", __name__)


class Operator(UserMixin):  # type: ignore[misc]
    """The one user: whoever has the token. The id is made of the token, so a new token ends every session."""

    def __init__(self, id: str):
        self.id = id


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
    manager.user_loader(_load)
    app.before_request(_guard)
    app.jinja_env.globals["csrf_token"] = csrf_token
    app.register_blueprint(bp)


def operator_id(app: Flask) -> str:
    """Return the user id that belongs to the present token."""
    key = app.secret_key if isinstance(app.secret_key, bytes) else b""
    return hmac.new(key, app.extensions[KEY].config.auth_token.encode(), sha256).hexdigest()


def csrf_token() -> str:
    """Return the token that a form of this session must send along."""
    if "csrf" not in session:
        session["csrf"] = secrets.token_urlsafe(24)
    return str(session["csrf"])


def check_csrf() -> None:
    """See that a request riding on a session was sent by a page of ours.

    Raises:
        Forbidden: it comes from another site, or its CSRF token is missing or wrong.
    """
    if not _from_here():
        raise Forbidden("The request comes from another site.")
    sent = request.headers.get("X-CSRF-Token") or ("" if is_api() else request.form.get("csrf_token", ""))
    if not _same(sent, str(session.get("csrf") or "")):
        raise Forbidden("The page was too old or not ours. Reload it and try again.")


def _from_here() -> bool:
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site == "same-origin"
    origin = request.headers.get("Origin")
    return origin is None or origin.partition("://")[2] == request.host


def _same(sent: str, wanted: str) -> bool:
    """Compare in constant time; nothing equals an empty secret."""
    return bool(wanted) and hmac.compare_digest(sent.encode(), wanted.encode())


def _load(id: str) -> Operator | None:
    return Operator(id) if _same(id, operator_id(current_app)) else None


def _guard() -> AnyResponse | None:
    if request.endpoint is None:
        return None  # an unknown address is answered 404 or 405, whoever asks
    if not is_api() and "token" in request.args and request.method in SAFE and request.endpoint != "static":
        return _sign_in_by_address(request.args["token"])
    if request.endpoint in OPEN:
        return None
    header = request.headers.get("Authorization")
    if header is not None:
        _check_bearer(header)
    elif current_user.is_authenticated:
        if request.method not in SAFE:
            check_csrf()
    elif is_api():
        raise Refused("The token is missing.")
    else:
        return redirect(url_for("auth.sign_in", next=_here()), 303)
    return None


def _check_bearer(header: str) -> None:
    scheme, _, token = header.partition(" ")
    # Failures are not counted: one worker with an old token would lock out all others behind the same address.
    if scheme.lower() != "bearer" or not _same(token.strip(), current_site().config.auth_token):
        raise Refused("The token is wrong.")


def _try_token(token: str) -> tuple[int, str]:
    """Sign in; returns 200, or 401 or 429 with the words for the person."""
    attempts: Attempts = current_app.extensions[ATTEMPTS]
    address = request.remote_addr or ""
    wait = attempts.wait(address)
    if wait > 0:
        return 429, f"Too many wrong tokens. Try again in {int(wait) + 1} seconds."
    if not _same(token, current_site().config.auth_token):
        attempts.failed(address)
        return 401, "The token is wrong."
    attempts.succeeded(address)
    session.clear()
    session.permanent = True
    login_user(Operator(operator_id(current_app)))
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
    """Where to go after signing in: an address on this site only."""
    try:
        wanted = urlsplit(request.values.get("next", "/"))
    except ValueError:
        return "/"
    if wanted.scheme or wanted.netloc or not wanted.path.startswith("/") or wanted.path == url_for("auth.sign_in"):
        return "/"
    return _address(unquote(wanted.path), wanted.query)


@bp.route("/sign-in", methods=["GET", "POST"])
def sign_in() -> Response | AnyResponse | tuple[str, int]:
    """Show the form; take the token."""
    if request.method == "GET":
        if current_user.is_authenticated:
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
def sign_out() -> AnyResponse:
    """End the session."""
    logout_user()
    session.clear()
    return redirect(url_for("auth.sign_in"), 303)
