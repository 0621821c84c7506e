"""What the controller takes out of all that is committed and served."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import lru_cache

from aeo import redaction
from aeo.core.errors import AeoError
from aeo.redaction import Redactor
from aeo.secrets import vault
from aeo.site import Site

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Known:
    """What a redactor is made of; the same as long as nobody changes a secret."""

    stamp: object
    own: tuple[tuple[str, str], ...]
    site: Site = field(compare=False)


def redactor(site: Site) -> Redactor:
    """Knows the secrets that are set, and the variables of the configuration's ``secret_names``.

    Where the secrets' key is lost it knows only the latter: nothing is delivered then either. The log tells.
    """
    own = tuple(sorted(redaction.secrets(site.config.secret_names).items()))
    try:
        return _redactor(_Known((site.shared, vault.stamp(site)), own, site))
    except AeoError as error:
        return _without(str(error), own)


@lru_cache(maxsize=4)
def _redactor(known: _Known) -> Redactor:
    return Redactor({**dict(known.own), **vault.values(known.site)})


@lru_cache(maxsize=4)
def _without(problem: str, own: tuple[tuple[str, str], ...]) -> Redactor:
    log.error("the secrets are not taken out of results: %s", problem)
    return Redactor(dict(own))
