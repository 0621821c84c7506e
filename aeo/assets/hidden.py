"""Secrets in what a configuration names: the values of its env file."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from aeo.core.model import Plan
from aeo.executors import variables
from aeo.executors.secrets import is_secret
from aeo.transfer import copy


def hidden(plan: Plan, places: Mapping[str, Path]) -> dict[str, str]:
    """The secrets in a plan's private assets, by name, as far as they can be read; ``places`` says where each lies."""
    found: dict[str, str] = {}
    for asset in plan.assets:
        if asset.private:
            with suppress(OSError), copy.open_regular(places[asset.path]) as reading:
                found.update(variables.parse(reading.read(variables.LARGEST).decode("utf-8", "replace")))
    return {name: value for name, value in found.items() if is_secret(name, value)}
