"""Where notices go: a webhook and e-mail. Addresses may hold secrets: neither is ever part of a message of ours."""

from __future__ import annotations

import ipaddress
import smtplib
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from email.message import EmailMessage
from email.utils import format_datetime
from functools import partial
from urllib.parse import unquote, urlsplit

import httpx

from aeo import __version__, codec
from aeo.config import Config
from aeo.core.notices import Notice

#: Seconds each step of a delivery may take.
STEP_SECONDS = 5.0
#: Answers of a webhook that another try may change; other 4xx it does not.
_PASSING = frozenset({401, 403, 404, 408, 409, 423, 425, 429})

#: Delivers one notice, or raises `Undelivered`.
Channel = Callable[[Notice], None]


class Undelivered(Exception):
    """A notice did not arrive."""

    def __init__(self, message: str, *, permanent: bool = False):
        super().__init__(message)
        #: Whether trying again would change nothing.
        self.permanent = permanent


def configured(config: Config) -> Mapping[str, Channel]:
    """The channels in use, by name."""
    channels: dict[str, Channel] = {}
    if config.notify_url:
        channels["webhook"] = partial(_post, config.notify_url)
    if config.notify_email:
        channels["email"] = partial(_mail, config)
    return channels


def _post(url: str, notice: Notice) -> None:
    """Post it as JSON; chat programs show its ``text``. The id is in a header too, for who wants each but once."""
    body = {**codec.encode(notice), "text": f"{notice.subject}\n{notice.text}"}
    headers = {
        "Content-Type": "application/json",
        "User-Agent": f"aeo/{__version__}",
        "Idempotency-Key": notice.id,
    }
    try:
        with httpx.Client(timeout=STEP_SECONDS, follow_redirects=False) as client:
            status = client.post(url, content=codec.dumps(body).encode(), headers=headers).status_code
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, OSError) as error:
        # The error's own words may have the address.
        raise Undelivered(f"the webhook does not answer ({type(error).__name__})") from None
    if not 200 <= status < 300:
        permanent = 400 <= status < 500 and status not in _PASSING
        raise Undelivered(f"the webhook answered {status}", permanent=permanent)


def _mail(config: Config, notice: Notice) -> None:
    message = EmailMessage()
    message["Subject"] = f"[AEO] {notice.subject}"[:200]
    message["From"] = config.notify_from or f"aeo@{_domain()}"
    message["To"] = ", ".join(config.notify_email)
    message["Date"] = format_datetime(notice.at)
    # The same at each try: mail programs show it once.
    message["Message-ID"] = f"<{notice.id}@aeo.invalid>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(notice.text + "\n")
    try:
        server = _connect(config.smtp_url)
        try:
            refused = server.send_message(message)
        finally:
            # What it says to a goodbye changes nothing.
            with suppress(smtplib.SMTPException, OSError):
                server.quit()
            server.close()
    except smtplib.SMTPRecipientsRefused as error:
        permanent = all(code >= 500 for code, _ in error.recipients.values())
        raise Undelivered("the mail server refuses every recipient", permanent=permanent) from None
    except smtplib.SMTPResponseException as error:
        raise Undelivered(f"the mail server answered {error.smtp_code}") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        raise Undelivered(f"the mail server does not take it ({type(error).__name__})") from None
    if refused:
        # The others have it: trying again would send it to them twice.
        raise Undelivered(f"the mail server refuses {len(refused)} of the recipients", permanent=True)


def _connect(url: str) -> smtplib.SMTP:
    """A session with the mail server: encrypted, unless it is on this machine or offers nothing."""
    parts = urlsplit(url)
    host = parts.hostname or "127.0.0.1"
    if parts.scheme == "smtps":
        context = ssl.create_default_context()
        server: smtplib.SMTP = smtplib.SMTP_SSL(host, parts.port or 465, timeout=STEP_SECONDS, context=context)
    else:
        server = smtplib.SMTP(host, parts.port or 25, timeout=STEP_SECONDS)
    try:
        server.ehlo()
        encrypted = parts.scheme == "smtps"
        if not encrypted and not _here(host) and server.has_extn("starttls"):
            server.starttls(context=ssl.create_default_context())
            server.ehlo()
            encrypted = True
        if parts.username:
            if not encrypted and not _here(host):
                raise Undelivered("the mail server wants a password over an open line", permanent=True)
            server.login(unquote(parts.username), unquote(parts.password or ""))
    except BaseException:
        server.close()
        raise
    return server


def _here(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def _domain() -> str:
    name = socket.gethostname()
    return name if name.replace("-", "").replace(".", "").isalnum() and name.isascii() else "localhost"
