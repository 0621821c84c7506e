"""What an executor may offer beside running trials, as its member ``form``: its configuration in the words of a form.

A form shows a part of a configuration. What it does not show it keeps, and what nobody changed in it stays as it was
written: ``write(read(config), config) == config``, whatever stands there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aeo.core.model import Evaluation
from aeo.executors import Executor

#: The words every form may have, beside fields of the executor's own.
WORDS = ("dataset", "include", "exclude", "agents", "attempts")

Path = tuple["str | int", ...]


@dataclass(frozen=True, kw_only=True)
class Field:
    """One field of the executor's own, for a text of one line."""

    name: str
    label: str
    #: Where on the form: ``tasks``, ``time`` or ``retry``.
    group: str
    #: ``number``, ``whole`` or ``text``.
    kind: str = "number"
    #: What holds when it is left empty.
    default: str = ""
    help: str = ""


@dataclass(frozen=True, kw_only=True)
class AgentRow:
    """An agent with a model."""

    agent: str = ""
    model: str = ""
    #: Which one of the configuration it was, so that what the form does not show of it is kept; None is a new one.
    origin: int | None = None


@dataclass(frozen=True, kw_only=True)
class Values:
    """What stands in a form, all as people type it; empty is left out."""

    #: A name, a name with a version, or a path.
    dataset: str = ""
    #: Globs of task names.
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    agents: tuple[AgentRow, ...] = ()
    attempts: str = ""
    #: The executor's own fields, by name.
    own: Mapping[str, str] = field(default_factory=dict)


class Form(Protocol):
    """A configuration as a form shows it. All pure but `tasks`."""

    #: Which of `WORDS` it has.
    words: frozenset[str]
    #: How a dataset is written; a text of the catalogues.
    dataset_help: str
    #: Whether there may be more than one agent.
    many_agents: bool
    #: Names to choose from; others are possible.
    agents: tuple[str, ...]
    fields: tuple[Field, ...]

    def read(self, config: Mapping[str, Any]) -> Values:
        """What the form shows of a configuration, however wrong it is."""

    def write(self, values: Values, config: Mapping[str, Any]) -> dict[str, Any]:
        """``config`` with what is different in ``values``; everything else as it was. What makes no sense is written
        all the same: planning says why."""

    def word(self, path: str) -> str:
        """The field that shows a place such as ``agents[1].model_name``: a word, an own field's name, ``agents.1``; ""
        when none does."""

    def hidden(self, config: Mapping[str, Any]) -> tuple[str, ...]:
        """Places of the configuration that the form does not show."""

    def tasks(self, dataset: str) -> tuple[str, ...] | None:
        """Names of the tasks of a dataset that is a path on this machine; None when that cannot be told."""

    def chosen(self, values: Values, names: Sequence[str]) -> tuple[str, ...]:
        """Which of a dataset's tasks are left by the filters."""

    def again(self, evaluation: Evaluation) -> dict[str, Any]:
        """The configuration of an evaluation, for another one: relative paths made absolute."""


def form_of(executor: Executor) -> Form | None:
    """The form of an executor's configuration; None when it has none."""
    found: Form | None = getattr(executor, "form", None)
    return found


def shown(value: Any) -> str:
    """A value as people type it: texts as they are, nothing as an empty text, the rest as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def meant(text: str, kind: str) -> Any:
    """What is typed as a value: None when empty; a number where one is wanted and it is one, else the text itself."""
    text = text.strip()
    if not text:
        return None
    if kind != "text" and re.fullmatch(r"[+-]?[0-9]{1,15}", text):
        return int(text)
    if kind == "number" and re.fullmatch(r"[+-]?[0-9]{1,15}\.[0-9]{0,15}", text):
        return float(text)
    return text


def get(config: Any, path: Path) -> Any:
    """The value at ``path``; None when there is nothing."""
    for part in path:
        if isinstance(part, int):
            config = config[part] if isinstance(config, list) and part < len(config) else None
        else:
            config = config.get(part) if isinstance(config, Mapping) else None
    return config


def put(config: Mapping[str, Any], path: Path, value: Any) -> dict[str, Any]:
    """A copy of ``config`` with ``value`` at ``path``, or without the key when it is None; a mapping that holds nothing
    after that goes too."""
    made: dict[str, Any] = _put(config, path, value)
    return made


def _put(config: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    part, rest = path[0], path[1:]
    if isinstance(part, int):
        items = list(config) if isinstance(config, list) else []
        items += [{} for _ in range(part + 1 - len(items))]
        items[part] = _put(items[part], rest, value)
        return items
    made = dict(config) if isinstance(config, Mapping) else {}
    inner = _put(made.get(part), rest, value)
    if inner is None or (rest and inner in ({}, [{}])):
        made.pop(part, None)
    else:
        made[part] = inner
    return made


def read_fields(fields: Sequence[Field], paths: Mapping[str, Path], config: Mapping[str, Any]) -> dict[str, str]:
    """The own fields, each from its path."""
    return {item.name: shown(get(config, paths[item.name])) for item in fields}


def write_fields(
    fields: Sequence[Field], paths: Mapping[str, Path], values: Values, before: Values, config: dict[str, Any]
) -> dict[str, Any]:
    """``config`` with the own fields that changed."""
    for item in fields:
        text = values.own.get(item.name, "").strip()
        if text != before.own[item.name].strip():
            config = put(config, paths[item.name], meant(text, item.kind))
    return config
