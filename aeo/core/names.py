"""Which names may come from outside and become folders, keys and queues."""

from __future__ import annotations

import re
import unicodedata

from aeo.core.errors import InputError

#: Trial, job, evaluation and worker names: one path component, visible, no separators, at most 200 bytes.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+=@-]{0,199}")


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
