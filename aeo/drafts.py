"""An evaluation being written: its text, and the same as a form shows it.

The text is what is submitted. `read` makes a form of it; `write` brings what was typed in the form back into the text.
What the form does not show is kept, and a text that nobody changed stays as it is, with its comments.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import yaml

from aeo import executors
from aeo.codec import encode
from aeo.core.errors import InputError
from aeo.core.model import Evaluation
from aeo.executors import PLAIN, document, forms
from aeo.executors.forms import Form, Values, meant, shown
from aeo.submission import AGENT_TIMEOUT_MULTIPLIER, HEADER

#: Keys of our header that are texts of one line in a form, with what holds when they are left out.
_DEFAULTS = {
    "name": "",
    "per_worker_concurrency": "1",
    "priority": "0",
    "agent_timeout_multiplier": str(AGENT_TIMEOUT_MULTIPLIER),
    "max_requeues": "2",
    "secrets": "",
}
_KINDS = {"name": "text", "agent_timeout_multiplier": "number"}
_FACTOR = "agent_timeout_multiplier"
#: A name given by the time of submission.
_BY_TIME = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}--[0-9-]+-[0-9a-f]{4}")
#: What stands before a field in the place of a problem: a line, of a file or not.
_LINE = re.compile(r"(?:line |[^:]*:)[0-9]+(?:: |$)")


@dataclass(frozen=True, kw_only=True)
class Draft:
    """What stands in the form, all as people type it."""

    executor: str
    name: str = ""
    workers: tuple[str, ...] = ()
    #: A number or ``all``.
    per_worker_concurrency: str = ""
    priority: str = ""
    #: Empty: as the configuration has it.
    agent_timeout_multiplier: str = ""
    max_requeues: str = ""
    #: Names, comma-separated.
    secrets: str = ""
    #: The executor's part.
    values: Values = field(default_factory=Values)


@lru_cache(maxsize=32)
def form(executor: str) -> Form | None:
    """The form of an executor's configuration; None when it has none, or is not installed."""
    try:
        return forms.form_of(executors.load(executor))
    except InputError:
        return None


def read(text: str) -> Draft:
    """Show a text as a form.

    Raises:
        InputError: it is no YAML or JSON, or no mapping.
    """
    return _read(*_split(text))


def hidden(text: str) -> tuple[str, ...]:
    """Places in a text that its form does not show.

    Raises:
        InputError: it is no YAML or JSON, or no mapping.
    """
    header, config = _split(text)
    found = form(_executor(header))
    ours = ("stop_when",) if header.get("stop_when") else ()
    return (*ours, *(tuple(config) if found is None else found.hidden(config)))


def write(draft: Draft, text: str, dataset: Mapping[str, Any] | None = None) -> str:
    """Bring a form back into the text it was made of.

    ``dataset`` is the part of a configuration that means the form's dataset, where there is more to it than its name.

    Raises:
        InputError: the text is no YAML or JSON, or no mapping.
    """
    header, config = _split(text)
    before = _read(header, config)
    moved = draft.executor != before.executor
    # What the other executor does not know would be wrong there.
    base = {} if moved else config
    if dataset and (moved or draft.values.dataset != before.values.dataset) and dataset != _only(draft):
        base = {**base, **dataset}
    made = _write_values(draft, base)
    changed = [key for key in _DEFAULTS if getattr(draft, key).strip() != getattr(before, key).strip()]
    changed += ["workers"] if draft.workers != before.workers else []
    if not (changed or moved) and made == config:
        return text
    if not header and (changed or moved):
        # Our header would give agents more time; nobody asked for that.
        header = {_FACTOR: config.get(_FACTOR)}
        made.pop(_FACTOR, None)
    if header:
        header["executor"] = draft.executor
    return _dump({**_with(header, changed, draft), **made})


def word(place: str, executor: str) -> str:
    """The field of the form that a problem is about; "" when it is about none.

    A key of our header, a word of `aeo.executors.forms.WORDS`, an own field's name, or ``agents.1``.
    """
    path = _LINE.sub("", place)
    if path in HEADER:
        return path
    if path.startswith("worker "):
        return "workers"
    found = form(executor)
    return found.word(path) if found and path else ""


def new(executor: str = PLAIN) -> str:
    """A text to begin with: what people here are used to stands in it, to be seen."""
    return _dump({"executor": executor, "per_worker_concurrency": 1, _FACTOR: AGENT_TIMEOUT_MULTIPLIER})


def again(evaluation: Evaluation, *, taken: Callable[[str], bool]) -> str:
    """The text that asks for the same again, under the next name that is not ``taken``."""
    spec = evaluation.spec
    found = form(spec.executor)
    config = dict(spec.config) if found is None else found.again(evaluation)
    own = config.pop(_FACTOR, None)
    header: dict[str, Any] = {
        "executor": spec.executor,
        "name": next_name(spec.name, taken),
        "workers": list(spec.workers),
        "per_worker_concurrency": "all" if spec.per_worker_concurrency is None else spec.per_worker_concurrency,
        "priority": spec.priority,
        _FACTOR: own if spec.agent_timeout_multiplier is None else spec.agent_timeout_multiplier,
        "max_requeues": spec.max_requeues,
        "secrets": list(spec.secrets),
    }
    if spec.stop_when:
        header["stop_when"] = {key: value for key, value in encode(spec.stop_when).items() if value}
    optional = ("name", "workers", "priority", "secrets")
    kept = {key: value for key, value in header.items() if value or key not in optional}
    return _dump({**kept, **config})


def next_name(name: str, taken: Callable[[str], bool]) -> str:
    """``nightly-2`` after ``nightly``; "" after a name by the time, as another time will give another one."""
    if _BY_TIME.fullmatch(name):
        return ""
    stem, _, number = name.rpartition("-")
    if not stem or not re.fullmatch(r"[1-9][0-9]{0,5}", number):
        stem, number = name, "1"
    count = int(number) + 1
    while taken(f"{stem}-{count}"):
        count += 1
    return f"{stem}-{count}"


def _split(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Our header, empty for a plain configuration, and the executor's own."""
    found = document.read(text, "") if text.strip() else {}
    if not isinstance(found, dict):
        raise InputError("is no mapping of keys to values.", field="line 1")
    if "executor" not in found:
        return {}, found
    return (
        {key: value for key, value in found.items() if key in HEADER},
        {key: value for key, value in found.items() if key not in HEADER},
    )


def _executor(header: Mapping[str, Any]) -> str:
    return shown(header.get("executor")) or PLAIN


def _read(header: Mapping[str, Any], config: Mapping[str, Any]) -> Draft:
    found = form(_executor(header))
    texts = {key: _text(header, key) for key in _DEFAULTS}
    if not header:
        texts[_FACTOR] = shown(config.get(_FACTOR))
    workers = header.get("workers")
    if isinstance(workers, str):
        workers = [part.strip() for part in workers.split(",") if part.strip()]
    return Draft(
        executor=_executor(header),
        workers=tuple(map(shown, workers)) if isinstance(workers, list) else (),
        values=found.read(config) if found else Values(),
        **texts,
    )


def _text(header: Mapping[str, Any], key: str) -> str:
    if key not in header:
        return _DEFAULTS[key]
    if header[key] is None:
        # Where null is a value of its own.
        return {"per_worker_concurrency": "all", _FACTOR: ""}.get(key, _DEFAULTS[key])
    if key == "secrets" and isinstance(header[key], list):
        return ", ".join(map(shown, header[key]))
    return shown(header[key])


def _write_values(draft: Draft, config: Mapping[str, Any]) -> dict[str, Any]:
    found = form(draft.executor)
    return dict(config) if found is None else found.write(draft.values, config)


def _only(draft: Draft) -> dict[str, Any]:
    """What the dataset's name alone is written as."""
    return _write_values(Draft(executor=draft.executor, values=Values(dataset=draft.values.dataset)), {})


def _with(header: Mapping[str, Any], changed: list[str], draft: Draft) -> dict[str, Any]:
    made = dict(header)
    for key in changed:
        if key == "workers":
            value: Any = list(draft.workers) or None
        elif key == "secrets":
            value = [part.strip() for part in draft.secrets.split(",") if part.strip()] or None
        else:
            value = meant(getattr(draft, key), _KINDS.get(key, "whole"))
        made[key] = value
        if value is None and key != _FACTOR:
            del made[key]
    return {key: made[key] for key in HEADER if key in made}


def _dump(value: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(value), sort_keys=False, allow_unicode=True, width=100) if value else ""
