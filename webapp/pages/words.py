"""How states, numbers and times are written on pages, in the language of the answer."""

from __future__ import annotations

from datetime import datetime, timezone
from enum import Enum

from flask_babel import gettext as _
from flask_babel import lazy_gettext, lazy_pgettext
from flask_babel.speaklater import LazyString

#: Part of each own static file's name; raised when one changes, as browsers keep them for a year.
STATIC_VERSION = "2"

#: Nothing known.
NONE = "–"

_NAMES: dict[str, LazyString] = {
    "scored": lazy_gettext("scored"),
    "infra_error": lazy_gettext("infrastructure error"),
    "invalid": lazy_gettext("invalid"),
    "cancelled": lazy_gettext("cancelled"),
    "pending": lazy_gettext("waiting"),
    "running": lazy_gettext("running"),
    "pushed": lazy_gettext("being checked"),
    "done": lazy_gettext("done"),
    "paused": lazy_gettext("paused"),
    "cancelling": lazy_gettext("cancelling"),
    "merging": lazy_gettext("being closed"),
    "succeeded": lazy_gettext("succeeded"),
    "failed": lazy_gettext("failed"),
    "online": lazy_gettext("online"),
    "draining": lazy_gettext("draining"),
    "lost": lazy_gettext("lost"),
    "sent": lazy_gettext("sent"),
    "started": lazy_gettext("started"),
    "ended": lazy_gettext("ended"),
    "viewer": lazy_gettext("viewer"),
    "member": lazy_gettext("member"),
    "admin": lazy_gettext("administrator"),
    "agent": lazy_gettext("agent"),
    "model": lazy_gettext("model"),
    "dataset": lazy_gettext("dataset"),
    "category": lazy_gettext("category"),
    "difficulty": lazy_gettext("difficulty"),
    "easy": lazy_pgettext("difficulty", "easy"),
    "medium": lazy_pgettext("difficulty", "medium"),
    "hard": lazy_pgettext("difficulty", "hard"),
}


#: Titles of error pages, as `http.HTTPStatus` has them.
_PHRASES: dict[str, LazyString] = {
    "Bad Request": lazy_gettext("Not understood"),
    "Unauthorized": lazy_gettext("Not signed in"),
    "Forbidden": lazy_gettext("Not allowed"),
    "Not Found": lazy_gettext("Not found"),
    "Method Not Allowed": lazy_gettext("Not possible here"),
    "Conflict": lazy_gettext("Not possible now"),
    "Too Many Requests": lazy_gettext("Too many tries"),
    "Internal Server Error": lazy_gettext("Something went wrong"),
    "Service Unavailable": lazy_gettext("Out of reach for the moment"),
    # Two names each, by the version of Python.
    "Request Entity Too Large": lazy_gettext("Too large"),
    "Content Too Large": lazy_gettext("Too large"),
    "Unprocessable Entity": lazy_gettext("Not possible as it is"),
    "Unprocessable Content": lazy_gettext("Not possible as it is"),
}


def value(item: object) -> str:
    """Return the plain word of an enum member or a string, as CSS classes and data have it."""
    return str(item.value) if isinstance(item, Enum) else str(item)


def name(item: object) -> str:
    """Write a state, outcome, role or label key for people; what has no name is written as it is."""
    plain = value(item)
    return str(_NAMES.get(plain, plain))


def phrase(title: str) -> str:
    """Write the title of an error page."""
    return str(_PHRASES.get(title, title))


def when(moment: datetime | None) -> str:
    """Write a time in UTC, to the minute."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M UTC") if moment else ""


def exactly(moment: datetime | None) -> str:
    """Write a time in UTC, to the second."""
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC") if moment else ""


def span(seconds: float | None) -> str:
    """Write a duration with its two largest units; tenths below ten seconds."""
    if seconds is None:
        return NONE
    whole = max(0, int(seconds))
    if 0 < seconds < 10 and not float(seconds).is_integer():
        tenths = f"{int(seconds * 10) / 10:.1f}"
        return str(_("%(s)s s", s=tenths))
    if whole < 60:
        return str(_("%(s)s s", s=whole))
    if whole < 3600:
        return str(_("%(m)s min %(s)s s", m=whole // 60, s=whole % 60))
    if whole < 86400:
        return str(_("%(h)s h %(m)s min", h=whole // 3600, m=whole % 3600 // 60))
    return str(_("%(d)s d %(h)s h", d=whole // 86400, h=whole % 86400 // 3600))


def percent(part: float | None, whole: float = 1.0) -> str:
    """Write a share; rounded down, so that 100 % means all."""
    return f"{int(100 * part / whole + 1e-9)} %" if whole and part is not None else NONE


def size(count: float | None) -> str:
    """Write bytes."""
    if count is None:
        return NONE
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(count: float | None, digits: int = 0) -> str:
    """Write a number with thin spaces between thousands, as both languages read it."""
    return NONE if count is None else f"{count:,.{digits}f}".replace(",", "\u202f")


def short(count: float | None) -> str:
    """Write a large count with three digits: 950, 12.3 k, 4.56 M."""
    if count is None:
        return NONE
    for unit in ("", " k", " M", " G"):
        if abs(count) < 999.5 or unit == " G":
            return f"{count:.3g}{unit}" if unit else f"{count:.0f}"
        count /= 1000
    return NONE


def money(dollars: float | None) -> str:
    """Write US dollars; four digits below ten cents, as single trials cost little."""
    if dollars is None:
        return NONE
    return f"${dollars:,.2f}" if dollars >= 0.1 or dollars == 0 else f"${dollars:.4f}"


def reward(mark: float | None) -> str:
    """Write a reward or a mean of some."""
    if mark is None:
        return NONE
    return f"{mark:.0f}" if float(mark).is_integer() and abs(mark) < 1e6 else f"{mark:.3f}"


def script_words() -> dict[str, str]:
    """Return what the page's scripts write themselves: names of states, and their own few words."""
    said = {key: str(words) for key, words in _NAMES.items()}
    return {
        **said,
        "ago": _("%(span)s ago", span="{span}"),
        "in": _("in %(span)s", span="{span}"),
        "s": _("%(s)s s", s="{n}"),
        "min": _("%(m)s min", m="{n}"),
        "h": _("%(h)s h", h="{n}"),
        "d": _("%(d)s d", d="{n}"),
        "copied": _("Copied"),
        "nothing": _("Nothing to draw yet."),
        "unreachable": _("The data could not be loaded."),
        "offline": _("The controller does not answer since %(time)s; what is shown is from before.", time="{time}"),
        "now": _("now"),
        "reward": _("reward"),
        "seconds": _("seconds"),
        "outcome": _("outcome"),
        "count": _("number"),
        "row": _("row"),
        "task": _("task"),
        "column": _("column"),
        "bar": _("what"),
        "from": _("from"),
        "to": _("to"),
        "took": _("took"),
        "time": _("time"),
        "more": _("%(n)s more rows are not shown here.", n="{n}"),
    }


FILTERS = {
    "value": value,
    "name": name,
    "phrase": phrase,
    "when": when,
    "exactly": exactly,
    "span": span,
    "percent": percent,
    "size": size,
    "number": number,
    "short": short,
    "money": money,
    "reward": reward,
}
