"""Images of Harbor's tasks, pulled or built ahead of a run, see `aeo.executors.supplies`.

Harbor lets compose build a task's image under the trial's name and removes it after the trial; what stays is the build
cache. So does this, under the name that Harbor has for an environment of this content (``hb__...``), which keeps the
layers and makes the trial's own build find each of them; clean-up knows these names.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from aeo.core.errors import ExecutorFailed, Unavailable
from aeo.executors.harbor import drivers, engine, program
from aeo.executors.harbor.care import HarborCare
from aeo.executors.supplies import Image, Needed

#: Seconds between two looks whether to stop, and seconds a command gets to end then.
_LOOK_SECONDS, _STOP_SECONDS = 0.2, 5.0
#: Letters of what a command said last.
_WORDS = 300


class HarborSupplies:
    """Images of tasks in Harbor's docker environment."""

    def needed(self, folders: Sequence[Path]) -> Needed:
        """See `aeo.executors.supplies.Supplies`."""
        asked = engine.ask("info", "--format", "{{.ServerVersion}}")
        if asked.code != 0 or not asked.out.strip():
            raise Unavailable(asked.error or "the Docker engine does not answer")
        said = drivers.call("images", {"folders": [str(folder) for folder in folders]})["ok"]
        problems: dict[str, str] = dict(said["problems"])
        found: dict[str, Image] = {}
        for call in said["calls"]:
            try:
                for image in _images(call):
                    found.setdefault(image.name, image)
            except ExecutorFailed as error:
                problems[str(call["task"])] = str(error)
        return Needed(images=tuple(found.values()), problems=problems)

    def places(self) -> Sequence[Path]:
        """Where the engine keeps images."""
        return HarborCare().folders()

    def is_here(self, image: Image) -> bool:
        """Ask the engine; a tag of the same name again makes the image count as got now."""
        if engine.ask("image", "inspect", "--format", "{{.Id}}", "--", image.name).code != 0:
            return False
        if image.built:
            engine.ask("tag", "--", image.name, image.name)
        return True

    def bring(self, image: Image, stop: threading.Event) -> None:
        """Pull or build it."""
        if image.built:
            call = image.payload
            _run(
                [*_compose(call), "build", "--quiet", str(call["service"])], stop, f"could not build {image.name}", call
            )
        else:
            _run(["docker", "pull", "--quiet", "--", image.name], stop, f"could not pull {image.name}")


def _images(call: Mapping[str, Any]) -> Iterator[Image]:
    """The images of one call of compose, as compose itself reads its files.

    Raises:
        ExecutorFailed: compose cannot read them.
    """
    if len(call["files"]) == 1:
        # Harbor's own file alone, as for most tasks of large datasets: nothing to be read.
        named = call["env"].get("PREBUILT_IMAGE_NAME")
        yield Image(name=named) if named else _built(call, "main", f"{call['name']}-main")
        return
    said = _run(
        [*_compose(call), "config", "--format", "json"], threading.Event(), "compose cannot read its files", call
    )
    services = json.loads(said).get("services") or {}
    for name, service in sorted(services.items()):
        if "build" in service:
            yield _built(call, name, service.get("image") or f"{call['name']}-{name}")
        elif service.get("image"):
            yield Image(name=service["image"])


def _built(call: Mapping[str, Any], service: str, name: str) -> Image:
    return Image(name=name, built=True, payload={**call, "service": service})


def _compose(call: Mapping[str, Any]) -> list[str]:
    files = [part for path in call["files"] for part in ("-f", str(path))]
    project = ["--project-name", str(call["name"]), "--project-directory", str(call["directory"])]
    return ["docker", "compose", *project, *files]


def _run(command: Sequence[str], stop: threading.Event, what: str, call: Mapping[str, Any] | None = None) -> str:
    """Run a command to its end; returns what it printed.

    Raises:
        ExecutorFailed: it failed, or was stopped.
    """
    env = {**program.environment(), **(call["env"] if call else {})}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=errors, env=env, start_new_session=True
            )
        except OSError as error:
            raise ExecutorFailed(f"{what}: {error.strerror}") from None
        try:
            while process.poll() is None and not stop.is_set():
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_SECONDS)
        finally:
            _end(process)
        if stop.is_set() and process.returncode != 0:
            raise ExecutorFailed(f"{what}: it was stopped")
        if process.returncode != 0:
            raise ExecutorFailed(f"{what}: {_last(errors) or _last(out) or f'exit code {process.returncode}'}")
        out.seek(0)
        return out.read().decode(errors="replace")


def _end(process: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)


def _last(file: Any) -> str:
    """The end of what a command said, on one line."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - 4 * _WORDS))
    text = " ".join(file.read().decode(errors="replace").split())
    return "".join(letter for letter in text if letter.isprintable())[-_WORDS:]
