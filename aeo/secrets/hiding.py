"""What the controller takes out of all that is committed and served."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

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
        found = _redactor(_Known((site.shared, vault.stamp(site)), own, site))
    except AeoError as error:
        _tell(site.shared.root, str(error))
        return _without(own)
    _tell(site.shared.root, "")
    return found


@lru_cache(maxsize=4)
def _redactor(known: _Known) -> Redactor:
    return Redactor({**dict(known.own), **vault.values(known.site)})


@lru_cache(maxsize=4)
def _without(own: tuple[tuple[str, str], ...]) -> Redactor:
    return Redactor(dict(own))


#: Why the secrets of a shared root cannot be read; nothing stands here for one whose can.
_unread: dict[Path, str] = {}
_telling = threading.Lock()


def _tell(root: Path, problem: str) -> None:
    """Tell it when it begins, when it becomes another, and when it is over: this is asked for each result."""
    with _telling:
        if problem == _unread.get(root, ""):
            return
        if problem:
            _unread[root] = problem
        else:
            del _unread[root]
    if problem:
        log.error(
            "the secrets cannot be read: %s. Until they can, the controller takes their values out of nothing, only "
            "those of the variables in secret_names; a worker still takes out of a trial's results what that trial was "
            "given, and no trial is given any anew",
            problem.rstrip("."),
        )
    else:
        log.warning("the secrets can be read again; the controller takes them out of results")
