"""The site that the current request works on."""

from __future__ import annotations

from flask import current_app

from aeo.site import Site

KEY = "aeo.site"


def current_site() -> Site:
    """Return the `Site` given to `webapp.create_app`."""
    site: Site = current_app.extensions[KEY]
    return site
