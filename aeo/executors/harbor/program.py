"""Starts the driver in Harbor's Python."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor.python import HarborPython, harbor_python, plugin_path

#: Seconds planning or merging may take.
_CALL_SECONDS = 1800.0
#: Variables of ours that are nothing to Harbor and what it runs.
_OURS = "AEO_"


def arguments(python: HarborPython, verb: str) -> list[str]:
    """Command line of the driver."""
    return [str(python.path), "-m", "aeo_harbor.driver", verb]


def environment(**more: str) -> dict[str, str]:
    """The driver's environment: this process's, less what is ours, as secrets of the platform are."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(_OURS)}
    for name in ("PYTHONHOME", "PYTHONSTARTUP", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"):
        inherited.pop(name, None)
    path = os.pathsep.join(part for part in (str(plugin_path()), os.environ.get("PYTHONPATH", "")) if part)
    return {
        **inherited,
        "PYTHONPATH": path,
        # Each start would else ask the network for a price list, and Harbor's makers for nothing we need.
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "HARBOR_TELEMETRY": "0",
        **more,
    }


def call(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask the driver one thing; returns its answer (``ok`` or ``faults``).

    Raises:
        Unavailable: there is no Harbor.
        ExecutorFailed: the driver died or failed.
    """
    try:
        answer = subprocess.run(
            arguments(harbor_python(), verb),
            input=json.dumps(request).encode(),
            capture_output=True,
            env=environment(**with_uv()),
            # What a metric's script finds around it must not depend on where this process was started.
            cwd="/" if verb == "merge" else None,
            timeout=_CALL_SECONDS,
            start_new_session=True,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ExecutorFailed(f"Harbor's driver ({verb}) did not end: {error}") from error
    try:
        said: dict[str, Any] = json.loads(answer.stdout)
    except ValueError:
        raise ExecutorFailed(f"Harbor's driver ({verb}) died: {last_lines(answer.stderr)}") from None
    if "error" in said:
        raise ExecutorFailed(f"Harbor could not {verb}: {said['error']}")
    return said


def with_uv() -> dict[str, str]:
    """Harbor runs a metric's script by the command ``uv``; ours comes with us, though not always on PATH."""
    try:
        import uv

        own = [str(Path(uv.find_uv_bin()).parent)]
    except (ImportError, FileNotFoundError):
        own = []
    return {"PATH": os.pathsep.join([os.environ.get("PATH") or os.defpath, *own])}


def last_lines(output: bytes, limit: int = 600) -> str:
    """The end of a program's complaints, on one line."""
    return " ".join(output.decode(errors="replace").split())[-limit:] or "it said nothing."
