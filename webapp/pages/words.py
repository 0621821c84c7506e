"""How numbers and times are written on pages."""

from __future__ import annotations

from datetime import datetime, timezone

#: Part of each own static file's name; raised when one changes, as browsers keep them for a year.
STATIC_VERSION = "1"


def when(moment: datetime | None) -> str:
    """Write a time in UTC, to the minute."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC") if moment else ""


def span(seconds: float | None) -> str:
    """Write a duration with its two largest units."""
    if seconds is None:
        return "–"
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def percent(part: float, whole: float) -> str:
    """Write a share; rounded down, so that 100 % means all."""
    return f"{int(100 * part / whole)} %" if whole else "–"


def size(count: float) -> str:
    """Write bytes."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


FILTERS = {"when": when, "span": span, "percent": percent, "size": size}
