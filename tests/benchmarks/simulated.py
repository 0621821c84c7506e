"""What `aeo simulate` says of the same work on the same pool."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.others import scratch
from benchmarks.workloads import Machine
from programs import AEO


def makespan(seconds: Sequence[float], pool: Sequence[Machine]) -> float | None:
    """Seconds; None where this version cannot simulate."""
    with scratch() as folder:
        trace = folder / "trace.csv"
        rows = [f"task-{number},{one}" for number, one in enumerate(seconds, 1)]
        trace.write_text("\n".join(["task,seconds", *rows]) + "\n")
        machines = [f"{machine.name}={machine.slots}:{machine.speed:g}" for machine in pool]
        workers = [word for machine in machines for word in ("--worker", machine)]
        return _ask([AEO, "simulate", "--csv", str(trace), *workers, "--json"], folder)


def _ask(command: Sequence[str], folder: Path) -> float | None:
    answer = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120, check=False)
    try:
        return float(json.loads(answer.stdout)["makespan"])
    except (ValueError, KeyError, TypeError):
        return None
