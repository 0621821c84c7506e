"""Numbers and names in sentences."""

from __future__ import annotations

from collections.abc import Sequence


def count(number: float, noun: str) -> str:
    """``1 trial``, ``2 trials``."""
    return f"{plain(number)} {noun}{'' if number == 1 else 's'}"


def be(number: float) -> str:
    """The verb for so many."""
    return "is" if number == 1 else "are"


def plain(number: float) -> str:
    """Without an exponent where it needs none."""
    whole = isinstance(number, int) or number.is_integer()
    return str(int(number)) if whole else f"{number:g}"


def listed(names: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
