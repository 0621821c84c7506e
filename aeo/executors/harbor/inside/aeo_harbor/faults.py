"""Faults in what the user gave, as the driver reports them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


class Faults(Exception):
    """One or more faults, each with the place in the configuration."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []

    def add(self, path: Sequence[str | int], message: str, fix: str = "") -> None:
        self.found.append({"path": list(path), "message": message, "fix": fix})

    def stop(self) -> None:
        """Raise if any fault was added."""
        if self.found:
            raise self


def known_part(config: Mapping[str, Any], path: Sequence[str | int], *, missing: bool) -> list[str | int]:
    """Cut what pydantic adds to a location (union members) so that it names a place in the configuration."""
    place: list[str | int] = []
    value: Any = config
    for part in path:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return [*place, part] if missing and part == path[-1] else place
        place.append(part)
    return place
