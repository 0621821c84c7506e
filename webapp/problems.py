"""Every error as an answer: problem JSON (RFC 9457) for programs, a page for people. The only place that does it."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from apiflask import APIFlask, HTTPError
from flask import Response, json, make_response, render_template, request
from pydantic import ValidationError
from werkzeug.exceptions import HTTPException

from aeo.codec import encode
from aeo.core.errors import AeoError, Conflict, Forbidden, InputError, NotFound, Problem, Refused, Unavailable, Unusable
from webapp import invalid
from webapp.site import current_site

log = logging.getLogger(__name__)

#: Seconds after which a client may try again when a part is away.
RETRY_SECONDS = 5

_FIXES = {
    404: "See /api/openapi.json for what there is.",
    405: "See the Allow header and /api/openapi.json.",
    415: "Send 'Content-Type: application/json'.",
}


def register(app: APIFlask) -> None:
    """Answer every error of ``app``."""
    app.register_error_handler(AeoError, _of_aeo_error)
    app.register_error_handler(Exception, _of_surprise)
    # Both, because APIFlask handles the two trees itself unless told otherwise.
    app.register_error_handler(HTTPError, _of_invalid_request)
    app.register_error_handler(HTTPException, _of_http_error)


def is_api() -> bool:
    """Whether the request is one of the API, or else made by programs, so that its errors are JSON."""
    return request.path.startswith("/api/") or request.path in ("/api", "/metrics")


def answer(status: int, problems: Iterable[Problem], headers: Mapping[str, str] | None = None) -> Response:
    """Make the error answer with the words of ``problems``."""
    problems = tuple(problems)
    phrase = HTTPStatus(status).phrase
    if is_api():
        body = {
            "type": "about:blank",
            "title": phrase,
            "status": status,
            "detail": " ".join(str(item) for item in problems),
            "problems": encode(problems),
        }
        response = Response(json.dumps(body), status, content_type="application/problem+json")
    else:
        response = make_response(render_template("problem.html", title=phrase, problems=problems), status)
    response.headers.update(dict(headers or {}))
    return response


def _of_aeo_error(error: AeoError) -> Response:
    if isinstance(error, InputError):
        status = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Conflict) else 422
        return answer(status, error.problems)
    if isinstance(error, Forbidden):
        return answer(403, [Problem(message=str(error), fix="Ask an administrator of this controller.")])
    if isinstance(error, Refused):
        fix = "Send 'Authorization: Bearer <token>' with a user's or the controller's token (AEO_TOKEN for `aeo`)."
        return answer(401, [Problem(message=str(error), fix=fix)], {"WWW-Authenticate": 'Bearer realm="aeo"'})
    if isinstance(error, Unavailable):
        log.warning("%s %s: %s: %s", request.method, request.path, type(error).__name__, error)
        if isinstance(error, Unusable):
            return answer(503, [Problem(message=str(error))])
        fix = "Try again in a moment."
        return answer(503, [Problem(message=str(error), fix=fix)], {"Retry-After": str(RETRY_SECONDS)})
    return _of_surprise(error)


def _of_surprise(error: Exception) -> Response:
    id = secrets.token_hex(4)
    log.error("error %s: %s %s", id, request.method, request.path, exc_info=error)
    return answer(500, [Problem(message="Something went wrong.", fix=f"The controller's log tells more under {id}.")])


def _of_http_error(error: HTTPException) -> Response:
    if error.response is not None:  # a redirect
        return make_response(error.response)
    status = error.code or 500
    if status == 413:
        limit = current_site().config.max_body
        problem = Problem(message=f"The body is larger than {limit} bytes.", field="body", fix="Send less.")
    elif status == 404:
        problem = Problem(message=f"There is no {request.path}.", fix=_FIXES[404] if is_api() else "")
    else:
        problem = Problem(message=error.description or error.name, fix=_FIXES.get(status, ""))
    headers = {key: value for key, value in error.get_headers() if key.lower() in ("allow", "retry-after", "location")}
    return answer(status, [problem], headers)


def _of_invalid_request(error: HTTPError) -> Response:
    if isinstance(error.__cause__, ValidationError):
        place = next(iter(_details(error.detail)), "")
        return answer(error.status_code, invalid.problems(error.__cause__, place))
    problems = [
        Problem(message=message, field=_field(place, name))
        for place, fields in _details(error.detail).items()
        for name, messages in fields.items()
        for message in messages
    ]
    return answer(error.status_code, problems or [Problem(message=error.message or "")])


def _details(detail: Any) -> Mapping[str, Mapping[str, list[str]]]:
    return detail if isinstance(detail, Mapping) else {}


def _field(place: str, name: str) -> str:
    if name != "_schema":
        return name
    return "body" if place == "json" else place
