"""What of a finished run stays on its worker: files too large, or too many, to travel."""

from __future__ import annotations

import os
from pathlib import Path

from aeo.transfer import manifest, tree

#: A run's files together may be so many times as large as one file.
RUN_FACTOR = 8
_MIB = 1024 * 1024


def set_aside(run_dir: Path, kept_dir: Path, content: tree.Tree | None = None, *, file_bytes: int) -> tuple[str, ...]:
    """Move what does not travel of ``run_dir`` to the same place below ``kept_dir``; returns notes that say so.

    Files above ``file_bytes`` stay, then the largest until the rest is small enough, then the deepest until a manifest
    can list them all. A size is what a reader would get: a sparse file counts with its holes.

    Raises:
        OSError: the folder cannot be listed, or a file cannot be moved.
    """
    files, here = (content or tree.read(run_dir)).files, str(run_dir)
    sizes = {name: os.lstat(f"{here}/{name}").st_size for name in files}
    limit = file_bytes * RUN_FACTOR
    reasons = {name: f"larger than {_size(file_bytes)}" for name in files if sizes[name] > file_bytes}
    total = sum(size for name, size in sizes.items() if name not in reasons)
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        if total <= limit:
            break
        if name not in reasons:
            reasons[name] = f"the run is larger than {_size(limit)}"
            total -= sizes[name]
    weight = 0
    if sum(manifest.weight(name) for name in files) <= manifest.LARGEST // 2 and not reasons:
        return ()
    for name in sorted((name for name in files if name not in reasons), key=lambda name: (name.count("/"), name)):
        weight += manifest.weight(name)
        if weight > manifest.LARGEST // 2:
            reasons[name] = "the run has too many files"
    for name in reasons:
        _move(run_dir / name, kept_dir / name)
    return tuple(
        tree.note(f"kept in {kept_dir} on the worker, {why}", [f"{name} ({_size(sizes[name])})" for name in names])
        for why, names in _by_reason(reasons).items()
    )


def _by_reason(reasons: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, why in reasons.items():
        found.setdefault(why, []).append(name)
    return found


def _move(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    source.rename(target)


def _size(size: int) -> str:
    return f"{size / _MIB:,.0f} MiB" if size >= _MIB else f"{size:,} bytes"
