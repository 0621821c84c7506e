"""Where in a submitted text a field stands, so that an error can name its line."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import yaml

Path = Sequence["str | int"]


def dotted(path: Path) -> str:
    """Write a field path as people do: ``agents[0].kwargs.api_key``."""
    text = ""
    for part in path:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += f".{part}" if text else str(part)
    return text


def place(name: str, text: str, path: Path) -> str:
    """Name a field for a message: ``job.yaml:12: agents[0].kwargs.api_key``.

    Without a text only the path remains; a field that is not in the text gets the line of the nearest one around it.
    """
    field = dotted(path)
    number = line(text, path) if text else None
    if number is None:
        return field
    where = f"{name or 'line '}{':' if name else ''}{number}"
    return f"{where}: {field}" if field else where


def line(text: str, path: Path) -> int | None:
    """Line (from 1) of a field in a YAML or JSON text; None if the text cannot be read as such."""
    node = _compose(text)
    if node is None:
        return None
    number: int = node.start_mark.line + 1
    for part in path:
        found = _step(node, part)
        if found is None:
            break
        at, node = found
        number = at.start_mark.line + 1
    return number


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The node to point at and the one to go on from."""
    if isinstance(node, yaml.MappingNode):
        # The last of two equal keys is the one that counts.
        for key, value in reversed(node.value):
            if isinstance(key, yaml.ScalarNode) and key.value == str(part):
                return key, value
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and 0 <= part < len(node.value):
        return node.value[part], node.value[part]
    return None


@lru_cache(maxsize=8)
def _compose(text: str) -> yaml.Node | None:
    try:
        node: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        return None
    return node
