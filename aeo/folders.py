"""Folders that a person names: made where they are missing, refused in words where they cannot be used."""

from __future__ import annotations

import os
from pathlib import Path

from aeo.core.errors import InputError


def make(path: Path, *, field: str, mode: int = 0o777) -> Path:
    """Make a folder and those above it, if they are not there; returns it without links and relative parts.

    Raises:
        InputError: it cannot be made, or not be written to; names the flag ``field``.
    """
    try:
        folder = path.resolve()
        folder.mkdir(parents=True, exist_ok=True, mode=mode)
    except (OSError, RuntimeError) as error:  # a circle of links is a RuntimeError
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"cannot create {path}: {why}.", field=field, fix="Give another folder.") from None
    if not os.access(folder, os.R_OK | os.W_OK | os.X_OK):
        raise InputError(f"{path} cannot be written to by this user.", field=field, fix="Give another folder.")
    return folder
