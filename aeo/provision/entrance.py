"""What a provisioned worker presents itself with: a token that lets in that one worker, and may do nothing else.

Only its digest is kept here; the worker's own settings have it, and an upgrade leaves it.
"""

from __future__ import annotations

import hmac
import secrets
from contextlib import suppress
from hashlib import sha256

from aeo import folders
from aeo.layout import Shared
from aeo.provision import record

_PREFIX = "aeow_"


def make(shared: Shared, id: str) -> str:
    """Make a new token for a worker; the one before is no longer good.

    Raises:
        OSError: it cannot be written down.
    """
    token = _PREFIX + secrets.token_urlsafe(32)
    folders.write(shared.machine(id) / "entrance", _digest(token) + "\n")
    return token


def end(shared: Shared, id: str) -> None:
    """Let the worker in no more.

    Raises:
        OSError: its digest cannot be removed.
    """
    (shared.machine(id) / "entrance").unlink(missing_ok=True)


def fits(shared: Shared, id: str, token: str) -> bool:
    """Whether this is the worker's token."""
    if not token.startswith(_PREFIX):
        return False
    with suppress(OSError):
        kept = (shared.machine(id) / "entrance").read_text().strip()
        return bool(kept) and hmac.compare_digest(kept, _digest(token))
    return False


def owner(shared: Shared, token: str) -> str:
    """The worker that a token lets in; "" when it lets in none."""
    if not token.startswith(_PREFIX):
        return ""
    return next((machine.id for machine in record.machines(shared) if fits(shared, machine.id, token)), "")


def _digest(token: str) -> str:
    return sha256(token.encode("utf-8", "replace")).hexdigest()
