"""The OpenAPI document: what APIFlask makes of the routes, with our errors, our token, and each type once."""

from __future__ import annotations

import json
import re
from typing import Any

from apiflask import APIFlask

from webapp.api.schemas import ProblemOut
from webapp.auth import OPEN, Role, needed

_NESTED = re.compile(r"(#/components/schemas/)\w+\.(\w+)")
_REF = "#/components/schemas/"


def register(app: APIFlask) -> None:
    """Complete the document that ``app`` serves."""
    app.config.update(
        INFO={"description": "Submit evaluations, follow them, look after workers."},
        SERVERS=[{"url": "/"}],
        SECURITY_SCHEMES={
            "bearer": {"type": "http", "scheme": "bearer", "description": "A user's token, or the controller's."},
            "session": {
                "type": "apiKey",
                "in": "cookie",
                "name": app.config["SESSION_COOKIE_NAME"],
                "description": "A browser that signed in; changes also need X-CSRF-Token.",
            },
        },
    )
    app.spec_processor(lambda spec: _complete(app, spec))


def _complete(app: APIFlask, spec: Any) -> dict[str, Any]:
    components = spec["components"]
    schema = ProblemOut.model_json_schema(ref_template=_REF + "{model}")
    components["schemas"] = {
        # Of APIFlask's own errors nothing is left.
        **{k: v for k, v in components["schemas"].items() if k not in ("HTTPError", "ValidationError")},
        **schema.pop("$defs"),
        "Problem": schema,
    }
    spec["security"] = [{"bearer": []}, {"session": []}]
    endpoints = _endpoints(app)
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            endpoint = endpoints[path, method]
            responses = operation["responses"]
            if endpoint in OPEN:
                operation["security"] = []
            else:
                responses["401"] = {"description": "The token is missing or wrong"}
                responses.setdefault("503", {"description": "A part is away; try again"})
                role = needed(app, endpoint, method.upper())
                if role > Role.VIEWER:
                    responses["403"] = {"description": f"The user is no {role.value}, or it is not theirs"}
            if "requestBody" in operation:
                responses.setdefault("413", {"description": "The body is too large"})
                responses["415"] = {"description": "The body says to be something else than JSON"}
            _describe_errors(responses)
    return _each_type_once(spec)


def _endpoints(app: APIFlask) -> dict[tuple[str, str], str]:
    """Endpoints by path and method as the document writes them."""
    return {
        (re.sub(r"<(?:[^:<>]+:)?([^<>]+)>", r"{\1}", rule.rule), method.lower()): rule.endpoint
        for rule in app.url_map.iter_rules()
        for method in rule.methods or ()
    }


def _describe_errors(responses: dict[str, Any]) -> None:
    for status, response in responses.items():
        if int(status) >= 400:
            response["content"] = {"application/problem+json": {"schema": {"$ref": _REF + "Problem"}}}


def _each_type_once(spec: dict[str, Any]) -> dict[str, Any]:
    """APIFlask keeps a copy of a type for each answer it is part of (``WorkersOut.WorkerView``)."""
    flat: dict[str, Any] = json.loads(_NESTED.sub(r"\1\2", json.dumps(spec)))
    schemas = flat["components"]["schemas"]
    flat["components"]["schemas"] = {name.rpartition(".")[2]: schema for name, schema in sorted(schemas.items())}
    return flat
