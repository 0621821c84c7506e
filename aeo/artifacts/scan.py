"""Looking through a trajectory's JSON, keeping where its steps lie instead of what is in them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

#: Agents that an agent called, and so on.
_DEPTH = 5
_SPACE = re.compile(r"[ \t\r\n]*")
_KEPT = ("agent", "notes", "final_metrics", "schema_version", "trajectory_id")


@dataclass(kw_only=True)
class Document:
    """A trajectory, by where things of it lie."""

    fields: dict[str, Any] = field(default_factory=dict)
    #: Begin and end of each step, bytes.
    steps: list[tuple[int, int]] = field(default_factory=list)
    #: The tools that each step calls.
    tools: list[tuple[str, ...]] = field(default_factory=list)
    #: Trajectories of agents that were called, by their ids.
    agents: dict[str, Document] = field(default_factory=dict)
    complete: bool = False


def look_through(text: str) -> Document:
    """Look through a file that was read with a byte for a character, as far as it is JSON."""
    return _Scan(text).document(_DEPTH)


class _Scan:
    """Goes through a JSON text, keeping places instead of values."""

    def __init__(self, text: str):
        self._text, self._at = text, 0
        self._value = json.JSONDecoder().raw_decode

    def document(self, depth: int) -> Document:
        """Read a trajectory, as far as it goes."""
        document = Document()
        try:
            for key in self._members():
                if key == "steps":
                    self._each(lambda: self._add_step(document))
                elif key == "subagent_trajectories" and depth > 0:
                    self._each(lambda: self._add_agent(document, depth))
                else:
                    value = self._take()
                    if key in _KEPT:
                        document.fields[key] = _utf8(value)
            document.complete = True
        except (ValueError, RecursionError, IndexError):
            pass
        return document

    def _add_step(self, document: Document) -> None:
        begin = self._at
        step = self._take()
        document.steps.append((begin, self._at))
        calls = mapping(step).get("tool_calls")
        names = (mapping(call).get("function_name") for call in (calls if isinstance(calls, list) else ()))
        document.tools.append(tuple(word(_utf8(name)) for name in names if isinstance(name, str) and name))

    def _add_agent(self, document: Document, depth: int) -> None:
        if self._text[self._at] != "{":
            # The specification allows nothing else, but it may be null.
            self._take()
            return
        called = self.document(depth - 1)
        if not called.complete:
            raise ValueError
        document.agents[word(called.fields.get("trajectory_id")) or f"agent-{len(document.agents) + 1}"] = called

    def _take(self) -> Any:
        value, self._at = self._value(self._text, self._at)
        return value

    def _members(self) -> Iterator[str]:
        """The keys of an object; whoever takes one takes its value before the next."""
        self._expect("{")
        if self._next_is("}"):
            return
        while True:
            self._space()
            key = self._take()
            self._expect(":")
            self._space()
            yield key if isinstance(key, str) else ""
            if not self._next_is(","):
                break
        self._expect("}")

    def _each(self, take: Callable[[], None]) -> None:
        if self._text[self._at] != "[":
            self._take()
            return
        self._expect("[")
        if self._next_is("]"):
            return
        while True:
            self._space()
            take()
            if not self._next_is(","):
                break
        self._expect("]")

    def _space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = found.end() if found else self._at

    def _next_is(self, sign: str) -> bool:
        self._space()
        if self._text[self._at : self._at + 1] == sign:
            self._at += 1
            return True
        return False

    def _expect(self, sign: str) -> None:
        if not self._next_is(sign):
            raise ValueError


def _utf8(value: Any) -> Any:
    """What was read with a byte for a character, as it is meant."""
    if isinstance(value, str):
        # Fails where a \u escape is in it, which is a character already.
        with suppress(UnicodeError):
            return value.encode("latin-1").decode()
        return value
    if isinstance(value, dict):
        return {_utf8(key): _utf8(item) for key, item in value.items()}
    return [_utf8(item) for item in value] if isinstance(value, list) else value


def mapping(value: Any) -> Mapping[str, Any]:
    """What should be an object; an empty one in place of anything else."""
    return value if isinstance(value, dict) else {}


def word(value: Any, limit: int = 200) -> str:
    """What should be a short text; an empty one in place of anything else."""
    return value[:limit].encode("utf-8", "replace").decode() if isinstance(value, str) else ""
