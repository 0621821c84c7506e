"""A runtime root: whether this user can use it, and whether others can read its secrets."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from aeo.core.condition import Condition, fault, ok


@dataclass(frozen=True, kw_only=True)
class Root:
    """A folder as this user sees it."""

    path: Path
    exists: bool
    #: This user may look at it from outside.
    known: bool = False
    folder: bool = False
    usable: bool = False
    #: Its owner, by number.
    owner: int = 0
    #: Files of secrets that others may read.
    exposed: tuple[Path, ...] = ()


def measure(path: Path, secrets: Sequence[Path] = ()) -> Root:
    """Look at ``path``; ``secrets`` are files in it that must be this user's alone."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return Root(path=path, exists=False)
    except OSError:
        return Root(path=path, exists=True)
    usable = os.access(path, os.R_OK | os.W_OK | os.X_OK)
    return Root(
        path=path,
        exists=True,
        known=True,
        folder=stat.S_ISDIR(found.st_mode),
        usable=usable,
        owner=found.st_uid,
        exposed=tuple(item for item in secrets if usable and _is_exposed(item)),
    )


def _is_exposed(path: Path) -> bool:
    try:
        return bool(path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO))
    except OSError:
        return False


def judge(root: Root, *, about: str, flag: str) -> Iterator[Condition]:
    """Judge a root; ``about`` is its name, ``flag`` names it."""
    if not root.exists:
        yield ok(about, f"{root.path} is made at the first start")
    elif root.known and not root.folder:
        yield fault(about, f"{root.path} is no folder", f"Name another one with {flag}.")
    elif not root.usable:
        owner = f"user {root.owner}" if root.known else "another user"
        yield fault(
            about,
            f"{root.path} cannot be read and written by this user ({os.geteuid()})",
            f"Run AEO as its owner ({owner}), or `chown -R {os.geteuid()} {root.path}`.",
        )
    else:
        yield ok(about, f"{root.path}")
    for path in root.exposed:
        yield fault("secrets", f"{path} can be read by other users of this machine", f"chmod 600 {path}")
