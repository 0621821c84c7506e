"""The pages, one module each: they read through the engine and render a template."""

from __future__ import annotations

from flask import Flask

from webapp.pages import home, words


def register(app: Flask) -> None:
    """Add the pages and the words they are written with."""
    app.jinja_env.filters.update(words.FILTERS)
    app.jinja_env.globals["static_version"] = words.STATIC_VERSION
    app.register_blueprint(home.bp)
