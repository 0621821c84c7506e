"""Alerts in the language of the answer, and where one sees more; `aeo.core.alerts.TEXTS` has the English words, too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import quote

from flask import request
from flask_babel import lazy_gettext
from flask_babel.speaklater import LazyString

from aeo.core import alerts as core
from aeo.core.alerts import Alert, Kind, Level
from webapp.pages.words import size, span

WORDS: Mapping[Kind, LazyString] = {
    Kind.STORE_WIPED: lazy_gettext("The store was wiped or started anew; it is being rebuilt from disk."),
    Kind.CONTROL_SILENT: lazy_gettext(
        "The control process has written nothing for %(seconds)s: results are not taken in."
    ),
    Kind.CONTROLLER_DISK_LOW: lazy_gettext("The controller's disk under %(path)s is nearly full: %(bytes)s free."),
    Kind.NO_WORKER: lazy_gettext("No worker takes work, and evaluations wait (%(count)s): %(reason)s"),
    Kind.WORKER_LOST: lazy_gettext("Worker %(worker)s is lost: no heartbeat within the grace time."),
    Kind.WORKER_DISK_FULL: lazy_gettext("Worker %(worker)s claims nothing: its disk is nearly full, %(bytes)s free."),
    Kind.WORKER_DISK_LOW: lazy_gettext("The disk of worker %(worker)s gets full: %(bytes)s free."),
    Kind.WORKER_PAUSED: lazy_gettext("Worker %(worker)s was paused, as its runs fail: %(reason)s"),
    Kind.EVALUATION_PAUSED: lazy_gettext("%(name)s was paused, as its runs fail: %(reason)s"),
    Kind.TRIAL_OVERDUE: lazy_gettext(
        "%(trial)s runs for %(seconds)s on %(worker)s, past its hard deadline of %(limit)s."
    ),
    Kind.TRIAL_SLOW: lazy_gettext("%(trial)s runs for %(seconds)s on %(worker)s; about %(limit)s were expected."),
    Kind.RATE_LIMITED: lazy_gettext(
        "%(name)s: the model provider's rate limit ended %(count)s of the last %(runs)s runs."
    ),
    Kind.CLOCK_OFF: lazy_gettext("The clock of worker %(worker)s is off by %(seconds)s."),
}


@dataclass(frozen=True, kw_only=True)
class Shown:
    """An alert as pages show it."""

    level: Level
    text: str
    #: Empty where there is no more to see.
    href: str
    since: datetime | None


def shown(alerts: Iterable[Alert]) -> list[Shown]:
    """Write alerts for people."""
    return [
        Shown(
            level=alert.level,
            text=core.text(alert, words=WORDS, span=span, size=size),
            href=_href(alert),
            since=alert.since,
        )
        for alert in alerts
    ]


def _href(alert: Alert) -> str:
    root = request.script_root
    if alert.trial:
        return f"{root}/evaluations/{alert.evaluation}/trials/{quote(alert.trial, safe='')}"
    if alert.evaluation:
        return f"{root}/evaluations/{alert.evaluation}"
    return f"{root}/workers/{quote(alert.worker, safe='')}" if alert.worker else ""
