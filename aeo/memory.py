"""Whether this machine has memory left for one more trial, by what is measured and not by what is declared."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import psutil

MIB = 1024 * 1024
#: With less free memory than this, or than this share of it where that is less, a worker starts nothing.
LOW_BYTES, LOW_SHARE = 512 * MIB, 0.05
#: Seconds for which one look counts.
LOOK_SECONDS = 1.0
_CGROUP = Path("/sys/fs/cgroup")

_lock = threading.Lock()
_seen: dict[str, tuple[float, str]] = {}


def low() -> str:
    """Say why no trial may start for the moment; "" if one may."""
    with _lock:
        at, said = _seen.get("said", (-LOOK_SECONDS, ""))
        if time.monotonic() - at >= LOOK_SECONDS:
            said = _look()
            _seen["said"] = time.monotonic(), said
        return said


def _look() -> str:
    memory = psutil.virtual_memory()
    total, free = int(memory.total), int(memory.available)
    limit = _number("memory.max")
    if limit is not None and limit < total:
        # Of what a container uses, the files kept in memory are given back when somebody needs it.
        total, free = limit, min(free, limit - (_number("memory.current") or 0) + _inactive_files())
    if free >= min(LOW_BYTES, total * LOW_SHARE):
        return ""
    return f"memory nearly full: {max(free, 0) // MIB} MiB free"


def _number(name: str) -> int | None:
    text = _read(name).strip()
    return int(text) if text.isdigit() else None


def _inactive_files() -> int:
    for line in _read("memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0


def _read(name: str) -> str:
    try:
        return (_CGROUP / name).read_text()
    except OSError:
        return ""
