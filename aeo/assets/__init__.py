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
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from aeo.assets import moving, reading
from aeo.assets.hidden import hidden, redactors
from aeo.assets.moving import FOLDER, placed, published
from aeo.config import PREFIX
from aeo.core.errors import InputError, Problem
from aeo.core.model import ContentFolder, Plan, Spec
from aeo.executors import Executor, SubmittedFile, source
from aeo.executors.assets import Reference, finder_of
from aeo.secrets import keyring
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


def publish(site: Site, plan: Plan) -> None:
    """Copy the plan's assets to where workers fetch them; what is there already is kept.

    Raises:
        InputError: one is not any more what it was when the plan was made, or cannot be copied.
    """

    def check(path: Path) -> None:
        if problems := tuple(_refused(site, Reference(path=str(path), place=(), private=True))):
            raise InputError(problems=problems)

    moving.publish(site.shared, plan, check)


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
    elif any(real.is_relative_to(place) or place.is_relative_to(real) for place in _secrets_of(site)):
        yield Problem(
            message=f"{path} is, holds or lies beside what the controller keeps secret.", fix="Name a folder of yours."
        )


def _secrets_of(site: Site) -> Iterator[Path]:
    """Where the controller has secrets of its own outside of its folder: its keys, and files that settings name."""
    for config in (site.config, replace(site.config, secrets_key_file=None)):
        with suppress(InputError):  # there is none, or it lies within the folder
            key = Path(os.path.realpath(keyring.path(config, site.shared)))
            # The usual folder is this program's own; one that was chosen may be anybody's.
            yield from [key.parent] if config.secrets_key_file is None else [key, *key.parent.glob(f"*{key.name}*")]
    # The container's, whatever names them there.
    yield Path("/run/aeo")
    given = [value for name, value in os.environ.items() if name.startswith(PREFIX)]
    # Flags of this process as it was started, which may have no more of them now.
    given += [argument.rpartition("=")[2] for argument in (*sys.argv, *sys.orig_argv)]
    for value in given:
        if value.startswith("@") and len(value) > 1:
            yield Path(os.path.realpath(os.path.expanduser(value[1:])))  # noqa: PTH111 - it may name no user


def changed(before: Plan, now: Plan) -> tuple[str, ...]:
    """Paths whose content is another one than in an earlier plan; of what holds secrets nothing is said."""
    old = {asset.path: asset.digest for asset in before.assets if not asset.private}
    return tuple(one.path for one in now.assets if not one.private and old.get(one.path, one.digest) != one.digest)
