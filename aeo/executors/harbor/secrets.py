"""Finds secrets that stand in a job configuration as they are.

They would end up in the plan, in every trial's ``config.json`` and in the results. ``${NAME}`` keeps them in the
workers' environment instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

#: Values an environment may refer to: the whole value, as Harbor resolves only those.
_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-.*)?\}", re.DOTALL)
_BARE_REFERENCE = re.compile(r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-)?\}")
#: Words that make a key secret. TOKENS counts things, and so does what is beside N, MAX, MIN...
_SECRET_WORDS = frozenset(
    {
        *("KEY", "KEYS", "APIKEY", "SECRET", "SECRETS", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE"),
        *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION"),
    }
)
#: Words that say the key is about a secret and holds none, or is about something else.
_HARMLESS_WORDS = frozenset(
    {
        *("COUNT", "LIMIT", "LENGTH", "SIZE", "NAME", "PATH", "FILE", "TYPE", "MODE"),
        *("HEADER", "URL", "FORMAT", "ENABLED", "ID", "STYLE", "METHOD"),
    }
)
_HARMLESS_FIRST = frozenset({"N", "NUM", "MAX", "MIN", "PUBLIC", "PRIMARY", "FOREIGN", "SORT"})
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|[0-9]+")
#: What well-known services' keys look like, whatever the field is called.
_SHAPES = re.compile(
    r"(?<![A-Za-z0-9])("
    r"sk-[A-Za-z0-9_-]{16,}"
    r"|gh[opsur]_[A-Za-z0-9]{20,}|github_pat_[A-Za-z0-9_]{20,}|glpat-[A-Za-z0-9_-]{16,}"
    r"|(?:AKIA|ASIA)[A-Z0-9]{16}"
    r"|hf_[A-Za-z0-9]{20,}"
    r"|xox[abeprs]-[A-Za-z0-9-]{10,}"
    r"|AIza[A-Za-z0-9_-]{30,}"
    r"|eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}"
    r")"
)
_FLAGS = frozenset({"", "true", "false", "yes", "no", "0", "1", "none", "null"})


@dataclass(frozen=True, kw_only=True)
class Found:
    """A secret in a configuration. The value itself is not kept."""

    path: tuple[str | int, ...]
    #: Whether Harbor resolves ``${NAME}`` at this very place.
    resolvable: bool


def find(config: Mapping[str, Any]) -> list[Found]:
    """Every place in ``config`` that holds a secret as it is, in the order of the configuration."""
    return list(_walk(config, (), checks_keys=False))


def _walk(value: Any, path: tuple[str | int, ...], *, checks_keys: bool) -> Iterator[Found]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _walk(item, (*path, str(key)), checks_keys=checks_keys or key in ("kwargs", "env", "headers"))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            if isinstance(item, str) and path[-1:] == ("env",):
                name, _, content = item.partition("=")
                yield from _walk(content, (*path, index, name), checks_keys=checks_keys)
            else:
                yield from _walk(item, (*path, index), checks_keys=checks_keys)
    elif isinstance(value, str) and _is_secret(value, path, checks_keys):
        yield Found(path=path, resolvable="env" in path or "headers" in path)


def _is_secret(value: str, path: tuple[str | int, ...], checks_keys: bool) -> bool:
    if _BARE_REFERENCE.fullmatch(value):
        return False
    if _SHAPES.search(value):
        return True
    if not checks_keys or _REFERENCE.fullmatch(value) or value.strip().lower() in _FLAGS:
        return False
    if "headers" in path and "${" in value:  # e.g. "Bearer ${TOKEN}", which Harbor checks itself
        return False
    keys = [part for part in path if isinstance(part, str)]
    return looks_secret(keys[-1])


def looks_secret(key: str) -> bool:
    """Whether a key of this name holds a secret: ``api_key``, ``authToken``; not ``max_tokens``, ``tokenizer``."""
    words = [word.upper() for word in _WORD.findall(key)]
    if not set(words) & _SECRET_WORDS:
        return False
    return words[-1] not in _HARMLESS_WORDS and words[0] not in _HARMLESS_FIRST
