"""Files of variables, ``NAME=value``, as programs that read them before they start take them."""

from __future__ import annotations

import re
from pathlib import Path

#: Bytes of such a file.
LARGEST = 1024 * 1024
#: Quoted, perhaps over several lines, or to the end of the line.
_LINE = re.compile(
    r"""^[ \t]*(?:export[ \t]+)?([A-Za-z_][\w.-]*)[ \t]*=[ \t]*(?:'([^']*)'|"((?:\\.|[^"\\])*)"|([^\n]*))""",
    re.MULTILINE,
)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t"}


def parse(text: str) -> dict[str, str]:
    """The variables that a text sets; the last line of a name counts. References to others stay as they are."""
    return {
        name: single or _unescaped(double) or re.split(r"\s#", plain, maxsplit=1)[0].strip()
        for name, single, double, plain in _LINE.findall(text)
    }


def names(path: Path) -> tuple[str, ...]:
    """The names that a file sets to something, sorted; none if it cannot be read."""
    try:
        with path.open("rb") as reading:
            found = parse(reading.read(LARGEST).decode("utf-8", "replace"))
    except OSError:
        return ()
    return tuple(sorted(name for name, value in found.items() if value))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: _ESCAPED.get(found[1], found[1]), text)
