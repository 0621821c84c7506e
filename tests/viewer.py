"""Harbor's own viewer over a folder of jobs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harbor_tasks import needed_harbor
from programs import free_port
from waiting import eventually


@contextmanager
def viewer(jobs: Path, log: Path) -> Iterator[str]:
    """Run ``harbor view``; gives its address."""
    port = free_port()
    command = [str(needed_harbor().path), "-m", "harbor.cli.main", "view", str(jobs)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--no-build"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: server.poll() is not None or _answers(f"{address}/api/health"), 60, pause=0.1)
        assert server.poll() is None, log.read_text()
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        get(url)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def get(url: str) -> Any:
    """An endpoint's JSON."""
    with urllib.request.urlopen(url, timeout=20) as response:
        return json.loads(response.read())
