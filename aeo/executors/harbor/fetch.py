"""The program a download starts as: it finds Harbor's Python, or gets it, and becomes Harbor's downloader.

Run as ``python -m aeo.executors.harbor.fetch``; see `aeo.executors.Datasets` for what it prints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from aeo.core.errors import AeoError
from aeo.executors.harbor import program
from aeo.executors.harbor.python import harbor_python


def main() -> None:
    """Become the downloader; its request is still on standard input then."""
    try:
        python = harbor_python(progress=lambda note: _say({"note": note}))
    except AeoError as error:
        _say({"failed": {"message": str(error), "fix": ""}})
        return
    argv = [str(python.path), "-m", "aeo_harbor.driver", "download"]
    os.execve(argv[0], argv, program.environment(**program.with_uv()))  # noqa: S606


def _say(message: Mapping[str, Any]) -> None:
    print(json.dumps(message), flush=True)  # noqa: T201 - its output is what it is for


if __name__ == "__main__":
    main()
