"""Images that Harbor's trials built or fetched: found by name, removed when nobody got them for long."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from aeo.executors.harbor.engine import ask

#: Harbor names what it builds from a task so.
BUILT = "hb__"
_NAMED = re.compile(r"""^\s*docker_image\s*=\s*["']([^"'\s]+)["']""", re.MULTILINE)


def reclaim(tasks: Path, idle_seconds: float) -> tuple[str, ...]:
    """Remove images that are this machine's only for trials, that no container has, and that are old; their names.

    Docker itself refuses to remove what a container has, as it is not forced to.
    """
    fetched = {_whole(name) for name in named(tasks)}
    before, removed = time.time() - idle_seconds, []
    for name, image in _images():
        if (name.startswith(BUILT) or name in fetched) and _got(image, before) and ask("image", "rm", name).code == 0:
            removed.append(name)
    if removed:
        # What building them left; Docker keeps what is younger.
        ask("builder", "prune", "--force", "--filter", f"until={int(idle_seconds)}s")
    return tuple(removed)


def named(tasks: Path) -> Iterator[str]:
    """Images that task copies ask for, as they write them."""
    for path in tasks.glob("*/*/task.toml"):
        with suppress(OSError, ValueError):
            yield from _NAMED.findall(path.read_text("utf-8"))


def _whole(name: str) -> str:
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def _images() -> Iterator[tuple[str, str]]:
    """Name with tag, and id, of every image that has a name."""
    for line in ask("image", "ls", "--no-trunc", "--format", "{{.Repository}}:{{.Tag}}\t{{.ID}}").out.splitlines():
        name, _, image = line.partition("\t")
        if image and "<none>" not in name:
            yield name, image


def _got(image: str, before: float) -> bool:
    """Whether an image was built, fetched or named last before then; not when nobody can say."""
    answer = ask("image", "inspect", "--format", "{{json .Metadata.LastTagTime}}", image)
    try:
        text = str(json.loads(answer.out))
        # Nanoseconds are more than Python reads.
        moment = datetime.fromisoformat(text[:19] + "+00:00")
    except ValueError:
        return False
    return 0 < moment.timestamp() < before
