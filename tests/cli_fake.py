"""A controller made of canned answers, over real HTTP on the loopback, for the tests of the command line."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import CliRunner, Result

from aeo.cli import follow, main, show

ID = "3f2a90c1d4e5"
ONE = f"/api/evaluations/{ID}"
TRIALS = f"{ONE}/trials"


@dataclass
class Reply:
    body: Any = None
    status: int = 200
    #: Sent as it is instead of `body`.
    raw: bytes | None = None
    content_type: str = "application/json"
    #: Promise more bytes than are sent, then close.
    cut: bool = False
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: Any


class FakeController:
    """Answers each ``(method, path)`` with its replies in turn, the last one for ever."""

    def __init__(self) -> None:
        self.replies: dict[tuple[str, str], list[Reply | Callable[[], Reply]]] = {}
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def answer(self, method: str, path: str, *replies: Reply | Callable[[], Reply] | Mapping[str, Any]) -> None:
        self.replies[method, path] = [Reply(item) if isinstance(item, Mapping) else item for item in replies]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def made(self, method: str, path: str) -> list[Request]:
        return [request for request in self.requests if (request.method, request.path) == (method, path)]

    def _next(self, method: str, path: str) -> Reply:
        queue = self.replies.get((method, path))
        if not queue:
            return problem(404, f"There is no {path}.")
        reply = queue.pop(0) if len(queue) > 1 else queue[0]
        return reply if isinstance(reply, Reply) else reply()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                address = urlsplit(self.path)
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                body = json.loads(data) if data else None
                fake.requests.append(
                    Request(self.command, address.path, parse_qs(address.query), dict(self.headers), body)
                )
                reply = fake._next(self.command, address.path)
                content = json.dumps(reply.body).encode() if reply.raw is None else reply.raw
                self.send_response(reply.status)
                self.send_header("Content-Type", reply.content_type)
                self.send_header("Content-Length", str(len(content) + (100 if reply.cut else 0)))
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: Any) -> None:
                pass

        return Handler


@pytest.fixture
def fake() -> Iterator[FakeController]:
    controller = FakeController()
    yield controller
    controller.close()


@pytest.fixture
def aeo(fake: FakeController, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("AEO_URL", fake.url)
    monkeypatch.setenv("AEO_TOKEN", "s3cret")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(follow, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(follow, "_LONGEST_PAUSE", 0.02)
    monkeypatch.setattr(show, "LINE_SECONDS", 0.0)
    yield lambda *args, **kwargs: CliRunner().invoke(main, args, **kwargs)
    monkeypatch.undo()
    time.tzset()


def as_json(result: Result) -> Any:
    """Standard output as one JSON document, and nothing else."""
    return json.loads(result.stdout)


def problem(status: int, message: str, field: str = "", fix: str = "") -> Reply:
    body = {
        "type": "about:blank",
        "title": "Wrong",
        "status": status,
        "detail": message,
        "problems": [{"message": message, "field": field, "fix": fix}],
    }
    return Reply(body, status, content_type="application/problem+json")


def status(state: str = "running", **values: Any) -> dict[str, Any]:
    return {
        "id": ID,
        "name": "nightly",
        "executor": "sleep",
        "state": state,
        "reason": "",
        "submitted_at": "2026-11-29T10:00:00+00:00",
        "finished_at": None,
        "total": 4,
        "pending": 1,
        "running": 2,
        "pushed": 0,
        "done": 1,
        "outcomes": {"scored": 1},
        "requeues": 0,
        "priority": 0,
        **values,
    }


def ended(state: str = "succeeded", **values: Any) -> dict[str, Any]:
    return status(
        state,
        **{
            "finished_at": "2026-11-29T10:01:00+00:00",
            "pending": 0,
            "running": 0,
            "done": 4,
            "outcomes": {"scored": 3, "infra_error": 1},
            **values,
        },
    )


def detail(of: dict[str, Any], **values: Any) -> dict[str, Any]:
    return {
        "status": of,
        "spec": {},
        "warnings": ["2 task folders were skipped."],
        "job_dir": "/data/jobs/nightly",
        "shares": {"w1": {"batches": 1, "waiting": 1, "running": 1, "done": 1}},
        "scores": [
            {
                "labels": {"agent": "oracle", "model": "m"},
                "means": {"reward": 0.6666},
                "counts": {"reward": of["outcomes"].get("scored", 0)},
                "scored": of["outcomes"].get("scored", 0),
                "planned": of["total"],
            }
        ],
        "running": [],
        "eta_seconds": 75.0,
        **values,
    }


def trial(name: str = "a__1", outcome: str = "scored", **rewards: float) -> dict[str, Any]:
    summary = {
        "trial": name,
        "task": "a",
        "outcome": outcome,
        "rewards": rewards,
        "started_at": "2026-11-29T10:00:00+00:00",
        "finished_at": "2026-11-29T10:00:02.500000+00:00",
        "error_type": "" if outcome == "scored" else "EnvironmentStartTimeoutError",
    }
    row = {"summary": summary, "worker": "w1", "attempt": 1, "committed_at": "2026-11-29T10:00:03+00:00", "notes": []}
    return {"trial": name, "task": "a", "state": "done", "labels": {}, "worker": "w1", "attempt": 1, "row": row}


def worker(**values: Any) -> dict[str, Any]:
    return {
        "info": {
            "id": "w1",
            "display_name": "W 1",
            "host": "h",
            "capacity": {"slots": 4, "cpus": 8.0, "memory_mb": 16384},
            "executors": {"harbor": "0.26.0", "sleep": ""},
        },
        "state": "online",
        "note": "",
        "heartbeat": {"busy": 2, "cpu_percent": 12.4, "memory_percent": 50.0, "disk_free": 1, "draining": ""},
        "heartbeat_age": 2.3,
        "weight": 4.0,
        "weight_override": None,
        "busy": 2,
        "queued": 1,
        **values,
    }
