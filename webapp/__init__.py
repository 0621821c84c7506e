"""The web application: a JSON API and pages over the engine. It holds no state of its own.

Read in this order: security, auth, problems, languages, api, pages, server.
"""

from __future__ import annotations

from apiflask import APIFlask

from aeo import __version__
from aeo.site import Site
from webapp import api, auth, compression, languages, metrics, pages, problems, security
from webapp.site import KEY


def create_app(site: Site) -> APIFlask:
    """Make the WSGI application of one controller.

    Raises:
        InputError: the configuration has no API token; an open API is never served.
    """
    app = APIFlask(
        __name__,
        title="Agent Eval Orchestrator",
        version=__version__,
        spec_path="/api/openapi.json",
        docs_path=None,  # its scripts would come from a CDN
    )
    app.extensions[KEY] = site
    compression.register(app)
    security.register(app)
    problems.register(app)
    auth.register(app)
    languages.register(app)
    api.register(app)
    app.register_blueprint(metrics.bp)
    pages.register(app)
    return app
