"""What workers sign in to the broker with."""

from __future__ import annotations

from collections.abc import Iterator

from aeo import credentials
from aeo.core.condition import Condition, fault, ok, warning
from aeo.core.errors import InputError
from aeo.layout import Shared


def judge(shared: Shared) -> Iterator[Condition]:
    """Judge the controller's book; nothing where no worker has registered."""
    try:
        book = credentials.read_at(shared)
    except (InputError, OSError) as error:
        yield fault("credentials", f"{shared.credentials} cannot be read: {error}", "Run as its user, or put it right.")
        return
    if book.shared:
        fix = "Use a broker with users of its own (Redis 7, Valkey), or see that you want it so."
        yield warning("credentials", f"workers share the broker's password: {book.shared}", fix)
    elif book.accounts:
        out = f", revoked: {', '.join(sorted(book.revoked))}" if book.revoked else ""
        yield ok("credentials", f"workers with their own: {len(book.accounts)}{out}")
