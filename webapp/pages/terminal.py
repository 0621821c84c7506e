"""What programs wrote for a terminal, as HTML: colours through CSS classes, all other control characters left out."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from markupsafe import Markup, escape

#: A sequence that a terminal would obey: CSI, the strings of OSC, DCS and the like, and the short ones; cut ones too.
_SEQUENCE = re.compile(
    r"\x1b\[([0-?]*)[ -/]*([@-~]?)"
    r"|\x1b[\]PX^_][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)"
    r"|\x1b[ -/]*[0-~]?"
)
#: Others that do something, and marks that turn the order of letters around.
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_BREAK = re.compile(r"\r+\n|\r")
_WEIGHTS = {1: "bold", 2: "dim", 3: "italic", 4: "underline"}


@dataclass(frozen=True)
class Style:
    """How text looks now."""

    ink: str = ""
    ground: str = ""
    weights: frozenset[str] = frozenset()

    @property
    def classes(self) -> str:
        """Its CSS classes."""
        return " ".join(f"t-{name}" for name in (self.ink, self.ground, *sorted(self.weights)) if name)


def runs(text: str) -> list[tuple[str, str]]:
    """The text in pieces with their CSS classes."""
    style, at = Style(), 0
    found: list[tuple[str, str]] = []

    def add(piece: str) -> None:
        plain = _CONTROL.sub("", _BREAK.sub("\n", piece))
        if plain and found and found[-1][0] == style.classes:
            found[-1] = (style.classes, found[-1][1] + plain)
        elif plain:
            found.append((style.classes, plain))

    for sequence in _SEQUENCE.finditer(text):
        add(text[at : sequence.start()])
        at = sequence.end()
        if sequence[2] == "m":
            style = _after(style, sequence[1])
    add(text[at:])
    return found


def html(text: str) -> Markup:
    """The text as HTML."""
    pieces = (
        Markup('<span class="{}">{}</span>').format(classes, piece) if classes else escape(piece)
        for classes, piece in runs(text)
    )
    return Markup("").join(pieces)


def _after(style: Style, parameters: str) -> Style:
    """The style after the parameters of one SGR sequence."""
    codes = [int(part) if part.isdigit() else 0 for part in re.split("[;:]", parameters)[:32]]
    while codes:
        code = codes.pop(0)
        if code == 0:
            style = Style()
        elif code in _WEIGHTS:
            style = replace(style, weights=style.weights | {_WEIGHTS[code]})
        elif code == 22:
            style = replace(style, weights=style.weights - {"bold", "dim"})
        elif code in (23, 24):
            style = replace(style, weights=style.weights - {_WEIGHTS[code - 20]})
        elif code in (38, 48):
            colour = _colour(codes)
            style = replace(style, ink=f"f{colour}") if code == 38 else replace(style, ground=f"b{colour}")
        elif 30 <= code <= 37 or 90 <= code <= 97:
            style = replace(style, ink=f"f{code - 30 if code < 40 else code - 82}")
        elif 40 <= code <= 47 or 100 <= code <= 107:
            style = replace(style, ground=f"b{code - 40 if code < 50 else code - 92}")
        elif code == 39:
            style = replace(style, ink="")
        elif code == 49:
            style = replace(style, ground="")
    return style


def _colour(codes: list[int]) -> int:
    """One of the sixteen, for one of 256 or of millions; takes what it needs off ``codes``."""
    kind = codes.pop(0) if codes else 0
    if kind == 5 and codes:
        number = codes.pop(0)
        if number < 16:
            return number
        if number < 232:
            red, green, blue = (number - 16) // 36, (number - 16) // 6 % 6, (number - 16) % 6
            return _nearest(red * 51, green * 51, blue * 51)
        return _nearest(*[(min(number, 255) - 232) * 10 + 8] * 3)
    if kind == 2 and len(codes) >= 3:
        return _nearest(codes.pop(0), codes.pop(0), codes.pop(0))
    return 7


def _nearest(red: int, green: int, blue: int) -> int:
    brightest = max(red, green, blue)
    if brightest - min(red, green, blue) < 40:
        return 0 if brightest < 50 else 8 if brightest < 130 else 7 if brightest < 210 else 15
    bits = sum(bit for bit, part in ((1, red), (2, green), (4, blue)) if part > brightest / 2)
    return bits + (8 if brightest > 200 else 0)
