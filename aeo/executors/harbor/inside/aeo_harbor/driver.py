"""What AEO has done in Harbor's Python, by verb.

::

    plan|merge|tasks|images   one request on stdin, one answer, both one JSON document
    run                       requests and events as JSON lines, until stdin ends
    download                  one request on stdin, JSON lines as it goes on; outlives its parent

Drivers are forked from `aeo_harbor.fork_server`; the one that downloads is a program of its own,
``python -m aeo_harbor.driver download``.

Answers and events go to what was standard output at the start; from then on standard output is standard error, so that
nothing a library prints can get between them.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any


def _take_channels() -> tuple[int, int]:
    """Take stdin and stdout for ourselves; leave /dev/null and stderr in their places."""
    requests, events = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, events


def _say(events: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message).encode() + b"\n"
    while data:
        data = data[os.write(events, data) :]


def _answer(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    from aeo_harbor.faults import Faults

    try:
        if verb == "plan":
            from aeo_harbor.planning import plan

            return {"ok": plan(request)}
        if verb == "tasks":
            from aeo_harbor.datasets import tasks

            return {"ok": tasks(request)}
        if verb == "images":
            from aeo_harbor.images import images

            return {"ok": images(request)}
        from aeo_harbor.merging import merge

        return {"ok": merge(request)}
    except Faults as faults:
        return {"faults": faults.found}
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def obey(verb: str) -> None:
    """Do what is asked for, to its end."""
    warnings.simplefilter("ignore", DeprecationWarning)
    requests, events = _take_channels()
    if verb == "run":
        from aeo_harbor.running import serve

        asyncio.run(serve(requests, lambda message: _say(events, message)))
        return
    with os.fdopen(requests, "rb") as file:
        request = json.load(file)
    if verb == "download":
        from aeo_harbor.datasets import download

        download(request, lambda message: _say(events, message))
        return
    _say(events, _answer(verb, request))


if __name__ == "__main__":
    obey(sys.argv[1])
