"""A controller's pages without a browser: a client with a session, and its forms."""

from __future__ import annotations

from typing import Any

from flask.testing import FlaskClient

from aeo.site import Site
from webapp import create_app


def browser(site: Site, token: str) -> FlaskClient:
    """A client that has signed in, as pages and their forms have it."""
    client = create_app(site).test_client()
    assert client.get(f"/?token={token}").status_code == 303
    return client


def post(client: FlaskClient, page: str, /, **form: str) -> Any:
    """Send a form with the session's own token."""
    with client.session_transaction() as session:
        token = session.setdefault("csrf", "csrf-of-this-test")
    return client.post(page, data={"csrf_token": token, **form})
