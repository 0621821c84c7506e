"""In which place the files of a trial are."""

from __future__ import annotations

from pathlib import Path

from aeo import records
from aeo.artifacts.folder import Folder
from aeo.artifacts.mirror import Mirror
from aeo.artifacts.place import Place
from aeo.core.errors import NotFound
from aeo.layout import inside
from aeo.secrets import hiding
from aeo.site import Site
from aeo.store import trials


def find(site: Site, id: str, trial: str, *, run: str = "") -> Place | None:
    """The place of a trial's committed run, else of the one that goes on; None when there is nothing to show yet.

    ``run`` is the token of one that was put aside, if it is meant.

    Raises:
        NotFound: there is no such evaluation or run.
        InputError: a name is no plain one.
    """
    asked = records.header(site.shared.evaluation(id))
    redactor = hiding.redactor(site)
    if run:
        aside = site.shared.superseded(id, trial, run)
        if aside.is_dir() and not aside.is_symlink():
            return Folder(aside, redactor, key=run)
        raise NotFound(f"There are no files of run {run} of {trial}.", field="run")
    committed = inside(Path(asked.job_dir), trial)
    if committed.is_dir() and not committed.is_symlink():
        return Folder(committed, redactor, key="committed")
    claim = trials.claims(site.db, id).get(trial)
    place = site.shared.live(id, trial, claim.token) if claim else None
    if claim is None or place is None or not place.is_dir():
        return None
    mirror = Mirror(place, redactor, key=claim.token)
    mirror.prune()
    return mirror
