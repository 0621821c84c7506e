"""Answers of the API that are no errors."""

from __future__ import annotations

from typing import Any

from flask import Response

from aeo import codec


def reply(value: Any, status: int = 200) -> Response:
    """Encode model objects as the answer."""
    return Response(codec.dumps(value), status, content_type="application/json")
