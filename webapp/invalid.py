"""What is wrong with a body or a query, as problems that say what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flask import current_app, request
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from aeo.core import words
from aeo.core.errors import Problem

#: What to do about a fault that has no better advice.
SEE = "See /api/openapi.json for what it may be."

_Context = Mapping[str, Any]

_FIXES: Mapping[str, str | Callable[[_Context], str]] = {
    "missing": "Give it.",
    "string_type": 'Give a text ("…").',
    "string_too_short": lambda ctx: f"Give at least {words.count(ctx['min_length'], 'character')}.",
    "string_too_long": lambda ctx: f"Give at most {words.count(ctx['max_length'], 'character')}.",
    "int_type": "Give a whole number.",
    "int_parsing": "Give a whole number.",
    "int_from_float": "Give a whole number.",
    "float_type": "Give a number.",
    "float_parsing": "Give a number.",
    "finite_number": "Give a number that is neither infinite nor NaN.",
    "bool_type": "Give true or false.",
    "bool_parsing": "Give true or false.",
    "list_type": "Give a list ([…]).",
    "dict_type": "Give an object ({…}).",
    "model_type": "Give an object ({…}).",
    "enum": lambda ctx: f"Give {ctx['expected']}.",
    "literal_error": lambda ctx: f"Give {ctx['expected']}.",
    "greater_than": lambda ctx: f"Give more than {words.plain(ctx['gt'])}.",
    "greater_than_equal": lambda ctx: f"Give {words.plain(ctx['ge'])} or more.",
    "less_than": lambda ctx: f"Give less than {words.plain(ctx['lt'])}.",
    "less_than_equal": lambda ctx: f"Give {words.plain(ctx['le'])} or less.",
    # Ours, which say themselves what to do.
    "value_error": "",
}


#: What is said in place of pydantic's own words, where its bound is told with the fix.
_MESSAGES: Mapping[str, str] = {
    "missing": "is missing.",
    "string_too_short": "is too short.",
    "string_too_long": "is too long.",
    "greater_than": "is too small.",
    "greater_than_equal": "is too small.",
    "less_than": "is too large.",
    "less_than_equal": "is too large.",
    "finite_number": "is no finite number.",
}


def problems(error: ValidationError, place: str) -> Iterator[Problem]:
    """Read the faults that were found in ``place`` ("json" or "query") of the present request."""
    for item in error.errors():
        path = ".".join(map(str, item["loc"]))
        yield Problem(
            message=_message(item),
            field=path or ("body" if place == "json" else place),
            fix=_fix(item, place),
        )


def _message(item: ErrorDetails) -> str:
    said = _MESSAGES.get(item["type"]) or item["msg"].removeprefix("Value error, ")
    return said if said.endswith((".", "!", "?")) else f"{said}."


def _fix(item: ErrorDetails, place: str) -> str:
    if item["type"] == "extra_forbidden":
        return _meant(item["loc"], place)
    fix = _FIXES.get(item["type"], SEE)
    return fix if isinstance(fix, str) else fix(item.get("ctx", {}))


def _meant(path: tuple[int | str, ...], place: str) -> str:
    known = sorted(_fields(path[:-1], place))
    close = difflib.get_close_matches(str(path[-1]), known, n=1)
    if close:
        return f"Did you mean {close[0]!r}?"
    return f"Leave it out. Known: {', '.join(known)}." if known else "Leave it out."


def _fields(path: tuple[int | str, ...], place: str) -> set[str]:
    """Names that the object at ``path`` may have."""
    model = _schema(place)
    for part in path:
        item = model.model_fields.get(str(part)) if model else None
        kind = item.annotation if item else None
        model = kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None
    return set(model.model_fields) if model else set()


def _schema(place: str) -> type[BaseModel] | None:
    """The schema that the view of the present request gave to APIFlask."""
    spec = getattr(current_app.view_functions.get(request.endpoint or ""), "_spec", {})
    found = spec.get("body") if place == "json" else next((s for s, at in spec.get("args") or () if at == place), None)
    return found if isinstance(found, type) and issubclass(found, BaseModel) else None
