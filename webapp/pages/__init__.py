"""The pages, one module each: they read through the engine and render a template."""

from __future__ import annotations

from flask import Flask

from webapp.pages import (
    addresses,
    datasets,
    drawing,
    evaluation,
    home,
    machines,
    new,
    trial,
    trial_files,
    users,
    words,
    workers,
)


def register(app: Flask) -> None:
    """Add the pages and the words they are written with."""
    app.jinja_env.filters.update(words.FILTERS)
    app.jinja_env.globals.update(
        static_version=words.STATIC_VERSION,
        script_words=words.script_words,
        with_query=addresses.with_query,
        places=addresses.places,
        segments=drawing.segments,
        sparkline_points=drawing.sparkline,
        step_address=trial.step_address,
    )
    app.register_blueprint(home.bp)
    app.register_blueprint(evaluation.bp)
    app.register_blueprint(trial.bp)
    app.register_blueprint(trial_files.bp)
    app.register_blueprint(datasets.bp)
    app.register_blueprint(new.bp)
    app.register_blueprint(users.bp)
    app.register_blueprint(workers.bp)
    app.register_blueprint(machines.bp)
