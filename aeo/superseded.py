"""Runs whose results do not count: told from the one that does, and kept beside it."""

from __future__ import annotations

import shutil
from pathlib import Path

from aeo.core.audit import RECOVERED
from aeo.site import Site
from aeo.store import trials
from aeo.store.inbox import Arrival
from aeo.transfer import copy, tree


def is_again(site: Site, arrival: Arrival, folder: Path, place: Path, *, known: bool) -> bool:
    """Whether what arrived is the very run that lies in ``place``, its trial's folder in the job.

    ``known``: the store has a result of this trial. One that was found in the job after a crash has no token there.
    """
    winner = trials.winner(site.db, arrival.evaluation, arrival.trial) if known else RECOVERED
    return winner in (arrival.token, RECOVERED) and tree.same(folder, place)


def put_aside(site: Site, arrival: Arrival, folder: Path) -> None:
    """Move a run's folder to those that do not count.

    Raises:
        OSError: it cannot be moved now.
    """
    kept = site.shared.superseded(arrival.evaluation, arrival.trial, arrival.token)
    kept.parent.mkdir(exist_ok=True)
    if kept.exists():
        shutil.rmtree(folder)
    else:
        copy.rename(folder, kept)
