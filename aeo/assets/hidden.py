"""Secrets in what a configuration names: the values of its env file."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

from aeo.assets.reading import MOST_SECRET
from aeo.core.model import Asset, Plan
from aeo.executors.secrets import is_secret
from aeo.transfer import copy

#: ``NAME=value`` as env files have it: quoted, perhaps over several lines, or to the end of the line.
_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(?:'([^']*)'|"((?:\\.|[^"\\])*)"|([^\n]*))""",
    re.MULTILINE,
)


def hidden(plan: Plan, locate: Callable[[Asset], Path]) -> dict[str, str]:
    """The secrets in a plan's private assets, by name, as far as they can be read; ``locate`` says where one lies."""
    found: dict[str, str] = {}
    for asset in plan.assets:
        if asset.private:
            with suppress(OSError), copy.open_regular(locate(asset)) as reading:
                found.update(_values(reading.read(MOST_SECRET).decode("utf-8", "replace")))
    return found


def _values(text: str) -> Iterator[tuple[str, str]]:
    for name, single, double, plain in _LINE.findall(text):
        value = single or _unescaped(double) or re.split(r"\s#", plain, maxsplit=1)[0].strip()
        if is_secret(name, value):
            yield name, value


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: {"n": "\n", "r": "\r", "t": "\t"}.get(found[1], found[1]), text)
