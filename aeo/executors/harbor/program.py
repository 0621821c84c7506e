"""What Harbor's programs are started with, and what they say at their end."""

from __future__ import annotations

import os
from pathlib import Path

from aeo.executors.harbor.python import plugin_path

#: Variables of ours that are nothing to Harbor and what it runs.
_OURS = "AEO_"


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
