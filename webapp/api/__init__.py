"""The JSON API, one blueprint per noun. Views parse, call the engine, and encode; they decide nothing."""

from __future__ import annotations

from apiflask import APIFlask

from webapp.api import (
    charts,
    dashboard,
    datasets,
    document,
    evaluations,
    exports,
    health,
    limits,
    plans,
    reruns,
    secrets,
    trials,
    users,
    workers,
)


def register(app: APIFlask) -> None:
    """Add the API's routes and complete the OpenAPI document."""
    for module in (
        health,
        workers,
        limits,
        datasets,
        dashboard,
        evaluations,
        trials,
        charts,
        exports,
        plans,
        reruns,
        users,
        secrets,
    ):
        app.register_blueprint(module.bp, url_prefix="/api")
    document.register(app)
