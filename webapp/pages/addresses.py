"""Addresses that many pages show: the menu, and the present page with another query."""

from __future__ import annotations

from urllib.parse import urlencode

from flask import request
from flask_babel import gettext as _
from flask_login import current_user

#: Names that are of one answer, not of the page.
_OF_THE_ANSWER = frozenset({"part", "token"})


def with_query(**changes: object) -> str:
    """Return this page's address with ``changes`` in its query; None takes a name out, a list repeats it."""
    kept = [
        (name, value)
        for name, value in request.args.items(multi=True)
        if name not in _OF_THE_ANSWER and name not in changes
    ]
    for name, change in changes.items():
        values = change if isinstance(change, (list, tuple)) else [change]
        kept += [(name, str(value)) for value in values if value is not None]
    path = request.script_root + request.path
    return f"{path}?{urlencode(kept)}" if kept else path


def places() -> list[tuple[str, str, str]]:
    """Return the menu: blueprint, path, words."""
    menu = [
        ("home", "/", _("Dashboard")),
        ("new_page", "/evaluations/new", _("New evaluation")),
        ("workers_page", "/workers", _("Workers")),
        ("datasets_page", "/datasets", _("Datasets")),
    ]
    if _is_admin():
        menu.append(("users_page", "/users", _("Users")))
    return menu


def _is_admin() -> bool:
    role = getattr(current_user, "role", None)
    return getattr(role, "name", "") == "ADMIN"
