"""Finds secrets that stand in a job configuration as they are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aeo.executors import Wanted, source
from aeo.executors.secrets import has_key, is_secret, is_secret_number, names_secret, references

#: What people fill with values of their own: there a name says what the value is.
_FREE = ("kwargs", "env", "headers")


@dataclass(frozen=True, kw_only=True)
class Found:
    """A secret in a configuration. The value itself is not kept."""

    path: tuple[str | int, ...]
    #: Whether Harbor resolves ``${NAME}`` at this very place.
    resolvable: bool


def find(config: Mapping[str, Any]) -> list[Found]:
    """Every place in ``config`` that holds a secret as it is, in the order of the configuration."""
    return list(_walk(config, (), checks_names=False))


def wanted(config: Mapping[str, Any], header: Mapping[str, Any]) -> Iterator[Wanted]:
    """The secrets that trials will look for."""
    yield from references(_environments(config, ()))
    agents = (header.get("config") or {}).get("agents") or ()
    for agent, names in zip(agents, header.get("keys") or (), strict=False):
        # One that has it by another way: its own environment, or a file.
        if names and not set(names) & set(agent.get("env") or ()):
            name = agent.get("name") or agent.get("import_path")
            model = f" with {agent['model_name']}" if agent.get("model_name") else ""
            yield Wanted(any_of=tuple(names), by=f"The agent {name}{model}")
    for name, task in (header.get("task_keys") or {}).items():
        if names_secret(name):
            yield Wanted(any_of=(name,), by=f"The task {task}")


def _environments(value: Any, path: tuple[str | int, ...]) -> Iterator[tuple[str, Any]]:
    """Every place where Harbor resolves ``${NAME}``."""
    listed = enumerate(value) if isinstance(value, (list, tuple)) else ()
    for key, item in value.items() if isinstance(value, Mapping) else listed:
        if key in ("env", "headers"):
            yield source.dotted((*path, key)), item
        else:
            yield from _environments(item, (*path, key))


def _walk(value: Any, path: tuple[str | int, ...], *, checks_names: bool) -> Iterator[Found]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if has_key(str(key)):
                # The place is shown to people: not the name, which is the secret.
                yield Found(path=path, resolvable=False)
            yield from _walk(item, (*path, str(key)), checks_names=checks_names or key in _FREE)
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, str) and path[-1:] == ("env",):
                name, _, content = item.partition("=")
                yield from _walk(content, (*path, index, name), checks_names=checks_names)
            else:
                yield from _walk(item, (*path, index), checks_names=checks_names)
    elif isinstance(value, str):
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if is_secret(name, value) if checks_names else has_key(value):
            yield Found(path=path, resolvable="env" in path or "headers" in path)
    elif isinstance(value, int) and not isinstance(value, bool) and checks_names:
        name = next((part for part in reversed(path) if isinstance(part, str)), "")
        if is_secret_number(name, value):
            yield Found(path=path, resolvable=False)
