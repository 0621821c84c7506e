"""Harbor's drivers: processes in Harbor's Python, forked from one that has Harbor loaded (see `fork_server`).

That one is started when the first driver is. It ends some time after the last one, or with this process.
"""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from aeo.core.errors import ExecutorFailed
from aeo.executors.harbor import program
from aeo.executors.harbor.fork_server import Driver, ForkServer, key
from aeo.executors.harbor.python import HarborPython, harbor_python

#: Seconds planning or merging may take.
_CALL_SECONDS = 1800.0
#: Seconds a killed driver gets to be gone.
_KILL_SECONDS = 5.0

_lock = threading.Lock()
_server: ForkServer | None = None


def _serving(python: HarborPython) -> ForkServer:
    global _server
    with _lock:
        if _server is None or _server.gone or _server.key != key(python):
            _server = ForkServer(python)
        return _server


def start(
    verb: str,
    *,
    stdin: int,
    stdout: int,
    stderr: int,
    cwd: str | Path | None = None,
    env: Mapping[str, str],
) -> Driver:
    """Start a driver with these file descriptors and these variables besides `program.environment`.

    It is the leader of its own group and dies with this process.

    Raises:
        Unavailable: there is no Harbor.
        OSError: no process can be started.
    """
    request = json.dumps({"verb": verb, "cwd": str(cwd or Path.cwd()), "env": dict(env)}).encode()
    return _serving(harbor_python()).fork(request, (stdin, stdout, stderr))


def begun(driver: Driver, again: Callable[[], Driver]) -> Driver:
    """Wait until a driver has begun, or asked ``again`` for another one where that may; whether one has, its pid says.

    Where ``again`` gives it pipes these are new ones: who does not answer may hold the first ones open.
    """
    if not driver.begun() and driver.is_to_be_asked_again():
        driver.end(0)
        driver = again()
        driver.begun()
    return driver


def call(verb: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Ask a driver one thing; returns its answer (``ok`` or ``faults``).

    Raises:
        Unavailable: there is no Harbor.
        ExecutorFailed: the driver died or failed.
    """
    with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answer, tempfile.TemporaryFile() as errors:
        asked.write(json.dumps(request).encode())
        asked.seek(0)
        try:
            # What a metric's script finds around it must not depend on where this process was started.
            cwd = "/" if verb == "merge" else None
            files = {"stdin": asked.fileno(), "stdout": answer.fileno(), "stderr": errors.fileno()}
            ask = partial(start, verb, **files, cwd=cwd, env=program.with_uv())
            driver = ask()
            try:
                driver = begun(driver, ask)
                if driver.pid:
                    driver.wait(_CALL_SECONDS)
            finally:
                driver.end(_KILL_SECONDS)
        except OSError as error:
            raise ExecutorFailed(f"Harbor's driver ({verb}) did not end: {error}") from error
        try:
            said: dict[str, Any] = json.loads(_all(answer))
        except ValueError:
            last = program.last_lines(_all(errors) if driver.pid else driver.complaints())
            raise ExecutorFailed(f"Harbor's driver ({verb}) died: {last}") from None
    if "error" in said:
        raise ExecutorFailed(f"Harbor could not {verb}: {said['error']}")
    return said


def _all(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()
