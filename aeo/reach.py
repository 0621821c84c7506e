"""Trying, at a start, what a process stands on: the broker, and the address that results go to."""

from __future__ import annotations

import logging
import socket
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

from aeo.config import Config
from aeo.core.errors import InputError, TransferFailed, Unavailable
from aeo.layout import Shared
from aeo.store.connection import Denied, connect
from aeo.transfer import move, remote
from aeo.transfer.remote import Remote

log = logging.getLogger(__name__)

#: Seconds in which a broker is tried, and between two tries.
BROKER_SECONDS, BROKER_PAUSE = 4.0, 1.0
#: Seconds between two tries of the transfer address: doubling from the first to the second.
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 15.0


def broker(url: str, told: threading.Event | None = None) -> None:
    """See that the broker answers, in a few tries.

    Raises:
        InputError: the address is not valid.
        Unavailable: it does not answer, or refuses the password; or told to stop meanwhile.
    """
    told, deadline = told or threading.Event(), time.monotonic() + BROKER_SECONDS
    while True:
        try:
            connect(url).close()
            return
        except Unavailable as error:
            # Without a password a refusal is final.
            final = isinstance(error, Denied) and urlsplit(url).password is None
            if final or time.monotonic() > deadline or told.wait(BROKER_PAUSE):
                raise


def listens(host: str, port: int) -> bool:
    """Whether somebody takes connections there."""
    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError:
        return False
    return True


def transfer(config: Config, told: threading.Event) -> Remote:
    """Try the transfer address until it works.

    Raises:
        InputError: it never will; says what to do.
        Unavailable: told to stop meanwhile.
    """
    place, pause, said = remote.parse(config.transfer_url), FIRST_PAUSE, ""
    while True:
        try:
            move.check(place, password=config.transfer_password)
            break
        except TransferFailed as error:
            if error.permanent:
                raise InputError(_sentence(str(error)), field=remote.FLAG, fix=advice(place, str(error))) from None
            if str(error) != said:
                log.warning("%s; trying again. %s", str(error).rstrip("."), advice(place, str(error)))
                said = str(error)
            if told.wait(pause):
                raise
            pause = min(pause * 2, LONGEST_PAUSE)
    if place.kind == "local" and not Shared(Path(place.path), Path(place.path)).inbox.is_dir():
        message = f"{place} on this machine is no controller's folder."
        raise InputError(message, field=remote.FLAG, fix=advice(place, message))
    return place


def _sentence(text: str) -> str:
    return text.rstrip(".") + "."


def advice(place: Remote, text: str) -> str:
    """What a person can do about an address that cannot be used; "" where the text says it."""
    if "Install the package" in text:
        return ""
    if place.kind == "local":
        return (
            "On another machine than the controller's, give --transfer-url ssh://USER@HOST/PATH or rsync://HOST/MODULE."
        )
    if place.kind == "rsync":
        if place.module.startswith(remote.READING):
            return "Bring that port of the controller's here (aeo tunnel), or give --transfer-url."
        wrong = "auth failed" in text
        return "Give the module's password as AEO_TRANSFER_PASSWORD, here or on the controller." if wrong else ""
    port = f"-p {place.port} " if place.port else ""
    account = f"{place.user}@{place.host}" if place.user else place.host
    return f"Check `ssh -o BatchMode=yes {port}{account} true`."
