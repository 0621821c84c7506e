"""Which limits of model providers there may be; what they do is in `aeo.core.choose`."""

from __future__ import annotations

import re

from aeo.core.errors import InputError
from aeo.core.pool import Limit

#: Longest key; model labels are short.
LONGEST = 200
#: Most trials at once, and starts in a minute.
MOST = 1_000_000
#: Fewest starts in a minute that are a limit and no standstill: one in 16 hours.
LEAST_PER_MINUTE = 0.001

#: A part of a key: what providers name models with, such as ``claude-3-5@20240620`` and ``nova-pro-v1:0``.
_PART = re.compile(r"[\w.:@+=~,()\[\]-]+( [\w.:@+=~,()\[\]-]+)*")


def check_key(key: str, *, field: str = "key") -> str:
    """Return ``key`` when a provider or a model can have that name.

    Raises:
        InputError: it is empty, too long, has an empty part, ``..`` or a character that none has.
    """
    parts = key.split("/")
    if len(key) <= LONGEST and ".." not in key and all(map(_PART.fullmatch, parts)):
        return key
    shown = "".join(c if c.isprintable() else "?" for c in key[:60])
    raise InputError(
        f"{shown!r} is no provider or model." if key else "is empty.",
        field=field,
        fix=f"Use PROVIDER or PROVIDER/MODEL as in the model column: letters, digits, . : @ + = ~ , _ - ( ) [ ] "
        f"and single blanks in parts between single '/', at most {LONGEST} characters, without '..'.",
    )


def check(limit: Limit) -> Limit:
    """Return ``limit`` when its numbers can be kept to.

    Raises:
        InputError: one of them is out of range.
    """
    if not 0 <= limit.trials <= MOST:
        raise InputError(f"must be a whole number from 0 to {MOST}; 0 is any number.", field="trials")
    if limit.per_minute != 0 and not LEAST_PER_MINUTE <= limit.per_minute <= MOST:
        raise InputError(
            f"must be a number from {LEAST_PER_MINUTE:g} to {MOST}, or 0 for any number.", field="per_minute"
        )
    return limit
