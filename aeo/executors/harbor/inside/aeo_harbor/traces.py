"""What a session leaves for whoever cleans up after it was killed (see ``aeo.executors.harbor.leftovers``).

The folder comes in by ``AEO_HARBOR_SCRATCH``; without it (Harbor used on its own) a private one under the system's
temporary folder serves, and nobody sweeps it.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from datetime import UTC, datetime
from pathlib import Path


def folder(name: str) -> Path:
    """A folder of this session by name, made when it is missing."""
    base = os.environ.get("AEO_HARBOR_SCRATCH")
    path = Path(base or Path(tempfile.gettempdir(), f"aeo-harbor-{os.getuid()}"), name)
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    return path


def process(pid: int) -> Path:
    """Note a process that must not outlive the session: pid and start time, as pids are used again."""
    path = folder("processes") / str(pid)
    path.write_text(f"{pid} {started(pid)}")
    return path


def started(pid: int) -> str:
    """Start time of a process in clock ticks since boot; "" when it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def remove(path: Path) -> None:
    """Remove a folder tree, also where a trial took away our right to list or write folders."""

    def retry(function, name, _error) -> None:
        try:
            Path(name).parent.chmod(stat.S_IRWXU)
            if not Path(name).is_symlink():
                Path(name).chmod(stat.S_IRWXU)
            function(name)
        except OSError:
            pass

    shutil.rmtree(path, onexc=retry)
    if path.exists():
        shutil.rmtree(path, ignore_errors=True)


def now() -> datetime:
    """This moment, as Harbor's trials note it."""
    return datetime.now(UTC)
