"""The way of secrets from the controller to the worker that runs a trial, over the API; in memory on both ends."""

from __future__ import annotations

import hashlib
import hmac
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from urllib.parse import quote, unquote, urlsplit

import httpx

from aeo import credentials, records
from aeo.config import LOOPBACK, Config
from aeo.core.errors import AeoError, Forbidden, Unavailable
from aeo.core.model import Claim
from aeo.core.names import check_name
from aeo.secrets import vault
from aeo.site import Site, WorkerSite
from aeo.store import trials

log = logging.getLogger(__name__)

#: Seconds of one try; between two tries, doubling from the first to the last; until it is given up.
TRY_SECONDS, FIRST_WAIT, LAST_WAIT, BRING_SECONDS = 15.0, 0.5, 15.0, 120.0
#: Seconds for which a refusal is asked again: a lease that was lost is taken back, or the trial told to stop, in these.
REFUSED_SECONDS = 20.0


@dataclass(frozen=True, kw_only=True)
class Given:
    """The secrets of one trial."""

    #: Name to value.
    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Names that are set nowhere.
    missing: tuple[str, ...] = ()
    #: Why the controller gives none to this worker, though it holds the lease; "" if it does.
    refused: str = ""


def give(site: Site, evaluation: str, trial: str, *, worker: str, token: str, proof: str) -> Mapping[str, str]:
    """The secrets that an evaluation names and that are set here, for the worker that runs this trial of it now.

    Raises:
        Forbidden: the worker holds no lease of this trial under this token, or it is not the worker that asks.
        Unavailable: the secrets cannot be opened, or the store is away.
    """
    for name in (evaluation, trial, worker, token):
        check_name(name, "name")
    if not trials.holds(site.db, evaluation, trial, worker=worker, token=token):
        raise Forbidden(f"The worker {worker} does not run {trial} of {evaluation} now.")
    asked = (evaluation, trial, worker, token)
    if not any(hmac.compare_digest(_proof(key, *asked).encode(), proof.encode()) for key in _keys(site, worker)):
        raise Forbidden(f"Not the worker {worker} that asks: it has no password of the broker as told at registration.")
    return vault.values(site, records.header(site.shared.evaluation(evaluation)).spec.secrets)


def prove(config: Config, claim: Claim) -> str:
    """What shows that a worker asks, and nobody who merely has a token of the API: it knows the broker's password."""
    return _proof(_key(config.broker_url), claim.evaluation, claim.trial, claim.worker, claim.token)


def _keys(site: Site, worker: str) -> Iterator[str]:
    """Digests of the passwords with which this worker may use the broker: its own, or the broker's.

    None where the broker has no password: anybody can show that he knows it.
    """
    account = credentials.read(site).accounts.get(worker)
    if account is not None:
        yield account.digest
        return
    for url in (site.config.broker_url, site.config.worker_broker_url):
        if urlsplit(url).password:
            yield _key(url)


def _key(broker_url: str) -> str:
    return hashlib.sha256(unquote(urlsplit(broker_url).password or "").encode()).hexdigest()


def _proof(key: str, *asked: str) -> str:
    return hmac.new(key.encode(), "\n".join(asked).encode(), hashlib.sha256).hexdigest()


def bring(site: WorkerSite, claim: Claim, names: Sequence[str], *, gives_up: Callable[[], object]) -> Given:
    """The secrets for a trial that this worker runs: the controller's, and what it lacks from this process's own.

    So all trials of an evaluation have the same, whatever stands on some machine, and one that is changed on the
    controller is changed everywhere. Tried again while that may help and ``gives_up`` does not say so.

    Raises:
        Unavailable: the controller did not give them within `BRING_SECONDS`.
    """
    if not names:
        return Given()
    wait, until, refused_until = FIRST_WAIT, time.monotonic() + BRING_SECONDS, 0.0
    while True:
        try:
            given = _ask(site.config, claim)
            break
        except AeoError as error:
            if isinstance(error, Forbidden):
                refused_until = refused_until or time.monotonic() + REFUSED_SECONDS
                if time.monotonic() > refused_until and not gives_up():
                    return Given(refused=str(error))
            else:
                refused_until = 0.0
            if gives_up() or time.monotonic() > until or site.stopping.wait(wait):
                raise Unavailable(f"The secrets of {claim.trial} did not come: {error}") from None
            log.warning("%s; trying again", error)
            wait = min(wait * 2, LAST_WAIT)
    own = {name: os.environ[name] for name in names if os.environ.get(name)}
    values = {name: {**own, **given}[name] for name in names if name in own or name in given}
    return Given(values=values, missing=tuple(name for name in names if name not in values))


def _ask(config: Config, claim: Claim) -> Mapping[str, str]:
    url = f"{config.controller_url.rstrip('/')}/api/evaluations/{quote(claim.evaluation, safe='')}/secrets"
    headers = {"Authorization": f"Bearer {config.auth_token}"}
    body = {"worker": claim.worker, "trial": claim.trial, "token": claim.token, "proof": prove(config, claim)}
    try:
        # As at registration: no proxy reaches the loopback of this machine.
        local = urlsplit(url).hostname in LOOPBACK
        answer = httpx.post(url, json=body, headers=headers, timeout=TRY_SECONDS, trust_env=not local)
        if answer.status_code == httpx.codes.OK:
            found = answer.json()["secrets"]
            return {str(name): str(value) for name, value in found.items()}
    except httpx.HTTPError as error:
        raise Unavailable(f"The controller does not answer: {str(error) or type(error).__name__}") from None
    except (ValueError, LookupError, TypeError, AttributeError):
        # Not what it said: that may be a secret.
        raise Unavailable(f"{config.controller_url} gives no secrets: it answers something else.") from None
    kind = Forbidden if answer.status_code == httpx.codes.FORBIDDEN else Unavailable
    raise kind(f"The controller gives no secrets ({answer.status_code}): {_reason(answer)}")


def _reason(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["detail"])[:500]
    except (ValueError, LookupError, TypeError):
        return "it does not say why."
