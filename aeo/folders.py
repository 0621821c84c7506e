"""Folders that a person names: made where they are missing, refused in words where they cannot be used.

And small files in them that are whole at every moment.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
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


def write(path: Path, text: str) -> None:
    """Put a text in place of a file (0600), on disk when this returns: after a crash it is the old one or the new.

    Raises:
        OSError: it cannot be written; the old one stays.
    """
    made, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(made, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        with suppress(OSError):
            Path(name).unlink()
        raise
