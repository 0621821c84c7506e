"""What a look at one part of a machine says: green, yellow or red, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    """How a part stands."""

    OK = "ok"
    #: It works, and will not for long, or not as well as it could.
    WARNING = "warning"
    #: Evaluations fail or stand still by it.
    FAULT = "fault"


@dataclass(frozen=True, kw_only=True)
class Condition:
    """One line of a report."""

    #: What was looked at, in a word or two.
    about: str
    level: Level
    #: What was found, without a secret.
    text: str
    #: What a person does about it; empty where all is right.
    fix: str = ""


def ok(about: str, text: str) -> Condition:
    """Nothing is to be done."""
    return Condition(about=about, level=Level.OK, text=text)


def warning(about: str, text: str, fix: str) -> Condition:
    """Something is to be done soon."""
    return Condition(about=about, level=Level.WARNING, text=text, fix=fix)


def fault(about: str, text: str, fix: str) -> Condition:
    """Something is to be done now."""
    return Condition(about=about, level=Level.FAULT, text=text, fix=fix)
