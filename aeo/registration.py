"""A worker presents itself to the controller by URL and token, and learns where everything else is."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from aeo import codec
from aeo.config import LOOPBACK, Config
from aeo.core.errors import AeoError, Conflict, Forbidden, InputError, Problem, Refused, Unavailable
from aeo.core.model import WorkerInfo

log = logging.getLogger(__name__)

#: Seconds between two tries while the controller is away: doubling from the first to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0


@dataclass(frozen=True, kw_only=True)
class Addresses:
    """What the controller tells a worker it accepts."""

    broker_url: str
    transfer_url: str
    transfer_password: str = ""
    #: The shared root as a path, for a worker that sees it: what tells it from another folder is its mark.
    shared_root: str = ""
    shared_mark: str = ""
    lease_seconds: float
    grace_seconds: float
    #: The credentials it has go on.
    kept: bool = False

    def __repr__(self) -> str:
        return f"Addresses(transfer_url={self.transfer_url!r}, ...)"


def check_token(token: str) -> None:
    """See that there is a token, and that it can be sent.

    Raises:
        InputError: there is none, or it has letters that no token has.
    """
    if not token:
        raise InputError(
            "no token: set AEO_AUTH_TOKEN or --auth-token @FILE; "
            "on the controller's machine run it in the controller's folder, or set AEO_SHARED_ROOT."
        )
    if not (token.isascii() and token.isprintable() and " " not in token):
        raise InputError("the token has letters that no token has.", field="--auth-token", fix="Copy it anew.")


def register(config: Config, info: WorkerInfo, *, again: bool = False) -> Addresses:
    """Register once; ``again``: the controller forgot this process, which keeps its credentials where it can.

    Raises:
        Refused: the token is wrong.
        Conflict: a live worker has this id.
        InputError: there is no token, the address is no controller's, or it cannot use what we say of ourselves.
        Unavailable: the controller does not answer.
    """
    check_token(config.auth_token)
    url = f"{config.controller_url.rstrip('/')}/api/workers"
    headers = {"Authorization": f"Bearer {config.auth_token}"}
    query = {"again": "true"} if again else {}
    try:
        # A proxy from the environment cannot reach the loopback of this machine.
        if not 0 < (urlsplit(url).port or 80) < 65536:
            raise ValueError("it has a port that is none")
        local = httpx.URL(url).host in LOOPBACK
        told = codec.encode(info)
        response = httpx.post(url, json=told, params=query, headers=headers, timeout=15, trust_env=not local)
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.LocalProtocolError, ValueError) as error:
        # Nothing that could be sent; trying again would change nothing.
        why = str(error).rstrip(".")
        raise InputError(f"{config.controller_url!r} is no address: {why}.", field="--controller-url") from None
    except httpx.HTTPError as error:
        why = str(error).rstrip(".") or type(error).__name__
        raise Unavailable(f"The controller at {config.controller_url} does not answer: {why}") from error
    if response.status_code != httpx.codes.OK:
        raise _error(config, info, response)
    try:
        return codec.loads(Addresses, response.content)
    except InputError:
        raise _stranger(config, response) from None


def register_patiently(config: Config, info: WorkerInfo, stop: threading.Event) -> Addresses:
    """Register, waiting for a controller that is away until ``stop`` is set.

    Raises:
        Refused, Conflict, InputError: see `register`.
        Unavailable: stopped before the controller answered.
    """
    pause, said = FIRST_PAUSE, ""
    while True:
        try:
            return register(config, info)
        except Unavailable as error:
            if str(error) != said:
                log.warning("%s; trying again", error)
                said = str(error)
            if stop.wait(pause):
                raise
            pause = min(pause * 2, LONGEST_PAUSE)


def _error(config: Config, info: WorkerInfo, response: httpx.Response) -> AeoError:
    problem = _problem(response)
    detail = str(problem.get("detail") or problem.get("title") or "")
    status = response.status_code
    if status == httpx.codes.FORBIDDEN and detail:
        return Forbidden(
            f"The controller at {config.controller_url} refuses the token: {detail} "
            "A worker needs the controller's own token (AEO_AUTH_TOKEN, or --auth-token @FILE), or an administrator's."
        )
    if status in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return Refused(
            f"The controller at {config.controller_url} refuses the token. "
            "Give its own (AEO_AUTH_TOKEN, or --auth-token @FILE); the controller keeps it in <shared-root>/token."
        )
    problems = _problems(problem)
    if status == httpx.codes.CONFLICT:
        # They name the flag themselves.
        return Conflict(
            detail or f"a live worker has the id {info.id!r}.",
            field="--worker-id",
            fix="Give another id, or stop that worker.",
            problems=problems,
        )
    # A proxy before it says these when the controller is away.
    if status in (429, 502, 503, 504) or (problem and status >= 500):
        return Unavailable(f"The controller at {config.controller_url} answers {status}. {detail}".strip().rstrip("."))
    if not problem:
        return _stranger(config, response)
    return InputError(detail or f"the controller answers {status}.", problems=problems)


def _problems(problem: Mapping[str, Any]) -> tuple[Problem, ...]:
    return tuple(
        Problem(message=str(item.get("message", "")), field=str(item.get("field", "")), fix=str(item.get("fix", "")))
        for item in problem.get("problems") or ()
        if isinstance(item, dict)
    )


def _problem(response: httpx.Response) -> dict[str, Any]:
    try:
        body = response.json()
    except ValueError:
        return {}
    return body if isinstance(body, dict) and ("title" in body or "detail" in body) else {}


def _stranger(config: Config, response: httpx.Response) -> InputError:
    return InputError(
        f"{config.controller_url} answers {response.status_code} and is no AEO controller.",
        field="--controller-url",
        fix="Give the controller's own address, as its start-up line shows it.",
    )
