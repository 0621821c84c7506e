"""Which names may come from outside and become folders, keys and queues."""

from __future__ import annotations

import re
import unicodedata

from aeo.core.errors import InputError

#: Trial, job, evaluation and worker names: one path component, visible, no separators, at most 200 bytes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
#: What would change how every program runs.
_KEPT = frozenset({"PATH", "HOME", "USER", "SHELL", "PYTHONPATH", "PYTHONHOME", "TMPDIR", "IFS"})


def check_name(name: str, what: str, *, field: str = "") -> str:
    """Return ``name`` when it is safe as one path component, a Redis key part and a queue name.

    Raises:
        InputError: it is empty, too long, has a separator or an odd character, or is ``.`` or ``..``.
    """
    if _NAME.fullmatch(name) and ".." not in name:
        return name
    shown = "".join(c if unicodedata.category(c)[0] != "C" else "?" for c in name[:60])
    raise InputError(
        f"{shown!r} is no {what}.",
        field=field,
        fix="Use 1 to 200 letters, digits and . _ + = @ -, starting with a letter or digit, without '..'.",
    )


def check_variable(name: str, *, field: str = "") -> str:
    """Return ``name`` when it may be that of a secret: of an environment variable that is not the platform's own.

    Raises:
        InputError: it is none. The message does not show it: it may be the secret itself, in the wrong place.
    """
    if _VARIABLE.fullmatch(name) and not name.upper().startswith(("AEO_", "LD_")) and name not in _KEPT:
        return name
    fix = "Use 1 to 100 letters, digits and _, such as OPENAI_API_KEY; AEO_, LD_ and what every program needs are kept."
    raise InputError("is no name of a secret.", field=field, fix=fix)
