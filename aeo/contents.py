"""Folders that travel by content: published once on the controller, fetched once by each worker."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from aeo.core.errors import InputError
from aeo.core.model import ContentFolder, Plan, PlannedTrial
from aeo.layout import Shared
from aeo.site import WorkerSite
from aeo.transfer import move


def publish(shared: Shared, content: ContentFolder) -> Path:
    """Copy a folder to where workers fetch it; what is there already is kept. Links inside are copied as files.

    Raises:
        InputError: the folder cannot be read whole.
    """
    target = shared.task(content.digest, content.name)
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix="new.", dir=shared.tasks))
    try:
        shutil.copytree(content.source, staging / content.name)
        _take_place(staging / content.name, target)
    except (OSError, shutil.Error) as error:
        raise InputError(f"cannot be read whole: {error}", field=content.source) from None
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def _take_place(staged: Path, target: Path) -> None:
    try:
        staged.rename(target)
    except OSError:
        # Another process published the same content first.
        if not target.exists():
            raise


def fetch(site: WorkerSite, plan: Plan, trial: PlannedTrial) -> Path | None:
    """The trial's content folder on this worker, fetched if it is not there; None if the trial needs none.

    Raises:
        TransferFailed: it could not be fetched.
    """
    if not trial.content:
        return None
    name = next(content.name for content in plan.contents if content.digest == trial.content)
    target = site.local.task(trial.content, name)
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        source = f"tasks/{trial.content}/{name}"
        move.fetch(site.remote, source, target, password=site.config.transfer_password)
    return target
