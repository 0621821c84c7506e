"""Secrets in what a configuration names: the values of its env file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from aeo import records
from aeo.assets.moving import published
from aeo.core.errors import AeoError
from aeo.core.model import Plan
from aeo.executors import variables
from aeo.executors.secrets import is_secret
from aeo.redaction import Redactor
from aeo.secrets import hiding
from aeo.site import Site
from aeo.transfer import copy


def redactors(site: Site, evaluation: str) -> Iterator[Redactor]:
    """What takes secrets out of an evaluation's results on the controller: those of all, and its own."""
    for redactor in (hiding.redactor(site), Redactor(_own(site, evaluation))):
        if redactor:
            yield redactor


def _own(site: Site, evaluation: str) -> dict[str, str]:
    # Of what nobody planned there is nothing to know.
    with suppress(AeoError):
        plan = records.header(site.shared.evaluation(evaluation)).plan
        return hidden(plan, {one.path: published(site.shared, one) for one in plan.assets if one.private})
    return {}


def hidden(plan: Plan, places: Mapping[str, Path]) -> dict[str, str]:
    """The secrets in a plan's private assets, by name, as far as they can be read; ``places`` says where each lies."""
    found: dict[str, str] = {}
    for asset in plan.assets:
        if asset.private:
            with suppress(OSError), copy.open_regular(places[asset.path]) as reading:
                found.update(variables.parse(reading.read(variables.LARGEST).decode("utf-8", "replace")))
    return {name: value for name, value in found.items() if is_secret(name, value)}
