"""The OpenAPI document: made from the code, whole, and true of the model."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from apiflask import APIFlask
from flask.testing import FlaskClient
from pydantic import BaseModel

from aeo.config import Config
from aeo.core.model import Capacity, WorkerInfo
from aeo.layout import Shared
from aeo.registration import Addresses
from aeo.site import Site
from aeo.store.connection import Db
from aeo.submission import Submission
from webapp import create_app
from webapp.api import schemas

TOKEN = "s3cret-token-of-this-test"


@pytest.fixture
def app(tmp_path: Path, fake_db: Db) -> APIFlask:
    return create_app(Site(config=Config(auth_token=TOKEN), shared=Shared(tmp_path, tmp_path / "jobs"), db=fake_db))


@pytest.fixture
def client(app: APIFlask) -> FlaskClient:
    return app.test_client()


def test_the_document_has_every_route_and_no_secret(app: APIFlask, client: FlaskClient) -> None:
    document = client.get("/api/openapi.json").json
    routes = {
        (re.sub(r"<(?:\w+:)?(\w+)>", r"{\1}", rule.rule), method.lower())
        for rule in app.url_map.iter_rules()
        if rule.rule.startswith("/api/") and rule.endpoint != "openapi.spec"
        for method in rule.methods - {"HEAD", "OPTIONS"}
    }
    described = {(path, method) for path, operations in document["paths"].items() for method in operations}
    assert described == routes
    assert TOKEN not in json.dumps(document)


def test_the_document_is_whole(client: FlaskClient) -> None:
    document = client.get("/api/openapi.json").json
    assert document["openapi"].startswith("3.1")
    schemas_ = document["components"]["schemas"]
    references = re.findall(r'"#/components/schemas/([^"]+)"', json.dumps(document))
    assert set(references) <= set(schemas_)
    assert not [name for name in schemas_ if "." in name]
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert operation["summary"]
            named = {item["name"] for item in operation["parameters"] if item["in"] == "path"}
            assert named == set(re.findall(r"{(\w+)}", path))
            for status, answer in operation["responses"].items():
                if status == "200" and path.endswith((".csv", ".jsonl", ".parquet")):
                    assert len(answer["content"]) == 1
                    continue
                kind = "application/json" if int(status) < 400 else "application/problem+json"
                assert answer["content"][kind]["schema"]["$ref"] or status == "503"
    secured = document["paths"]["/api/workers"]["post"]
    assert "security" not in secured
    assert {"401", "409", "422", "503"} <= set(secured["responses"])
    assert document["paths"]["/api/health"]["get"]["security"] == []
    assert document["security"] == [{"bearer": []}, {"session": []}]


@pytest.mark.parametrize(
    ("shape", "model"),
    [
        (schemas.WorkerIn, WorkerInfo),
        (schemas.CapacityIn, Capacity),
        (schemas.SubmissionIn, Submission),
        (schemas.AddressesOut, Addresses),
    ],
)
def test_the_api_and_the_model_have_the_same_fields(shape: type[BaseModel], model: type[Any]) -> None:
    assert set(shape.model_fields) == {item.name for item in fields(model)}
