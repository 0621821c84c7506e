"""Images that Harbor's trials built or fetched: found by name, removed when nobody got them for long."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from aeo.executors.harbor import leftovers
from aeo.executors.harbor.engine import ask

#: Harbor names what it builds from a task so.
BUILT = "hb__"
_NAMED = re.compile(r"""^\s*docker_image\s*=\s*["']([^"'\s]+)["']""", re.MULTILINE)


def reclaim(local_root: Path, idle_seconds: float) -> tuple[str, ...]:
    """Remove images that are this machine's only for trials, that no container has, and that are old; their names.

    Docker itself refuses to remove what a container has, as it is not forced to. None is removed while a trial of this
    worker has no container yet, as its image may be one of them.
    """
    used = named(local_root / "tasks")
    before, removed = time.time() - idle_seconds, []
    for name, image in _images():
        ours = name.startswith(BUILT) or name in used
        if ours and max(_got(image), used.get(name, 0)) < before and not starting(local_root):
            removed += [name] if ask("image", "rm", name).code == 0 else []
    if removed:
        # What building them left, as far as no build used it for as long.
        ask("builder", "prune", "--force", "--filter", f"until={int(idle_seconds)}s")
    return tuple(removed)


def named(tasks: Path) -> dict[str, float]:
    """Images that task copies ask for, and when one that does was used last."""
    found: dict[str, float] = {}
    for path in tasks.glob("*/*/task.toml"):
        with suppress(OSError, ValueError):
            used = path.parent.parent.stat().st_mtime
            for name in map(_whole, _NAMED.findall(path.read_text("utf-8"))):
                found[name] = max(found.get(name, 0), used)
    return found


def starting(local_root: Path) -> bool:
    """Whether a trial of this worker has no container: it may just be built, or it will never have one."""
    live = leftovers.live_trials(local_root / "batches")
    projects = [project for _, project, _ in leftovers.labelled("ps", "ID", "--all")] if live else []
    return any(not any(leftovers.is_project_of(project, trial) for project in projects) for trial in live)


def _whole(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _images() -> Iterator[tuple[str, str]]:
    """Name with tag, and id, of every image that has a name."""
    for line in ask("image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}}\t{{.ID}}").out.splitlines():
        name, _, image = line.partition("\t")
        if image and "<none>" not in name:
            yield name, image


def _got(image: str) -> float:
    """When an image was built or named last, whichever the engine knows; now when it does not say."""
    answer = ask("image", "inspect", "--format", "[{{json .Metadata.LastTagTime}}, {{json .Created}}]", image)
    try:
        # Nanoseconds are more than Python reads; what is not known is the year 1.
        moments = [datetime.fromisoformat(text[:19] + "+00:00").timestamp() for text in json.loads(answer.out)]
        return max(moments)
    except (ValueError, TypeError, OverflowError):
        return time.time()
