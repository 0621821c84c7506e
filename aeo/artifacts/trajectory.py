"""What an agent did, step by step, from a file in the Agent Trajectory Interchange Format (ATIF), of any size.

The file is looked through once, to know where each step lies; a page then reads the steps it shows. Nothing in it is
trusted: what is not as the format says is left out or shown as it stands.
"""

from __future__ import annotations

import json
import posixpath
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from aeo.artifacts.place import Place
from aeo.artifacts.scan import Document, look_through, mapping, word
from aeo.core.errors import InputError, NotFound

#: Largest file that is looked through, bytes.
LARGEST = 64 * 1024 * 1024
#: Characters of one text, unless all of it is asked for.
TEXT = 12_000
_CACHED = 32


@dataclass(frozen=True, kw_only=True)
class Content:
    """A text or a picture."""

    text: str = ""
    #: Characters of the text that are left out here.
    left_out: int = 0
    #: A picture's path inside the trial's folder; empty for a text.
    picture: str = ""


@dataclass(frozen=True, kw_only=True)
class Call:
    """A use of a tool, and what came back."""

    tool: str
    #: As JSON, or as the text if there is one argument.
    arguments: Content
    results: tuple[Content, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One turn."""

    #: Its place, from 1.
    number: int
    #: ``user``, ``agent``, ``system``.
    source: str
    at: datetime | None = None
    model: str = ""
    message: tuple[Content, ...] = ()
    reasoning: Content | None = None
    calls: tuple[Call, ...] = ()
    #: What came back and belongs to no call.
    results: tuple[Content, ...] = ()
    #: Ids of the trajectories of agents it called.
    agents: tuple[str, ...] = ()
    #: None is unknown, here and below.
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    #: US dollars.
    cost_usd: float | None = None


@dataclass(frozen=True, kw_only=True)
class Overview:
    """A trajectory without its steps."""

    agent: str = ""
    version: str = ""
    model: str = ""
    steps: int = 0
    #: Whether the file could be read to its end.
    complete: bool = True
    #: Tool to how often it was called, the most used first.
    tools: Mapping[str, int] = field(default_factory=dict)
    notes: str = ""
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None
    #: Ids of the trajectories in the same file, of agents that this one called.
    agents: tuple[str, ...] = ()


def overview(place: Place, name: str, *, agent: str = "") -> Overview:
    """Look at a trajectory; ``agent`` is the id of one inside it.

    Raises:
        NotFound: there is no such file, or no such trajectory in it.
        InputError: it is too large, or none at all.
    """
    document = _document(place, name, agent)
    show = place.redactor.text
    who, total = mapping(document.fields.get("agent")), mapping(document.fields.get("final_metrics"))
    counts = Counter(tool for used in document.tools for tool in used)
    return Overview(
        agent=show(word(who.get("name"))),
        version=show(word(who.get("version"))),
        model=show(word(who.get("model_name"))),
        steps=len(document.steps),
        complete=document.complete,
        tools={show(tool): count for tool, count in counts.most_common()},
        notes=show(word(document.fields.get("notes"), TEXT)),
        input_tokens=_count(total.get("total_prompt_tokens")),
        cache_tokens=_count(total.get("total_cached_tokens")),
        output_tokens=_count(total.get("total_completion_tokens")),
        cost_usd=_amount(total.get("total_cost_usd")),
        agents=tuple(document.agents),
    )


def steps(
    place: Place, name: str, *, offset: int = 0, limit: int = 50, tool: str = "", agent: str = "", whole: bool = False
) -> tuple[list[Step], int]:
    """Steps in order, and how many there are; with ``tool``, those that call it. ``whole``: long texts are not cut.

    Raises:
        NotFound: there is no such file, or no such trajectory in it.
        InputError: it is too large, or none at all.
    """
    document = _document(place, name, agent)
    show = place.redactor.text
    wanted = [index for index, used in enumerate(document.tools) if not tool or tool in map(show, used)]
    folder = posixpath.dirname(name)
    chosen = wanted[max(0, offset) : max(0, offset) + limit]
    # The file may have been written anew since it was looked through; then a step is no JSON.
    made = (_step(_read(place, name, document.steps[index]), index + 1, folder, whole) for index in chosen)
    return [step for step in made if step is not None], len(wanted)


_cache: OrderedDict[str, Document] = OrderedDict()
#: One at a time: a large file takes memory.
_looking = threading.Lock()


def _document(place: Place, name: str, agent: str) -> Document:
    key = f"{place.identity(name)} {name}"
    with _looking:
        found = _cache.pop(key, None) or _look_through(place, name)
        _cache[key] = found
        while len(_cache) > _CACHED:
            _cache.popitem(last=False)
    if agent:
        if agent not in found.agents:
            raise NotFound(f"There is no trajectory {agent[:100]!r} in {name}.", field="agent")
        return found.agents[agent]
    return found


def _look_through(place: Place, name: str) -> Document:
    first, size = place.extent(name)
    if first > 0 or size > LARGEST:
        raise InputError(f"is larger than {LARGEST >> 20} MiB.", field=name, fix="Download it.")
    # A byte is a character here, so that places in the text are places in the file.
    document = look_through(place.read(name, 0, size).decode("latin-1"))
    if not document.fields and not document.steps:
        raise InputError("is no trajectory.", field=name)
    return document


def _read(place: Place, name: str, where: tuple[int, int]) -> Mapping[str, Any]:
    begin, end = where
    content = place.redactor.content(place.read(name, begin, end - begin))
    try:
        return mapping(json.loads(content.decode("utf-8", "replace")))
    except (ValueError, RecursionError):
        return {}


def _step(raw: Mapping[str, Any], number: int, folder: str, whole: bool) -> Step | None:
    if not raw:
        return None
    limit = 1 << 40 if whole else TEXT
    metrics = mapping(raw.get("metrics"))
    back = list(_mappings(mapping(raw.get("observation")).get("results")))
    calls = list(_mappings(raw.get("tool_calls")))
    ids = {word(call.get("tool_call_id")) for call in calls} - {""}
    made = tuple(_call(call, back, folder, limit) for call in calls)
    reasoning = raw.get("reasoning_content")
    return Step(
        number=number,
        source=word(raw.get("source")) or "?",
        at=_moment(raw.get("timestamp")),
        model=word(raw.get("model_name")),
        message=_contents(raw.get("message"), folder, limit),
        reasoning=_text(reasoning, limit) if isinstance(reasoning, str) and reasoning.strip() else None,
        calls=made,
        results=tuple(
            content
            for result in back
            if word(result.get("source_call_id")) not in ids
            for content in _contents(result.get("content"), folder, limit)
        ),
        agents=tuple(
            id
            for result in back
            for one in _mappings(result.get("subagent_trajectory_ref"))
            if (id := word(one.get("trajectory_id")))
        ),
        input_tokens=_count(metrics.get("prompt_tokens")),
        cache_tokens=_count(metrics.get("cached_tokens")),
        output_tokens=_count(metrics.get("completion_tokens")),
        cost_usd=_amount(metrics.get("cost_usd")),
    )


def _call(call: Mapping[str, Any], back: Iterable[Mapping[str, Any]], folder: str, limit: int) -> Call:
    id, arguments = word(call.get("tool_call_id")), call.get("arguments")
    if isinstance(arguments, dict) and len(arguments) == 1 and isinstance(next(iter(arguments.values())), str):
        shown = next(iter(arguments.values()))
    elif isinstance(arguments, str):
        shown = arguments
    else:
        shown = json.dumps(arguments, indent=2, ensure_ascii=False) if arguments else ""
    results = (result for result in back if id and word(result.get("source_call_id")) == id)
    return Call(
        tool=word(call.get("function_name")) or "?",
        arguments=_text(shown, limit),
        results=tuple(item for result in results for item in _contents(result.get("content"), folder, limit)),
    )


def _contents(value: Any, folder: str, limit: int) -> tuple[Content, ...]:
    if isinstance(value, str):
        return (_text(value, limit),) if value.strip() else ()
    if not isinstance(value, list):
        return () if value is None else (_text(json.dumps(value, indent=2, ensure_ascii=False), limit),)
    return tuple(content for part in value if (content := _content(part, folder, limit)) is not None)


def _content(part: Any, folder: str, limit: int) -> Content | None:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return _text(part["text"], limit)
    path = mapping(mapping(part).get("source")).get("path")
    if isinstance(path, str) and mapping(part).get("type") == "image":
        place = posixpath.normpath(posixpath.join(folder, path))
        if "://" not in path and not place.startswith(("/", "..")) and "\0" not in place:
            return Content(picture=place)
    return _text(json.dumps(part, indent=2, ensure_ascii=False), limit)


def _text(text: str, limit: int) -> Content:
    # A half of a surrogate pair cannot be sent.
    text = text.encode("utf-8", "replace").decode()
    return Content(text=text[:limit], left_out=max(0, len(text) - limit))


def _mappings(value: Any) -> Iterator[Mapping[str, Any]]:
    return (item for item in value if isinstance(item, dict)) if isinstance(value, list) else iter(())


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _amount(value: Any) -> float | None:
    number = isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < 2**53
    return float(value) if number else None


def _moment(value: Any) -> datetime | None:
    try:
        # Python 3.10 does not read the Z.
        moment = datetime.fromisoformat(value[:-1] + "+00:00" if value.endswith("Z") else value)
        return (moment if moment.tzinfo else moment.replace(tzinfo=timezone.utc)).astimezone(timezone.utc)
    except (AttributeError, TypeError, ValueError, OverflowError):
        return None
