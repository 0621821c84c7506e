"""Results of tests from a file in the Common Test Report Format (CTRF); nothing in it is trusted."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aeo.artifacts import windows
from aeo.artifacts.place import Place
from aeo.core.errors import InputError

#: Largest file, bytes; tests shown; characters of a message and of a trace.
LARGEST, TESTS, TEXT = 16 * 1024 * 1024, 2000, 8000
STATUSES = ("failed", "passed", "skipped", "pending", "other")


@dataclass(frozen=True, kw_only=True)
class Test:
    """One test."""

    name: str
    #: One of `STATUSES`.
    status: str
    seconds: float | None = None
    message: str = ""
    trace: str = ""


@dataclass(frozen=True, kw_only=True)
class Report:
    """Tests, those that failed first."""

    tool: str = ""
    #: Status to how many tests have it; only those that some have.
    counts: Mapping[str, int] = field(default_factory=dict)
    tests: tuple[Test, ...] = ()
    #: Tests beyond those shown.
    left_out: int = 0


def read(place: Place, name: str) -> Report:
    """Read a report.

    Raises:
        NotFound: there is no such file.
        InputError: it is too large, or no report.
    """
    try:
        document = json.loads(windows.whole(place, name, limit=LARGEST).decode("utf-8", "replace"))
        results = document["results"]
        raw = [item for item in results.get("tests") or () if isinstance(item, dict)]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise InputError("is no test report.", field=name) from None
    tests = sorted(map(_test, raw), key=lambda test: STATUSES.index(test.status))
    counts = {status: sum(test.status == status for test in tests) for status in STATUSES}
    return Report(
        tool=_text(results.get("tool", {}).get("name") if isinstance(results.get("tool"), dict) else None, 200),
        counts={status: count for status, count in counts.items() if count} or _summary(results.get("summary")),
        tests=tuple(tests[:TESTS]),
        left_out=max(0, len(tests) - TESTS),
    )


def _summary(summary: Any) -> dict[str, int]:
    if not isinstance(summary, dict):
        return {}
    return {status: summary[status] for status in STATUSES if isinstance(summary.get(status), int) and summary[status]}


def _test(raw: Mapping[str, Any]) -> Test:
    status, duration = raw.get("status"), raw.get("duration")
    milliseconds = duration if isinstance(duration, (int, float)) and not isinstance(duration, bool) else -1
    return Test(
        name=_text(raw.get("name"), 500) or "?",
        status=status if status in STATUSES else "other",
        seconds=milliseconds / 1000 if milliseconds >= 0 else None,
        message=_text(raw.get("message"), TEXT),
        trace=_text(raw.get("trace"), TEXT),
    )


def _text(value: Any, limit: int) -> str:
    return value[:limit].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
