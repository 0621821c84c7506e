"""How many files a process may have open: each slot, connection and pipe takes some."""

from __future__ import annotations

import resource

from aeo.core.condition import Condition, ok, warning
from aeo.core.words import count

#: What the processes and each slot take, generously.
BASE, EACH_SLOT = 256, 64


def measure() -> int:
    """The soft limit; as services set it for themselves this is the shell's."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def judge(limit: int, slots: int) -> Condition:
    """Judge the limit for so many slots."""
    needed = BASE + EACH_SLOT * slots
    if 0 <= limit < needed:
        fix = f"Set LimitNOFILE={max(needed, 65536)} in the service, or `ulimit -n {max(needed, 65536)}`."
        return warning("open files", f"{limit} at most, and {count(slots, 'slot')} may need {needed}", fix)
    return ok("open files", f"{limit} at most")
