"""What every answer and every log line must obey: headers, body size, cookies, no token in a log."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import secrets
import tempfile
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

from flask import Flask, Request, Response, abort, request
from flask.json.provider import DefaultJSONProvider
from flask.sessions import SecureCookieSessionInterface

from aeo import users
from aeo.core.errors import InputError
from webapp.site import KEY

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "object-src 'none'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    # "no-referrer" would make browsers send "Origin: null" with our own forms.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Permitted-Cross-Domain-Policies": "none",
    "Permissions-Policy": ", ".join(
        f"{feature}=()"
        for feature in (
            *("accelerometer", "browsing-topics", "camera", "display-capture", "geolocation", "gyroscope"),
            *("magnetometer", "microphone", "midi", "payment", "screen-wake-lock", "serial", "usb"),
        )
    ),
}
#: Sent by https only: a controller on plain http must stay reachable.
STRICT_TRANSPORT = f"max-age={365 * 24 * 3600}"
#: Static files have their version in the name, so they never change.
STATIC_SECONDS = 365 * 24 * 3600
SESSION_DAYS = 30
#: Levels of lists and objects in a JSON body.
DEPTH = 100

_TOKEN_IN_QUERY = re.compile(r"(?i)([?&](?:token|csrf_token)=)[^&\s\"']*")
_TOKEN_OF_USER = re.compile(users.PREFIX + r"[A-Za-z0-9_-]{40,}")


def register(app: Flask) -> None:
    """Set limits, cookies and headers."""
    site = app.extensions[KEY]
    app.request_class = _StrictRequest
    app.json = _StrictJson(app)
    app.session_interface = _Sessions()
    app.secret_key = web_secret(site.shared.web_secret)
    app.config.update(
        MAX_CONTENT_LENGTH=site.config.max_body,
        # Two controllers on one host share their cookies, as ports do not part them.
        SESSION_COOKIE_NAME=f"aeo_session_{site.config.port}",
        SESSION_COOKIE_HTTPONLY=True,
        SESSION_COOKIE_SAMESITE="Lax",
        SESSION_REFRESH_EACH_REQUEST=False,
        PERMANENT_SESSION_LIFETIME=timedelta(days=SESSION_DAYS),
        SEND_FILE_MAX_AGE_DEFAULT=STATIC_SECONDS,
    )
    # A redirect that tidies the path would carry the query, and a token in it, into Location.
    app.url_map.merge_slashes = False
    app.before_request(_refuse_large_body)
    app.after_request(_add_headers)


def web_secret(path: Path) -> bytes:
    """Return the key that signs sessions; made once (0600), so that sessions outlive a restart.

    Raises:
        InputError: the file is damaged.
    """
    if not path.exists():
        made, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(made, "wb") as file:
            file.write(secrets.token_bytes(32))
        # Never over a key that another process made meanwhile.
        with contextlib.suppress(FileExistsError):
            os.link(name, path)
        Path(name).unlink()
    key = path.read_bytes()
    if len(key) < 32:
        raise InputError("is cut off.", field=str(path), fix="Delete it; everyone will have to sign in again.")
    return key


class HideTokens(logging.Filter):
    """Takes the API token, users' tokens, and any token of an address, out of a log record."""

    def __init__(self, token: str = ""):
        super().__init__()
        self._token = token

    def filter(self, record: logging.LogRecord) -> bool:
        shown = record.getMessage()
        clean = self._clean(shown)
        if clean != shown:
            record.msg, record.args = clean, ()
        if record.exc_info and not record.exc_text:
            record.exc_text = logging.Formatter().formatException(record.exc_info)
        if record.exc_text:
            record.exc_text = self._clean(record.exc_text)
        return True

    def _clean(self, text: str) -> str:
        if self._token:
            text = text.replace(self._token, "[hidden]")
        return _TOKEN_OF_USER.sub("[hidden]", _TOKEN_IN_QUERY.sub(r"\1[hidden]", text))


class _Sessions(SecureCookieSessionInterface):
    def get_cookie_secure(self, app: Flask) -> bool:  # noqa: ARG002 (the base has it so)
        """Whether the request came by https, so that plain http on a laptop still signs in."""
        return request.is_secure

    def save_session(self, app: Flask, session: Any, response: Response) -> None:
        # Static files are the same for all; "Vary: Cookie" would have browsers ask for them again at each change.
        if request.endpoint != "static":
            super().save_session(app, session, response)


class _StrictJson(DefaultJSONProvider):
    """JSON without what is read one way here and another way there: NaN, lone surrogates, a key said twice.

    Nor with nesting that ends the interpreter.
    """

    sort_keys = False

    def loads(self, s: str | bytes, **kwargs: Any) -> Any:
        def refuse(constant: str) -> Any:
            raise ValueError(f"{constant} is not JSON")

        try:
            value = json.loads(s, parse_constant=refuse, object_pairs_hook=_once, **kwargs)
            deep = _deeper(value, DEPTH)
            if not deep:
                json.dumps(value, ensure_ascii=False).encode()
        except RecursionError:
            deep = True
        except UnicodeEncodeError:
            raise ValueError("it has half of a surrogate pair") from None
        if deep:
            raise ValueError(f"it is nested deeper than {DEPTH} levels")
        return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
        raise ValueError(f"the key {twice[:100]!r} is there twice in one object")
    return value


def _deeper(value: Any, levels: int) -> bool:
    if not isinstance(value, (dict, list)):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return levels == 0 or any(_deeper(item, levels - 1) for item in inner)


class _StrictRequest(Request):
    def get_json(self, force: bool = False, silent: bool = False, cache: bool = True) -> Any:
        """Read the body, which must say that it is JSON: a form of another site cannot say so unasked.

        Raises:
            InputError: it is no JSON.
            UnsupportedMediaType: it says to be something else.
        """
        if self.mimetype != "application/json" and self.get_data():
            abort(415, "The body's Content-Type is not application/json.")
        return super().get_json(force=force, silent=silent, cache=cache)

    def on_json_loading_failed(self, e: ValueError | None) -> Any:
        """Turn it into our own error, which says what is wrong with the text.

        Raises:
            InputError: always, unless the body was cut at the limit.
        """
        body, limit = self.get_data(), self.max_content_length
        if self.content_length is None and limit is not None and len(body) >= limit:
            abort(413)  # werkzeug ends such a body at the limit without a word
        reason = e if body else "it is empty"
        raise InputError(f"The body is not JSON: {reason}.", field="body", fix="Send one JSON object.") from None


def _refuse_large_body() -> None:
    limit = request.max_content_length
    if limit is not None and (request.content_length or 0) > limit:
        abort(413)


def _add_headers(response: Response) -> Response:
    for name, value in HEADERS.items():
        response.headers.setdefault(name, value)
    if request.is_secure:
        response.headers.setdefault("Strict-Transport-Security", STRICT_TRANSPORT)
    if request.endpoint != "static":
        response.headers["Cache-Control"] = "no-store"
    elif response.status_code in (200, 304):
        response.headers["Cache-Control"] = f"public, max-age={STATIC_SECONDS}, immutable"
    return response
