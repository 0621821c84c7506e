"""The controller as another machine reaches it: whether it answers, lets us in, and runs our version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from aeo.config import LOOPBACK
from aeo.core.condition import Condition, fault, ok, warning
from aeo.health import clock

PATIENCE = 10.0


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What came back."""

    url: str
    #: Why nothing did; empty if something did.
    error: str = ""
    #: Status of the open health page, and of one that asks for a token (0: not asked, as there is none).
    status: int = 0
    entry: int = 0
    #: The controller's version; empty when it is no controller.
    version: str = ""
    #: Seconds this machine's clock is ahead; None when the answer does not tell.
    ahead: float | None = None


def measure(url: str, token: str) -> Answer:
    """Ask the controller who it is, and whether it knows the token."""
    url = url.rstrip("/")
    local = urlsplit(url).hostname in LOOPBACK
    try:
        with httpx.Client(timeout=PATIENCE, trust_env=not local) as client:
            before = time.time()
            health = client.get(f"{url}/api/health")
            middle = (before + time.time()) / 2
            headers = {"Authorization": f"Bearer {token}"}
            entry = client.get(f"{url}/api/workers", headers=headers).status_code if token else 0
    except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
        return Answer(url=url, error=str(error).rstrip(".") or type(error).__name__)
    return Answer(
        url=url, status=health.status_code, entry=entry, version=_version(health), ahead=_ahead(health, middle)
    )


def _version(response: httpx.Response) -> str:
    try:
        body = response.json()
    except ValueError:
        return ""
    return str(body.get("version", "")) if isinstance(body, dict) and "redis" in body else ""


def _ahead(response: httpx.Response, now: float) -> float | None:
    try:
        told = parsedate_to_datetime(response.headers.get("Date", "")).timestamp()
    except (TypeError, ValueError):
        return None
    # It tells whole seconds, cut off.
    return now - (told + 0.5)


def judge(answer: Answer, ours: str) -> Iterator[Condition]:
    """Judge the answer; ``ours`` is the version here."""
    if answer.error:
        fix = "Check AEO_CONTROLLER_URL; start the controller, or the tunnel that leads to it."
        yield fault("controller", f"{answer.url} does not answer: {answer.error}", fix)
        return
    if not answer.version:
        fix = "Give the controller's own address in AEO_CONTROLLER_URL, as its start-up line shows it."
        yield fault("controller", f"{answer.url} answers {answer.status} and is no AEO controller", fix)
    elif answer.status != httpx.codes.OK:
        yield fault("controller", f"{answer.url} cannot reach its broker", "Run `aeo doctor` on its machine.")
    else:
        yield ok("controller", f"{answer.url}")
    if answer.version:
        yield _versions(answer.version, ours)
    # A token that lets in one worker may not look: then it is known all the same.
    if answer.entry == httpx.codes.UNAUTHORIZED:
        fix = "Set AEO_AUTH_TOKEN to the controller's; it keeps it in <shared-root>/token."
        yield fault("token", "the controller refuses it", fix)
    elif not answer.entry:
        yield fault("token", "there is none", "Set AEO_AUTH_TOKEN, or --auth-token @FILE.")
    if answer.ahead is not None:
        yield clock.judge(answer.ahead, "the controller")


def _versions(theirs: str, ours: str) -> Condition:
    if theirs == ours:
        return ok("version", f"{ours}, as the controller")
    fix = f"Install the controller's here: `pip install agent-eval-orchestrator=={theirs}`, and restart the worker."
    return warning("version", f"this is AEO {ours}, the controller is {theirs}", fix)
