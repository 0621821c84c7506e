"""Runs the peers: each a program of its own that gets its work as JSON and answers with moments."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from benchmarks import environments, workloads
from benchmarks.figures import Moments, moments
from benchmarks.workloads import Machine

#: Seconds a program of a peer may take.
LIMIT = 600
_PROGRAMS = Path(__file__).parent / "peers"


@contextmanager
def scratch(prefix: str = "aeob-") -> Iterator[Path]:
    """A new folder below the temporary one, gone afterwards."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def evaluated(name: str, runs: Mapping[str, Sequence[float]], slots: int) -> dict[str, Moments]:
    """Let a peer work through named lists of durations, one after the other in one process.

    Raises:
        RuntimeError: it failed; the message is the end of what it said.
    """
    peer = environments.PEERS[name]
    with scratch() as folder:
        asked = {"folder": str(folder), "slots": slots, "runs": [{"name": n, "seconds": s} for n, s in runs.items()]}
        more = {**dict(peer.environment), "RAY_TMPDIR": str(folder / "r")}
        (folder / "r").mkdir()
        return _answer([str(environments.python_of(name)), str(_PROGRAMS / peer.program)], asked, more)


def pooled(runs: Mapping[str, tuple[Sequence[float], Sequence[Machine], str]]) -> dict[str, Moments]:
    """Work through lists on pools, side by side: behind one ``queue``, or ``split`` (``split by speed``) before.

    Raises:
        RuntimeError: it failed.
    """
    with scratch() as folder:
        asked = {"folder": str(folder), "runs": [_pooled(name, *run) for name, run in runs.items()]}
        return _answer([sys.executable, str(_PROGRAMS / "local_pool.py")], asked, {})


def _pooled(name: str, seconds: Sequence[float], pool: Sequence[Machine], how: str) -> dict[str, Any]:
    shares = None if how == "queue" else workloads.split(len(seconds), pool, by_speed=how == "split by speed")
    machines = [[machine.slots, machine.speed] for machine in pool]
    return {"name": name, "seconds": list(seconds), "machines": machines, "shares": shares}


def _answer(command: Sequence[str], asked: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Moments]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("AEO_", "VIRTUAL_ENV"))}
    process = subprocess.Popen(
        command,
        # Started below `uv run`, Ray would start each of its workers by `uv run`, too, in an environment made anew.
        env={**clean, **environment, "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # What it starts ends with it, even when it is killed.
        start_new_session=True,
    )
    try:
        said, errors = process.communicate(json.dumps(asked), timeout=LIMIT)
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"{Path(command[-1]).name} was not done within {LIMIT} s") from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        raise RuntimeError(f"{Path(command[-1]).name} failed: {errors.strip()[-2000:]}")
    runs = json.loads(said.strip().splitlines()[-1])["runs"]
    return {run["name"]: moments(run) for run in runs}
