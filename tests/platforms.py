"""A whole platform as a person starts it: a controller and workers, each a program of its own."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from programs import Api, Program, free_port
from waiting import eventually


class Platform:
    """A controller, and what was started beside it."""

    def __init__(self, folder: Path):
        port = free_port()
        self.folder, self.shared = folder, folder / "shared"
        self.url = f"http://127.0.0.1:{port}"
        self.api = Api(self.url)
        self.programs = [Program(["controller", "--port", str(port), "--shared-root", str(self.shared)], folder)]

    def ready(self) -> Platform:
        """Wait until the controller answers."""
        eventually(self.api.healthy, 60, pause=0.1)
        return self

    def worker(self, id: str, *more: str, environment: Mapping[str, str] | None = None) -> Program:
        """Start a worker and wait until it is online."""
        arguments = ["worker", "--controller-url", self.url, "--worker-id", id, "--local-root", str(self.folder / id)]
        self.programs.append(Program([*arguments, *more], self.folder, environment))
        return self.programs[-1]

    def aeo(self, *arguments: str) -> Program:
        """A command of the command line."""
        return Program(list(arguments), self.folder, {"AEO_URL": self.url})

    def job(self, name: str) -> Path:
        return self.shared / "jobs" / name

    def events(self, id: str) -> list[dict[str, Any]]:
        """The log of an evaluation that is closed."""
        log = self.shared / "evaluations" / id / "events.jsonl"
        eventually(lambda: '"kind":"closed"' in log.read_text())
        return [json.loads(line) for line in log.read_text().splitlines()]

    def check_once_each(self, name: str) -> set[str]:
        """Every trial was claimed and committed exactly once; returns the workers that ran some."""
        status = self.api.status(name)
        events = self.events(status["id"])
        for kind in ("claimed", "committed"):
            counted = Counter(event["trial"] for event in events if event["kind"] == kind)
            assert len(counted) == status["total"]
            assert set(counted.values()) == {1}
        return {event["worker"] for event in events if event["kind"] == "claimed"}

    def stop(self) -> None:
        """End everything as a person does, workers first."""
        self.api.close()
        for program in reversed(self.programs):
            program.process.terminate()
        for program in self.programs:
            program.ends()

    def destroy(self) -> None:
        """End everything, whatever state it is in."""
        for program in self.programs:
            program.destroy()
