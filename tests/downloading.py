"""An executor's knowledge of datasets for tests: downloads are a shell script that says what the test wants."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aeo.executors import Command, Source, TaskInfo

#: Says two tasks, one after the other file appears, and takes its place.
SLOW = """
echo '{"total": 2}'; mkdir -p "$STAGING"/one; echo '{"done": "one"}'
while ! [ -e "$GATE" ]; do sleep 0.02; done
mkdir -p "$STAGING"/two; echo '{"done": "two"}'
rm -rf "$FOLDER"; mv "$STAGING" "$FOLDER"; echo '{"finished": {}}'
"""


class Scripted:
    """See `aeo.executors.Datasets`."""

    defaults: Mapping[str, str] = {}

    def __init__(self, script: str = SLOW, gate: Path = Path("/nonexistent")):
        self.script, self.gate = script, gate
        self.asked: list[list[str]] = []

    def tasks(self, path: Path) -> tuple[TaskInfo, ...]:
        return tuple(TaskInfo(name=item.name, digest=f"{item.name}-digest") for item in sorted(path.iterdir()))

    def check(self, source: Source) -> None: ...

    def config(self, source: Source) -> Mapping[str, Any]:
        return {"datasets": [str(source.path or source.reference)]}

    def label(self, source: Source) -> str:
        return source.path.name if source.path else source.reference

    def download(self, source: Source, folder: Path, staging: Path, done: Sequence[str]) -> Command:
        self.asked.append(list(done))
        places = {"FOLDER": str(folder), "STAGING": str(staging), "GATE": str(self.gate)}
        env = {"PATH": os.environ["PATH"], **places}
        return Command(argv=("sh", "-c", self.script), env=env, request={"reference": source.reference})
