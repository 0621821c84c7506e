"""What a secret looks like when it stands in a configuration as it is.

It would end up in the plan, in trial folders and in results. A reference, ``${NAME}``, keeps it in the environment of
the workers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from aeo.executors import Wanted

#: A reference without a default, as that would be the secret; an empty one is none.
_REFERENCE = r"\$\{[A-Za-z_][A-Za-z0-9_]*(?::-)?\}"
#: ``${TOKEN}``, ``Bearer ${TOKEN}``, ``Token ${ID}:${SECRET}``: all that Harbor takes as well.
_ONLY_REFERENCES = re.compile(rf"\s*(?:[A-Za-z]+\s+)?{_REFERENCE}(?:[\s:-]*{_REFERENCE})*\s*")
_NAMED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
#: Words that make a name secret. TOKENS counts things, and so does what is beside N, MAX, MIN...
_SECRET_WORDS = frozenset(
    {
        *("KEY", "KEYS", "SECRET", "SECRETS", "TOKEN", "PASSWORD", "PASSWD", "PASSPHRASE", "COOKIE"),
        *("CREDENTIAL", "CREDENTIALS", "AUTH", "AUTHORIZATION"),
    }
)
#: The same, written without a gap after another word: ``DBPASSWORD``, ``apikey``.
_SECRET_ENDS = ("APIKEY", "ACCESSKEY", "PRIVATEKEY", "SECRET", "TOKEN", "PASSWORD", "PASSWD", "CREDENTIALS")
#: Words that say the name is about a secret and holds none, or is about something else.
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
#: Secrets told by what stands around them: in addresses, in headers, after flags, in key files.
_PLACES = re.compile(
    r"[a-z][a-z0-9+.-]*://[^/\s:@]*:(?!\$\{)[^/\s@]+@"
    r"|[?&](?:api[-_]?key|key|(?:access[-_]?)?token|secret|password)=(?!\$\{)[^&\s]{6,}"
    r"|\bbearer\s+(?!\$\{)[a-z0-9._~+/=-]{10,}"
    r"|--?(?:api[-_]key|(?:access[-_])?token|secret|password)[= ]\s*(?!\$\{)[^\s$]{6,}"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----",
    re.IGNORECASE,
)
#: Words that make a name secret when they end it.
_SECRET_LAST = frozenset({"PASS", "PWD", "PAT"})
#: Digits of a number that may be a secret.
_DIGITS = 6
_FLAGS = frozenset({"", "true", "false", "yes", "no", "0", "1", "none", "null"})


def references(places: Iterable[tuple[str, Any]]) -> Iterator[Wanted]:
    """The secrets that environments refer to without a default, each once; by name or as ``NAME=value``.

    What does not look like a secret by its name is an ordinary variable of the workers.
    """
    seen: set[str] = set()
    for place, environment in places:
        values = environment.values() if isinstance(environment, Mapping) else environment
        for value in values if isinstance(values, Iterable) and not isinstance(values, str) else ():
            for name in _NAMED.findall(value) if isinstance(value, str) else ():
                if name not in seen and names_secret(name) and not name.startswith("AEO_"):
                    seen.add(name)
                    yield Wanted(any_of=(name,), by=place, required=True)


def is_secret(name: str, value: str) -> bool:
    """Whether ``value`` of the variable or field ``name`` is a secret written out instead of a reference to one."""
    return has_key(value) or (
        names_secret(name) and not _ONLY_REFERENCES.fullmatch(value) and value.strip().lower() not in _FLAGS
    )


def has_key(text: str) -> bool:
    """Whether a text holds something that looks like a key of a well-known service."""
    return _SHAPES.search(text) is not None or _PLACES.search(text) is not None


def is_secret_number(name: str, value: int) -> bool:
    """Whether a number is a secret written out: a long one under a secret's name."""
    return names_secret(name) and len(str(abs(value))) >= _DIGITS


def names_secret(name: str) -> bool:
    """Whether something of this name is a secret: ``api_key``, ``authToken``; not ``max_tokens``, ``tokenizer``."""
    words = [word.upper() for word in _WORD.findall(name)]
    if words[1:] and words[-1] in _SECRET_LAST:
        return True
    if not any(word in _SECRET_WORDS or word.endswith(_SECRET_ENDS) for word in words):
        return False
    return words[-1] not in _HARMLESS_WORDS and words[0] not in _HARMLESS_FIRST
