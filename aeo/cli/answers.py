"""What the controller answers, as JSON or as one of our errors; nothing of it reaches a terminal as it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import httpx

from aeo.core.errors import AeoError, Conflict, Forbidden, InputError, NotFound, Problem, Refused, Unavailable

#: One JSON object of the API.
Body = Mapping[str, Any]


def read(url: str, response: httpx.Response) -> Body:
    """The JSON object of an answer of the controller at ``url``.

    Raises:
        AeoError: it tells of an error, or is none of a controller's.
    """
    try:
        body = response.json() if response.content else {}
    except (ValueError, RecursionError):
        body = None
    if response.is_success and isinstance(body, dict):
        return body
    if response.is_success or body is None or not isinstance(body, dict):
        raise stranger(url, response)
    raise _error(url, response.status_code, body)


def stranger(url: str, response: httpx.Response) -> AeoError:
    """What to say of an answer that is none of a controller's."""
    kind = clean(response.headers.get("content-type", "").split(";")[0]) or "no content type"
    message = f"{url} answered {response.status_code} with {kind} instead of the API's JSON."
    if response.status_code in (401, 403):
        return Refused(f"{message} Set AEO_TOKEN, or check AEO_URL.")
    if response.status_code >= 500:
        return Unavailable(f"{message} The controller, or a proxy before it, is in trouble.")
    return Unavailable(f"{message} Is AEO_URL the address of a controller?")


def _error(url: str, status: int, body: Body) -> AeoError:
    problems = _problems(body) or (Problem(message=_summary(status, body)),)
    said = " ".join(map(str, problems))
    if status == 401:
        return Refused(f"{said} Set AEO_TOKEN to yours, or the controller's (its file `token` in its shared root).")
    if status == 403:
        return Forbidden(said)
    if status == 404:
        return NotFound(problems=problems)
    if status == 409:
        return Conflict(problems=problems)
    if 400 <= status < 500:
        return InputError(problems=problems)
    return Unavailable(f"The controller at {url} failed ({status}): {said}")


def _summary(status: int, body: Body) -> str:
    for key in ("detail", "title", "message"):
        if isinstance(body.get(key), str) and body[key]:
            return clean(body[key])
    return f"The controller answered {status}."


def _problems(body: Body) -> tuple[Problem, ...]:
    given = body.get("problems")
    if not isinstance(given, list):
        return ()
    return tuple(
        Problem(**{key: clean(item.get(key) or "") for key in ("message", "field", "fix")})
        for item in given
        if isinstance(item, dict) and item.get("message")
    )


def clean(value: Any) -> str:
    """Text from elsewhere, safe for a terminal: what cannot be printed is shown as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(value))
