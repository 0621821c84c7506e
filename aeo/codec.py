"""The model as JSON and back: one place, used by the store, the disk and the API."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime, timezone
from enum import Enum
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from aeo.core.errors import InputError

T = TypeVar("T")


def encode(value: Any) -> Any:
    """Turn a model object into plain JSON values. Times become ISO 8601 in UTC."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.astimezone(timezone.utc).isoformat()
    if isinstance(value, Path):
        return str(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: encode(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(encode(key)): encode(item) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [encode(item) for item in value]
    return value


def dumps(value: Any) -> str:
    """Encode as compact JSON; NaN and infinities are refused, as JSON has none.

    Halves of characters (from broken file names and output) become ``?``: no disk, socket or page could take them.
    """
    text = json.dumps(encode(value), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "replace").decode()


def loads(kind: type[T], text: str | bytes) -> T:
    """Decode JSON text into a model class.

    Raises:
        InputError: the text is not JSON or not of this class.
    """
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not valid JSON: {error}") from None
    return decode(kind, value)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON number")


def decode(kind: type[T], value: Any) -> T:
    """Turn plain JSON values into a model object; unknown keys are refused.

    Raises:
        InputError: a field is missing, unknown, or of another type.
    """
    try:
        result: T = _decode(kind, value)
        return result
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise InputError(f"not a {kind.__name__}: {str(error)[:300]}") from None


@cache
def _hints(kind: type[Any]) -> dict[str, Any]:
    return get_type_hints(kind)


#: Labels that many trials have alike, each once.
_labels: dict[tuple[tuple[str, str], ...], dict[str, str]] = {}
_MOST_LABELS = 10_000
#: Characters of a text of which one copy is kept for all that have it.
_SHORT = 40


def _shared(mapping: dict[str, str]) -> dict[str, str]:
    """One mapping for all that are alike: what is decoded is never changed."""
    if len(_labels) >= _MOST_LABELS:
        _labels.clear()
    return _labels.setdefault(tuple(mapping.items()), mapping)


def _decode(kind: Any, value: Any) -> Any:
    origin = get_origin(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None:
            return None
        return _decode(next(arg for arg in get_args(kind) if arg is not type(None)), value)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{value!r} is no list")
        return tuple(_decode(get_args(kind)[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        of_key, of_item = get_args(kind)
        decoded = {_decode(of_key, key): _decode(of_item, item) for key, item in value.items()}
        return _shared(decoded) if of_item is str else decoded
    if kind is datetime:
        moment = datetime.fromisoformat(value)
        if moment.tzinfo is None:
            raise ValueError(f"{value} names no time zone")
        return moment
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{key: _decode(hints[key], item) for key, item in value.items()})
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    if kind is str and type(value) is str and len(value) <= _SHORT:
        # A hundred thousand trials have the same few names and labels.
        return sys.intern(value)
    if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
