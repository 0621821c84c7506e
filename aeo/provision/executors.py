"""Run on a new worker's machine: lets executors get what their trials need, and says which version each has."""

from __future__ import annotations

import json
from collections.abc import Sequence

from aeo import executors
from aeo.core.errors import AeoError


def main(names: Sequence[str]) -> None:
    """Print a line of JSON for each: its version, or why it cannot run here."""
    for name in names:
        try:
            said = {"name": name, "version": executors.load(name).version()}
        except (AeoError, ImportError) as error:
            said = {"name": name, "error": str(error)}
        print(json.dumps(said), flush=True)  # noqa: T201
