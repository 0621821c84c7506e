"""A configuration's text as plain JSON values.

What YAML has beyond JSON (dates, binary, sets, NaN, keys that are no texts, a structure that holds itself) cannot be
stored or sent on, and what it would silently drop (the first of two equal keys) was meant by someone: both are refused
with their place.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import yaml

from aeo.core.errors import InputError, Problem
from aeo.executors import source

#: Levels of nesting.
DEPTH_LIMIT = 100
#: Characters a document has with its aliases written out; each value counts at least `_LEAST`.
_SIZE_LIMIT = 64 * 1024 * 1024
_LEAST = 16
#: Characters of a number.
_NUMBER_LIMIT = 64
#: Faults told at once.
_SHOWN = 20
#: Characters that are in no file and no argument of a program.
_UNWRITABLE = re.compile("[\0\ud800-\udfff]")
_DATE = "tag:yaml.org,2002:timestamp"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")

Path = tuple["str | int", ...]


def read(text: str, name: str) -> Any:
    """Read YAML or JSON into plain JSON values; ``name`` is the file's, for messages.

    Raises:
        InputError: with the line of each fault.
    """
    value = _json(text)
    if value is None:
        value = _yaml(text, name)
    refuse(value, name, text)
    return value


def _json(text: str) -> Any:
    """The value of a JSON text without equal keys; None when it is anything else.

    To YAML 1.1 its ``1e5`` is a text and its ``"\\ud83d\\ude00"`` two halves of a character.
    """
    if not text.lstrip().startswith("{"):
        return None
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError):
        return None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a key stands there twice")
    return made


class _Shallow(yaml.SafeLoader):
    """Stops at the first node that is nested too deep, and so before it has read all the others."""

    depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.depth > 2 * DEPTH_LIMIT:  # what is a little too deep is told with its place
            raise RecursionError
        self.depth += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


def _yaml(text: str, name: str) -> Any:
    try:
        loader = _Shallow(text)
        node = loader.get_single_node()
        if node is None:
            return None
        _Structure(name).check(node)
        return loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise InputError(f"not valid YAML: {error.problem or error.context}.", field=name + line) from None
    except RecursionError:
        raise InputError(f"is nested deeper than {DEPTH_LIMIT} levels.", field=name) from None
    except (yaml.YAMLError, ValueError, ArithmeticError, LookupError, TypeError, AttributeError) as error:
        # The last ones are what the parser says of a tag that does not fit its value, as in "!!bool maybe".
        raise InputError(f"not valid YAML: {error}", field=name) from None


def refuse(value: Any, name: str = "", text: str = "") -> None:
    """Let only plain JSON values pass; ``text`` is what they were read from, for lines.

    Raises:
        InputError: with one problem per fault.
    """
    problems = tuple(
        Problem(message=message, field=source.place(name, text, path), fix=fix)
        for path, message, fix in islice(_faults(value, ()), _SHOWN)
    )
    if problems:
        raise InputError(problems=problems)


def _faults(value: Any, path: Path) -> Iterator[tuple[Path, str, str]]:
    if len(path) > DEPTH_LIMIT:
        yield path[:3], f"is nested deeper than {DEPTH_LIMIT} levels.", ""
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                yield (*path, _shown(key)), "is a key that is no text.", "Put it in quotes."
            elif _UNWRITABLE.search(key):
                yield path, "has a key with half of a character or NUL in it.", ""
            else:
                yield from _faults(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _faults(item, (*path, index))
    else:
        message, fix = _fault(value)
        if message:
            yield path, message, fix


def _fault(value: Any) -> tuple[str, str]:
    if value is None or isinstance(value, bool):
        return "", ""
    if isinstance(value, str):
        return ("holds half of a character, or NUL.", "") if _UNWRITABLE.search(value) else ("", "")
    if isinstance(value, int):
        return ("", "") if -(2**63) <= value < 2**64 else ("is too large a number.", "Put it in quotes.")
    if isinstance(value, float):
        return ("", "") if math.isfinite(value) else ("is no finite number.", "")
    return f"is of the type {type(value).__name__}, which JSON has no word for.", "Write it as a text."


def _shown(key: Any) -> str:
    return "a number" if isinstance(key, int) and _fault(key)[0] else str(key)[:100]


class _Structure:
    """What only the text's own tree shows: equal keys, aliases, how long a number is written."""

    def __init__(self, name: str):
        self._name = name
        #: Nodes seen whole to their sizes; None while they are being looked at.
        self._sizes: dict[int, int | None] = {}
        self._problems: list[Problem] = []

    def check(self, node: yaml.Node) -> None:
        """Raise for all that is wrong below ``node``."""
        self._measure(node, ())
        if self._problems:
            raise InputError(problems=tuple(self._problems[:_SHOWN]))

    def _measure(self, node: yaml.Node, path: Path) -> int:
        """Characters with the aliases written out: each costs what it stands for, so the tree is walked once."""
        if id(node) in self._sizes:
            known = self._sizes[id(node)]
            if known is None:
                raise InputError(problems=(self._problem(node, path, "holds itself."),))
            return known
        self._sizes[id(node)] = None
        size = _LEAST + self._inner(node, path)
        if size > _SIZE_LIMIT:
            raise InputError(problems=(self._problem(node, path, "is too large with its aliases written out."),))
        self._sizes[id(node)] = size
        return size

    def _inner(self, node: yaml.Node, path: Path) -> int:
        if isinstance(node, yaml.SequenceNode):
            return sum(self._measure(item, (*path, index)) for index, item in enumerate(node.value))
        if isinstance(node, yaml.MappingNode):
            return self._pairs(node, path)
        if node.tag == _DATE:
            self._note(node, path, "is a date, which JSON has no word for.", "Put it in quotes.")
        elif node.tag in _NUMBERS and len(node.value) > _NUMBER_LIMIT:
            self._note(node, path, "is too long a number.", "Put it in quotes.")
        return len(node.value)

    def _pairs(self, node: yaml.MappingNode, path: Path) -> int:
        size, seen = 0, set()
        for key, item in node.value:
            here = path
            if isinstance(key, yaml.ScalarNode):
                here = (*path, key.value[:100])
                if (key.tag, key.value) in seen:
                    self._note(key, here, "stands here twice.", "Keep one of them.")
                seen.add((key.tag, key.value))
            size += self._measure(key, here) + self._measure(item, here)
        return size

    def _note(self, node: yaml.Node, path: Path, message: str, fix: str) -> None:
        self._problems.append(self._problem(node, path, message, fix))

    def _problem(self, node: yaml.Node, path: Path, message: str, fix: str = "") -> Problem:
        where = f"{self._name}:{node.start_mark.line + 1}"
        dotted = source.dotted(path)
        return Problem(message=message, field=f"{where}: {dotted}" if dotted else where, fix=fix)
