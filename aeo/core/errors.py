"""Every error AEO raises on purpose.

::

    AeoError
    ├── InputError            what the user gave is wrong (exit code 2, HTTP 422)
    │   ├── Conflict          it clashes with what exists (exit code 2, HTTP 409)
    │   └── NotFound          it names what does not exist (exit code 2, HTTP 404)
    ├── Refused               the token is missing or wrong (exit code 2, HTTP 401)
    │   └── Forbidden         the token is right, but its user may not do this (exit code 2, HTTP 403)
    └── Unavailable           a part is away; the same call may work later (exit code 1, HTTP 503)
        ├── Unusable          it stays so until a person mends it; the message says how
        ├── ExecutorFailed    an executor's own process failed
        └── TransferFailed    files could not be moved; `permanent` says whether trying again helps
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing that is wrong, where it is, and what to do about it."""

    #: What is wrong, in one sentence.
    message: str
    #: The place: a field path (``agents[0].env.KEY``), a flag or a file with a line; empty if none.
    field: str = ""
    #: What to do, in one sentence; empty if the message says it all.
    fix: str = ""

    def __str__(self) -> str:
        text = f"{self.field}: {self.message}" if self.field else self.message
        return f"{text} {self.fix}" if self.fix else text


class AeoError(Exception):
    """Something went wrong."""

    def __init__(self, message: str = "") -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class InputError(AeoError):
    """The input is not valid."""

    def __init__(self, message: str = "", *, field: str = "", fix: str = "", problems: tuple[Problem, ...] = ()):
        if not problems:
            text = message or (type(self).__doc__ or "").strip()
            problems = (Problem(message=text, field=field, fix=fix),)
        self.problems = problems
        super().__init__("\n".join(map(str, problems)))


class Conflict(InputError):
    """It is in use already."""


class NotFound(InputError):
    """It does not exist."""


class Refused(AeoError):
    """The token is missing or wrong."""


class Forbidden(Refused):
    """The user may not do this."""


class Unavailable(AeoError):
    """A part of the system is away."""


class Unusable(Unavailable):
    """A part is away until a person mends it."""


class ExecutorFailed(Unavailable):
    """The executor's process failed."""


class TransferFailed(Unavailable):
    """Files could not be moved."""

    def __init__(self, message: str = "", *, permanent: bool = False):
        #: Whether the same attempt would fail again.
        self.permanent = permanent
        super().__init__(message)
