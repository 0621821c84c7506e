"""Numbers in sentences."""

from __future__ import annotations


def count(number: float, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{plain(number)} {noun}{'' if number == 1 else 's'}"


def be(number: float) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def plain(number: float) -> str:
    """Without an exponent where it needs none."""
    return str(int(number)) if number == int(number) else f"{number:g}"
