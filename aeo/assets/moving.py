"""Assets on their way: published once on the controller, placed for each run on a worker."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from aeo import contents
from aeo.assets import reading
from aeo.core.errors import InputError
from aeo.core.model import Asset, Plan
from aeo.executors.variables import LARGEST
from aeo.layout import Shared
from aeo.site import WorkerSite
from aeo.transfer import copy, tree

#: The folder that an asset travels in.
FOLDER = "asset"


def publish(shared: Shared, plan: Plan, check: Callable[[Path], None]) -> None:
    """Copy the plan's assets to where workers fetch them; what is there already is kept.

    ``check`` raises InputError for a path that may not be sent: the key of a private one does not name its content, so
    that something else may have taken its place.

    Raises:
        InputError: one is not any more what it was when the plan was made, or cannot be copied.
    """
    for asset in plan.assets:
        digest, target = asset.digest, shared.task(asset.digest, FOLDER)
        if target.exists():
            continue
        staging = Path(tempfile.mkdtemp(prefix="new.", dir=shared.tasks))
        try:
            place = staging / FOLDER / asset.name
            real = Path(asset.path).resolve(strict=True)
            if asset.private:
                _copy_private(asset, real, place, check)
            else:
                _copy(reading.look_at(real, reading.Room()), place)
                if reading.digest_of(asset.name, reading.look_at(place, reading.Room())) != digest:
                    raise _changed(asset)
            target.parent.mkdir(parents=True, exist_ok=True)
            contents.take_place(staging / FOLDER, target)
        except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle, before Python 3.13
            raise InputError(f"{asset.path} cannot be read whole: {error}") from None
        finally:
            shutil.rmtree(staging, ignore_errors=True)


def _copy_private(asset: Asset, real: Path, place: Path, check: Callable[[Path], None]) -> None:
    """Copy a file of variables.

    Raises:
        InputError: another thing has taken its place, or its folder's.
        OSError: it cannot be copied.
    """
    check(real)
    if not real.is_file() or real.stat().st_size > LARGEST:
        raise _changed(asset)
    place.parent.mkdir(parents=True, mode=0o700)
    copy.file(real, place)
    place.chmod(0o600)
    if Path(asset.path).resolve(strict=True) != real or place.stat().st_size > LARGEST:
        raise _changed(asset)


def _changed(asset: Asset) -> InputError:
    return InputError(f"{asset.path} was changed just now.", fix="Submit it again.")


def _copy(look: reading.Look, target: Path) -> None:
    """Copy what was looked at, links as what they mean; nothing that has taken a file's place meanwhile is waited for.

    Raises:
        OSError: something cannot be copied.
    """
    target.parent.mkdir(parents=True, mode=0o700)
    if b"" not in look.files:
        target.mkdir()
    for name in sorted(look.folders):
        (target / os.fsdecode(name)).mkdir()
    for name, path in look.files.items():
        copy.file(path.resolve(), target / os.fsdecode(name))


@contextmanager
def placed(
    site: WorkerSite, plan: Plan, batch_dir: Path, run: str, *, gives_up: Callable[[], object]
) -> Iterator[dict[str, Path]]:
    """Where each asset lies on this worker for one run, by its path.

    What holds secrets is fetched into ``batch_dir`` and stays there for the batch's next run; what the run may write to
    is copied into a folder of its name there, and goes with the run.

    Raises:
        TransferFailed: one could not be fetched.
        OSError: one could not be copied.
    """
    run_dir = batch_dir / run
    try:
        yield _place(site, plan, batch_dir, run_dir, gives_up)
    finally:
        shutil.rmtree(run_dir, ignore_errors=True)


def _place(
    site: WorkerSite, plan: Plan, batch_dir: Path, run_dir: Path, gives_up: Callable[[], object]
) -> dict[str, Path]:
    places: dict[str, Path] = {}
    if plan.assets:
        batch_dir.mkdir(parents=True, exist_ok=True, mode=0o700)
    for number, asset in enumerate(plan.assets):
        if asset.private:
            here = _fetch_private(site, asset, batch_dir, gives_up)
        else:
            here = contents.hold(site, asset.digest, FOLDER, gives_up=gives_up) / asset.name
        if asset.writable:
            here = _copy_own(here, run_dir / str(number), private=asset.private)
        places[asset.path] = here
    return places


def _fetch_private(site: WorkerSite, asset: Asset, batch_dir: Path, gives_up: Callable[[], object]) -> Path:
    target = batch_dir / asset.digest / FOLDER
    if not target.exists():
        # Before anything is in it: what arrives may be read by all until it is changed.
        target.parent.mkdir(exist_ok=True, mode=0o700)
        contents.bring(site, f"tasks/{asset.digest}/{FOLDER}", target, gives_up=gives_up)
    (target / asset.name).chmod(0o600)
    return target / asset.name


def _copy_own(here: Path, folder: Path, *, private: bool) -> Path:
    """A copy that any user of a container may write to, but for one with secrets."""
    target = folder / here.name
    folder.parent.mkdir(exist_ok=True, mode=0o700)
    folder.mkdir(mode=0o700)
    if here.is_dir():
        content = tree.read(here, odd_names=True)
        copy.folder(here, target, content)
        for name in ("", *content.folders, *content.files):
            (target / name).chmod((target / name).stat().st_mode | 0o666)
    else:
        copy.file(here, target)
        target.chmod(0o600 if private else target.stat().st_mode | 0o666)
    return target


def published(shared: Shared, asset: Asset) -> Path:
    """Where an asset lies on the controller."""
    return shared.task(asset.digest, FOLDER) / asset.name
