"""Numbers on the command line: what is no number, not finite or out of range is refused with what is allowed."""

from __future__ import annotations

import re
from typing import Any

import click

from aeo.core.words import plain

_NEGATIVE = re.compile(r"-(\d|\.\d|inf|nan)", re.IGNORECASE)


def read(text: str, least: float, most: float, *, above: bool = False) -> float | None:
    """The number that a text is; None if it is none, or none from ``least`` (or above it) to ``most``."""
    try:
        number = float(text)
    except ValueError:
        return None
    # A comparison with nan is false, and that of nothing else.
    inside = least < number <= most if above else least <= number <= most
    return number if inside else None


def whole(text: str, least: int, most: int) -> int | None:
    """The whole number that a text is; None if it is none from ``least`` to ``most``."""
    # More digits than any range has: Python refuses to read thousands of them.
    if not re.fullmatch(r"[+-]?[0-9]{1,20}", text):
        return None
    return int(text) if least <= int(text) <= most else None


def allowed(least: float, most: float, *, above: bool = False) -> str:
    """``a number from 0 to 100``."""
    return f"a number {'above' if above else 'from'} {plain(least)} {'and at most' if above else 'to'} {plain(most)}"


class Number(click.FloatRange):
    """A finite number within a range. (`click.FloatRange` lets nan pass, and inf where one end is open.)"""

    def __init__(self, least: float, most: float, *, above: bool = False) -> None:
        super().__init__(least, most, min_open=above)
        self._range = (least, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it."""
        number = read(str(value), *self._range, above=self.min_open)
        if number is None:
            self.fail(f"{str(value)!r} is not {allowed(*self._range, above=self.min_open)}.", param, ctx)
        return number


class NegativeCommand(click.Command):
    """A command with a number among its arguments: ``-1`` is one, out of range as it may be, and no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the command line."""
        ctx.ignore_unknown_options = ctx.ignore_unknown_options or any(map(_NEGATIVE.match, args))
        return super().parse_args(ctx, args)
