"""Files and folders that a configuration names beside its tasks: looked at when it is submitted, sent as tasks are.

Each is a content folder of its own, ``tasks/<digest>/asset/<its name>``, with one digest for one content: published
once, fetched once by each worker, cleaned up by whoever cleans up tasks. The executor says which there are
(`aeo.executors.assets`) and runs its trials with the places they have on the worker; what is recorded names the
originals.

What holds secrets has a random key, as a digest would let secrets be guessed. It is fetched anew into each batch's own
folder and goes with it; its values are taken out of results.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from aeo.assets import reading
from aeo.assets.hidden import hidden, redactors
from aeo.assets.moving import FOLDER, placed, publish, published
from aeo.core.errors import InputError, Problem
from aeo.core.model import ContentFolder, Plan, Spec
from aeo.executors import Executor, SubmittedFile, source
from aeo.executors.assets import Reference, finder_of
from aeo.site import Site

__all__ = ["FOLDER", "changed", "hidden", "joined", "placed", "publish", "published", "redactors"]

_MIB = 1024 * 1024
_OF_THE_SYSTEM = ("/proc", "/sys", "/dev")


def joined(site: Site, executor: Executor, spec: Spec, file: SubmittedFile, plan: Plan) -> Plan:
    """The plan with the assets its configuration names, each looked at and read whole. Makes nothing.

    Raises:
        InputError: one is missing, cannot be read or sent, or all are too large; one problem each, with its place.
    """
    finder = finder_of(executor)
    found = finder.find(spec.config, file.folder) if finder else ()
    if not found:
        return plan
    room = reading.Room(files=reading.MOST_FILES, bytes=int(site.config.max_asset_mb * _MIB))
    assets, problems = [], []
    for reference in found:
        faults = list(_refused(site, reference))
        if not faults and not reference.packed:
            try:
                assets.append(reading.read(reference, room))
            except InputError as error:
                faults = list(error.problems)
        place = source.place(file.name, file.text, reference.place)
        problems += [replace(fault, field=place) for fault in faults]
    if problems:
        raise InputError(problems=tuple(problems))
    if not assets:
        return plan
    # Two of one content travel once.
    folders = {one.digest: ContentFolder(digest=one.digest, source=one.path, name=FOLDER) for one in assets}
    notes = tuple(
        f"{one.path}: what a trial writes there is its own and is not brought back." for one in assets if one.writable
    )
    return replace(
        plan,
        assets=tuple(assets),
        contents=(*plan.contents, *folders.values()),
        warnings=(*plan.warnings, *notes),
    )


def _refused(site: Site, reference: Reference) -> Iterator[Problem]:
    """Why a path is not looked at."""
    path = Path(reference.path)
    if not path.is_absolute():
        yield Problem(
            message=f"the path {path} is relative, and it is not known to what.", fix="Give an absolute path."
        )
        return
    real, root = Path(os.path.realpath(path)), site.shared.root
    if any(real.is_relative_to(place) for place in _OF_THE_SYSTEM):
        # What this very process was started with stands there, too.
        yield Problem(message=f"{path} is the controller's system itself, no file.", fix=reading.EACH)
        return
    # The folder of jobs may be anywhere, around the root too.
    shown = [place for place in (root / "datasets", site.shared.jobs_dir) if root in place.parents]
    inside = real.is_relative_to(root) and not any(real.is_relative_to(place) for place in shown)
    if inside or root.is_relative_to(real):
        yield Problem(
            message=f"{path} is, holds or lies in the controller's own folder.", fix="Name a folder of yours."
        )


def changed(before: Plan, now: Plan) -> tuple[str, ...]:
    """Paths whose content is another one than in an earlier plan; of what holds secrets nothing is said."""
    old = {asset.path: asset.digest for asset in before.assets if not asset.private}
    return tuple(one.path for one in now.assets if not one.private and old.get(one.path, one.digest) != one.digest)
