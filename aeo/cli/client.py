"""The controller's HTTP API as functions; answers stay plain JSON, errors become ours."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

import httpx

from aeo.cli import answers
from aeo.cli.answers import Body
from aeo.config import LOOPBACK, Config, from_environment, secret
from aeo.core.errors import InputError, Unavailable
from aeo.core.names import check_name, check_variable

#: Seconds.
_TIMEOUT = httpx.Timeout(30.0, connect=5.0)
#: Planning may fetch a whole data set before it answers.
_SUBMIT_TIMEOUT = httpx.Timeout(3600.0, connect=5.0)


@dataclass(frozen=True)
class Client:
    """A connection to one controller."""

    #: Where it is, as the user named it.
    url: str
    http: httpx.Client

    def submit(self, submission: Body) -> Body:
        """Plan and start an evaluation."""
        try:
            return self._call("POST", "/api/evaluations", body=submission, timeout=_SUBMIT_TIMEOUT)
        except _Cut as error:
            raise Unavailable(
                f"{error} The evaluation may have been accepted all the same: see `aeo status`."
            ) from None

    def rerun(self, id: str, request: Body) -> Body:
        """Plan and start an evaluation that takes over the good results of an earlier one."""
        try:
            return self._call("POST", _path(id, "/rerun"), body=request, timeout=_SUBMIT_TIMEOUT)
        except _Cut as error:
            raise Unavailable(
                f"{error} The evaluation may have been accepted all the same: see `aeo status`."
            ) from None

    def check_rerun(self, id: str, request: Body) -> Body:
        """Plan such an evaluation without starting it."""
        return self._call("POST", _path(id, "/rerun/plan"), body=request, timeout=_SUBMIT_TIMEOUT)

    def check(self, submission: Body) -> Body:
        """Plan an evaluation without starting it."""
        return self._call("POST", "/api/plan", body=submission, timeout=_SUBMIT_TIMEOUT)

    def trace(self, id: str) -> Body:
        """What an evaluation's trials took."""
        return self._call("GET", _path(id, "/trace"), timeout=_SUBMIT_TIMEOUT)

    def evaluations(self, *, offset: int = 0, limit: int = 20, state: str | None = None) -> Body:
        """A page of evaluations, newest first."""
        return self._call("GET", "/api/evaluations", query={"offset": offset, "limit": limit, "state": state})

    def evaluation(self, id: str) -> Body:
        """One evaluation by id or name."""
        return self._call("GET", _path(id))

    def trials(self, id: str, *, offset: int = 0, limit: int = 100, state: str | None = None) -> Body:
        """A page of an evaluation's trials."""
        return self._call("GET", _path(id, "/trials"), query={"offset": offset, "limit": limit, "state": state})

    def export(self, id: str, kind: str, file: IO[bytes], *, media: str) -> None:
        """Write an evaluation's trials into a file, as the controller sends them; ``media`` is what it has to be."""
        path = _path(id, f"/trials.{kind}")
        with _reaching(self.url), self.http.stream("GET", self.url.rstrip("/") + path, timeout=_TIMEOUT) as response:
            if not response.is_success or response.headers.get("content-type") != media:
                response.read()
                answers.read(self.url, response)
                raise answers.stranger(self.url, response)
            for chunk in response.iter_bytes():
                file.write(chunk)

    def cancel(self, id: str) -> Body:
        """Stop an evaluation."""
        return self._call("POST", _path(id, "/cancel"))

    def pause(self, id: str, reason: str = "") -> Body:
        """Let no further trial of an evaluation start."""
        return self._call("POST", _path(id, "/pause"), body={"reason": reason})

    def resume(self, id: str) -> Body:
        """Let a paused evaluation go on."""
        return self._call("POST", _path(id, "/resume"))

    def workers(self) -> Body:
        """Every known worker."""
        return self._call("GET", "/api/workers")

    def set_weight(self, worker: str, weight: float | None) -> Body:
        """Set a worker's weight; None returns to the one by capacity."""
        return self._call("PUT", _worker(worker, "/weight"), body={"weight": weight})

    def pause_worker(self, worker: str, note: str = "") -> Body:
        """Let a worker claim nothing until it is resumed."""
        return self._call("POST", _worker(worker, "/pause"), body={"note": note})

    def resume_worker(self, worker: str) -> Body:
        """Let a worker take work again."""
        return self._call("POST", _worker(worker, "/resume"))

    def drain_worker(self, worker: str) -> Body:
        """Let a worker finish what it runs and claim nothing more."""
        return self._call("POST", _worker(worker, "/drain"))

    def allow_worker(self, worker: str) -> Body:
        """Let a removed worker in again."""
        return self._call("POST", _worker(worker, "/allow"))

    def revoke_worker(self, worker: str) -> Body:
        """Take a worker's credentials away."""
        return self._call("POST", _worker(worker, "/revoke"))

    def alerts(self) -> Body:
        """What somebody should look at now."""
        return self._call("GET", "/api/alerts")

    def remove_worker(self, worker: str, *, force: bool = False) -> Body:
        """Forget a worker; ``force``: also one that is alive and busy."""
        return self._call("DELETE", _worker(worker), query={"force": "true"} if force else {})

    def secrets(self) -> Body:
        """The secrets, without their values."""
        return self._call("GET", "/api/secrets")

    def set_secret(self, name: str, value: str) -> Body:
        """Set a secret."""
        return self._call("PUT", _secret(name), body={"value": value})

    def remove_secret(self, name: str) -> Body:
        """Remove a secret."""
        return self._call("DELETE", _secret(name))

    def rekey_secrets(self) -> Body:
        """Encrypt all secrets with a new key."""
        return self._call("POST", "/api/secrets/rekey")

    def users(self) -> Body:
        """The named users."""
        return self._call("GET", "/api/users")

    def add_user(self, name: str, role: str) -> Body:
        """Add a named user; the answer has the token."""
        return self._call("POST", "/api/users", body={"name": name, "role": role})

    def renew_user(self, name: str) -> Body:
        """Give a user a new token."""
        return self._call("POST", _user(name, "/renew"))

    def remove_user(self, name: str) -> Body:
        """Remove a named user."""
        return self._call("DELETE", _user(name))

    def limits(self) -> Body:
        """The limits of model providers."""
        return self._call("GET", "/api/limits")

    def set_limit(self, key: str, *, trials: int, per_minute: float) -> Body:
        """Limit what runs under a key; the answer has all limits."""
        return self._call("PUT", "/api/limits", body={"key": key, "trials": trials, "per_minute": per_minute})

    def clear_limit(self, key: str) -> Body:
        """Take a limit away; the answer has those that are left."""
        return self._call("DELETE", "/api/limits", query={"key": key})

    def datasets(self) -> Body:
        """Every configured dataset."""
        return self._call("GET", "/api/datasets", timeout=_SUBMIT_TIMEOUT)

    def dataset(self, name: str, **query: Any) -> Body:
        """One dataset with a page of its tasks."""
        return self._call("GET", _dataset(name), query=query, timeout=_SUBMIT_TIMEOUT)

    def add_dataset(self, dataset: Body) -> Body:
        """Configure a dataset; a path is read before the answer."""
        return self._call("POST", "/api/datasets", body=dataset, timeout=_SUBMIT_TIMEOUT)

    def remove_dataset(self, name: str, *, files: bool = False) -> Body:
        """Configure a dataset no more; ``files``: drop what was downloaded."""
        return self._call("DELETE", _dataset(name), query={"files": "true"} if files else {})

    def start_download(self, name: str) -> Body:
        """Download a dataset."""
        return self._call("POST", _dataset(name, "/download"))

    def download(self, name: str) -> Body:
        """How a dataset's last download is doing."""
        return self._call("GET", _dataset(name, "/download"))

    def cancel_download(self, name: str) -> Body:
        """Stop a dataset's download."""
        return self._call("DELETE", _dataset(name, "/download"))

    def checks(self) -> Body:
        """Check every dataset."""
        return self._call("GET", "/api/dataset-checks", timeout=_SUBMIT_TIMEOUT)

    def check_dataset(self, name: str, *, accept: bool = False) -> Body:
        """Check a dataset; ``accept``: record what is there as right."""
        if accept:
            return self._call("POST", _dataset(name, "/check"), body={"accept": True}, timeout=_SUBMIT_TIMEOUT)
        return self._call("GET", _dataset(name, "/check"), timeout=_SUBMIT_TIMEOUT)

    def start_prefetch(self, name: str, request: Body) -> Body:
        """Send a dataset's tasks to workers ahead of a run."""
        return self._call("POST", _dataset(name, "/prefetch"), body=request, timeout=_SUBMIT_TIMEOUT)

    def prefetch(self, name: str) -> Body:
        """How far workers are with that."""
        return self._call("GET", _dataset(name, "/prefetch"))

    def cancel_prefetch(self, name: str) -> Body:
        """Stop it."""
        return self._call("DELETE", _dataset(name, "/prefetch"))

    def _call(
        self,
        method: str,
        path: str,
        *,
        body: Body | None = None,
        query: Mapping[str, Any] | None = None,
        timeout: httpx.Timeout = _TIMEOUT,
    ) -> Body:
        """Make one request.

        Raises:
            InputError, Refused, Unavailable: as the controller says, or because it says nothing one can read.
        """
        content = None if body is None else json.dumps(body).encode()
        with _reaching(self.url):
            response = self.http.request(
                method,
                self.url.rstrip("/") + path,
                content=content,
                params={key: value for key, value in (query or {}).items() if value is not None},
                headers={"Content-Type": "application/json"} if content else {},
                timeout=timeout,
            )
        return answers.read(self.url, response)


class _Cut(Unavailable):
    """The request may have arrived, its answer did not."""


@contextmanager
def _reaching(url: str) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise Unavailable(_nobody(url, str(error))) from None
    except httpx.TimeoutException:
        raise _Cut(f"The controller at {url} did not answer in time.") from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol, UnicodeError) as error:
        raise InputError(f"no usable address: {error}", field="AEO_URL", fix=f"Now: {url!r}.") from None
    except httpx.RequestError as error:
        raise _Cut(f"The connection to {url} was cut ({error or type(error).__name__}).") from None


def connect(environment: Mapping[str, str] | None = None) -> Client:
    """Make a client from ``AEO_URL`` and ``AEO_TOKEN``, which may be ``@FILE``.

    On the controller's own machine the token is also found where the controller keeps it.

    Raises:
        InputError: the address or the token cannot be used.
    """
    environment = os.environ if environment is None else environment
    config = from_environment(environment)
    url = environment.get("AEO_URL", "").strip() or config.controller_url
    given = secret(environment.get("AEO_TOKEN", "").strip(), "AEO_TOKEN")
    return reach(url, given or secret(config.auth_token, "AEO_AUTH_TOKEN") or own_token(config, url))


def reach(url: str, token: str) -> Client:
    """Make a client of the controller at this address.

    Raises:
        InputError: that is no address, or no token.
    """
    own_machine = _hostname(url) in LOOPBACK
    headers = {"Accept": "application/json", "User-Agent": "aeo"}
    if token:
        if not (token.isascii() and token.isprintable()):
            raise InputError("holds characters no token has.", field="AEO_TOKEN")
        headers["Authorization"] = f"Bearer {token}"
    # A proxy from the environment cannot reach the loopback of this machine.
    return Client(url=url, http=httpx.Client(headers=headers, trust_env=not own_machine))


def own_token(config: Config, url: str) -> str:
    """The token that a controller on this machine keeps in its shared root; "" if ``url`` is elsewhere, or there is
    none that this user may read."""
    try:
        return _kept_token(config.shared_root / "token") if _hostname(url) in LOOPBACK else ""
    except InputError:
        # Who goes there says what is wrong with the address.
        return ""


def _hostname(url: str) -> str:
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError as error:
        raise InputError(f"no usable address: {error}", field="AEO_URL", fix=f"Now: {url!r}.") from None
    if parts.scheme not in ("http", "https") or not host:
        raise InputError(f"{url!r} is no http:// or https:// address.", field="AEO_URL")
    return host


def _kept_token(path: Path) -> str:
    # A link in a folder that somebody else has prepared could have us send another secret.
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            return file.read().strip() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else ""
    except (OSError, UnicodeDecodeError):
        return ""


def _path(id: str, rest: str = "") -> str:
    return f"/api/evaluations/{quote(check_name(id, 'evaluation id or name'), safe='')}{rest}"


def _worker(id: str, rest: str = "") -> str:
    return f"/api/workers/{quote(check_name(id, 'worker id'), safe='')}{rest}"


def _secret(name: str) -> str:
    return f"/api/secrets/{quote(check_variable(name, field='NAME'), safe='')}"


def _user(name: str, rest: str = "") -> str:
    return f"/api/users/{quote(check_name(name, 'user name'), safe='')}{rest}"


def _dataset(name: str, rest: str = "") -> str:
    return f"/api/datasets/{quote(check_name(name, 'dataset name'), safe='')}{rest}"


def _nobody(url: str, reason: str) -> str:
    return (
        f"No controller answers at {url} ({reason or 'no connection'}). "
        "Start one with `aeo up` or `aeo controller`, or set AEO_URL to where it runs."
    )
