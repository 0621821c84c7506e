"""How many container images this machine has: for people, so it costs nothing that runs."""

from __future__ import annotations

import shutil
import subprocess
import threading
import time

#: Seconds for which a count is good.
FRESH_SECONDS = 300.0
#: Seconds Docker gets to answer.
PATIENCE = 20.0


class Images:
    """The count of a while ago, looked up again in the background: a Docker that hangs must not hold up a heartbeat."""

    def __init__(self, program: str = "docker") -> None:
        self._program = program
        self._count: int | None = None
        self._looked_at: float | None = None
        self._looking = threading.Lock()

    def count(self) -> int | None:
        """The last count; None without Docker, and until it was counted first."""
        old = self._looked_at is None or time.monotonic() - self._looked_at > FRESH_SECONDS
        if old and self._looking.acquire(blocking=False):
            threading.Thread(target=self._look, name="images", daemon=True).start()
        return self._count

    def _look(self) -> None:
        try:
            self._count = count(self._program)
        finally:
            self._looked_at = time.monotonic()
            self._looking.release()


def count(program: str = "docker") -> int | None:
    """Ask Docker; None when there is none, or it does not answer in time."""
    if shutil.which(program) is None:
        return None
    asked = [program, "image", "ls", "--quiet", "--no-trunc"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, timeout=PATIENCE, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired, UnicodeDecodeError):
        return None
    # An image with several names is listed once for each.
    return len(set(answer.stdout.split())) if answer.returncode == 0 else None
