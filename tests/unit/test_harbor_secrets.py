"""Literal secrets in a Harbor configuration: found, and nothing else is."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.errors import InputError
from aeo.core.model import Spec
from aeo.executors import SubmittedFile
from aeo.executors.harbor import executor
from aeo.executors.harbor.secrets import find
from aeo.executors.secrets import is_secret, names_secret

SECRET_NAMES = (
    "api_key",
    "API_KEY",
    "apiKey",
    "OPENAI_API_KEY",
    "token",
    "GH_TOKEN",
    "authToken",
    "db.password",
    "secret",
    "DBPASSWORD",
    "apikey",
    "Cookie",
)
HARMLESS_NAMES = (
    "max_tokens",
    "tokenizer",
    "n_tokens",
    "token_limit",
    "key_name",
    "author",
    "keyboard",
    "monkey",
    "cookies_path",
    "auth_type",
)
SHAPES = (
    "sk-" + "a1b2" * 8,
    "ghp_abcdefghijklmnopqrstuvwxyz012345",
    "AKIAABCDEFGHIJKLMNOP",
    "hf_abcdefghijklmnopqrstuvwxyz",
    "xoxb-123456789012-abcdef",
    "AIzaSyA-abcdefghijklmnopqrstuvwxyz012345",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.abcdefghijklmnop",
)


@pytest.mark.parametrize("name", SECRET_NAMES)
def test_secret_names(name: str) -> None:
    assert names_secret(name)


@pytest.mark.parametrize("name", HARMLESS_NAMES)
def test_harmless_names(name: str) -> None:
    assert not names_secret(name)


def nested(part: str, name: str, value: Any) -> dict[str, Any]:
    places: dict[str, dict[str, Any]] = {
        "agent env": {"agents": [{"env": {name: value}}]},
        "agent kwargs": {"agents": [{}, {"kwargs": {"client": {"options": [{name: value}]}}}]},
        "environment env": {"environment": {"env": {name: value}}},
        "environment env list": {"environment": {"env": [f"{name}={value}"]}},
        "environment kwargs": {"environment": {"kwargs": {name: value}}},
        "verifier": {"verifier": {"env": {name: value}}},
        "user agent": {"user_agent": {"bridge": {"kwargs": {name: value}}}},
    }
    return places[part]


PARTS = (
    "agent env",
    "agent kwargs",
    "environment env",
    "environment env list",
    "environment kwargs",
    "verifier",
    "user agent",
)


@given(st.sampled_from(PARTS), st.sampled_from(SECRET_NAMES), st.text("abcXYZ23-/+", min_size=3, max_size=40))
def test_a_literal_under_a_secret_name_is_found_wherever_it_is(part: str, name: str, value: str) -> None:
    found = find(nested(part, name, value))
    assert [item.path[-1] for item in found] == [name]
    assert value not in repr(found) or value in name


@given(
    st.sampled_from(PARTS),
    st.sampled_from((*SECRET_NAMES, *HARMLESS_NAMES)),
    st.from_regex(r"[A-Z_]{1,20}", fullmatch=True),
)
def test_references_are_none(part: str, name: str, variable: str) -> None:
    assert not find(nested(part, name, f"${{{variable}}}"))
    assert not find(nested(part, name, f"${{{variable}:-}}"))


@given(st.sampled_from(PARTS), st.sampled_from(SECRET_NAMES), st.text(min_size=1, max_size=20))
def test_a_default_is_a_secret_written_out(part: str, name: str, default: str) -> None:
    assert len(find(nested(part, name, "${API_KEY:-" + default + "}"))) == 1
    assert is_secret(name, "Bearer ${API_KEY:-" + default + "}")
    assert is_secret(name, "${OTHER}${API_KEY:-" + default + "}")


@given(st.sampled_from(PARTS), st.sampled_from(HARMLESS_NAMES))
def test_a_default_under_a_harmless_name_is_none(part: str, name: str) -> None:
    assert not find(nested(part, name, "${REGION:-eu-west-1}"))


@pytest.mark.parametrize("value", SHAPES)
def test_what_looks_like_a_key_is_found_under_any_name_anywhere(value: str) -> None:
    for config in (
        {"agents": [{"kwargs": {"note": f"use {value}"}}]},
        {"job_name": value},
        {"extra_instructions": ["first", value]},
        {"environment": {"env": {"PLAIN": "${OTHER:-" + value + "}"}}},
    ):
        assert len(find(config)) == 1, config


@pytest.mark.parametrize(
    "config",
    [
        {"agents": [{"model_api_key_name": "OPENAI_API_KEY", "model_name": "openai/gpt"}]},
        {"agents": [{"kwargs": {"use_api_key": True, "auth": "true", "max_tokens": "100", "token_count": 3}}]},
        {"agents": [{"mcp_servers": [{"headers": {"Authorization": "Bearer ${TOKEN}"}}]}]},
        {"datasets": [{"path": "tasks/sk-learn"}], "tasks": [{"path": "key"}]},
        {"agents": [{"mcp_servers": [{"headers": {"Authorization": "Token ${ID}:${SECRET}"}}]}]},
        {"environment": {"env": {"API_KEY": ""}}},
    ],
)
def test_what_is_no_secret(config: dict[str, Any]) -> None:
    assert not find(config)


@pytest.mark.parametrize("value", ["Bearer hunter2", "Bearer ${TOKEN:-hunter2}", "Bearer hunter ${TOKEN}", "x${TOKEN}"])
def test_a_header_is_a_scheme_and_references(value: str) -> None:
    assert find({"agents": [{"mcp_servers": [{"headers": {"Authorization": value}}]}]})


def test_the_error_names_the_line_and_the_fix_and_not_the_secret() -> None:
    text = "agents:\n  - name: oracle\n    kwargs:\n      api_key: hush-hush\n    env: {MY_TOKEN: hush-hush}\n"
    config = {"agents": [{"name": "oracle", "kwargs": {"api_key": "hush-hush"}, "env": {"MY_TOKEN": "hush-hush"}}]}
    spec = Spec(executor="harbor", name="job", config=config)
    with pytest.raises(InputError) as caught:
        executor.plan(spec, SubmittedFile(name="job.yaml", text=text))
    first, second = caught.value.problems
    assert first.field == "job.yaml:4: agents[0].kwargs.api_key"
    assert "Move it to an 'env'" in first.fix
    assert second.field == "job.yaml:5: agents[0].env.MY_TOKEN"
    assert second.fix.startswith("Write ${MY_TOKEN} and set it once: `aeo secrets set MY_TOKEN`, or ")
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize(
    "agent",
    [
        {"kwargs": {"base_url": "https://user:pw@host/x"}},
        {"kwargs": {"url": "https://h/x?api_key=abcdefghi1234"}},
        {"kwargs": {"args": "--api-key xyzabc123456"}},
        {"kwargs": {"header": "Authorization: Bearer abcdef123456"}},
        {"kwargs": {"api_key": 1234567}},
        {"kwargs": {"sk-abcdefghijklmnopqrstuvwxyz123456": 1}},
        {"kwargs": {"k": "-----BEGIN RSA PRIVATE KEY-----"}},
        {"env": {"DATABASE_URL": "postgres://u:pw@h/db"}},
        {"env": {"DB_PWD": "abcd"}},
        {"env": {"SMTP_PASS": "abcd"}},
    ],
)
def test_secrets_told_by_their_place_are_found(agent: dict[str, Any]) -> None:
    assert find({"agents": [agent]})


@pytest.mark.parametrize(
    "agent",
    [
        {"kwargs": {"base_url": "https://host:8080/x?key=1", "api_key": 5, "pass_at_k": 3}},
        {"kwargs": {"header": "Bearer ${TOKEN}", "url": "https://u:${PW}@host/"}},
        {"env": {"PWD": "/app", "PASS": "2"}},
        {"kwargs": {"prompt": "The bearer of this letter, see https://host/a:b@c"}},
    ],
)
def test_what_only_resembles_them_is_not(agent: dict[str, Any]) -> None:
    assert find({"agents": [agent]}) == []
