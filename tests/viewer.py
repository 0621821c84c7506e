"""Harbor's own viewer over a folder of jobs, and all it shows of one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from harbor_tasks import needed_harbor
from programs import free_port
from waiting import eventually

#: What the viewer answers below ``/api/jobs/{job_name}``, and below ``/trials/{trial_name}`` there.
JOB_PAGES = ("", "/analysis", "/chart-trials", "/config", "/tasks", "/tasks/filters", "/trials")
TRIAL_PAGES = ("", "/files", "/navigation", "/recording")
#: The same, of a trial or of one of its steps.
STEP_PAGES = ("/agent-logs", "/artifacts", "/interaction", "/trajectory", "/verifier-output")
#: Each file is asked for; nobody makes videos here; a stream is of a trial that runs; the last asks the network.
OTHER_PAGES = (
    *("/trials/{trial_name}/files/{file_path}", "/trials/{trial_name}/recording/file", "/trials/{trial_name}/stream"),
    "/upload",
)

_ID = re.compile(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
_TIME = re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d([.,]\d+)?(Z|[+-]\d\d:\d\d)?")
_DURATION = re.compile(r'("avg_duration_ms": )[\d.]+')
#: Where a worker had the trial's folder while it ran: errors name files in it.
_RUN = re.compile(r"/[\w./-]+/batches/[\w-]+/harbor/run\b")


@contextmanager
def viewer(jobs: Path, log: Path) -> Iterator[str]:
    """Run ``harbor view``; gives its address."""
    port = free_port()
    command = [str(needed_harbor().path), "-m", "harbor.cli.main", "view", str(jobs)]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, "--port", str(port), "--no-build"],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, "HARBOR_TELEMETRY": "0", "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
            start_new_session=True,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        eventually(lambda: server.poll() is not None or _answers(f"{address}/api/health"), 60, pause=0.1)
        assert server.poll() is None, log.read_text()
        yield address
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        try:
            server.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()


def _answers(url: str) -> bool:
    try:
        get(url)
    except (urllib.error.URLError, ConnectionError):
        return False
    return True


def get(url: str) -> Any:
    """An endpoint's JSON."""
    with urllib.request.urlopen(url, timeout=60) as response:
        return json.loads(response.read())


def shown(job: Path, log: Path) -> dict[str, Any]:
    """All the viewer shows of a job, but for what differs from run to run: ids, trials' names, paths, times."""
    with viewer(job.parent, log) as address:
        _check_pages(address)
        base = f"{address}/api/jobs/{job.name}"
        trials = get(f"{base}/trials?page_size=100")["items"]
        names = {trial["name"]: f"{trial['task_name']} by {trial['agent_name']}" for trial in trials}
        pages = {
            page: _page(f"{base}{page}{'?page_size=100' if page in ('/tasks', '/trials') else ''}")
            for page in JOB_PAGES
        }
        of_trials = [(label, _trial(f"{base}/trials/{name}")) for name, label in names.items()]
        return {
            **{page: _sorted(_comparable(document, job, names)) for page, document in pages.items()},
            "trials": sorted((_comparable(trial, job, names) for trial in of_trials), key=repr),
        }


def _check_pages(address: str) -> None:
    """Every page there is, is one of ours: a new one in another Harbor would else go unseen."""
    top = "/api/jobs/{job_name}"
    documented = get(f"{address}/openapi.json")["paths"]
    found = {path.removeprefix(top) for path, verbs in documented.items() if path.startswith(top) and "get" in verbs}
    assert found == {*JOB_PAGES, *OTHER_PAGES, *(f"/trials/{{trial_name}}{page}" for page in TRIAL_PAGES + STEP_PAGES)}


def _trial(base: str) -> dict[str, Any]:
    pages = {page: _page(base + page) for page in TRIAL_PAGES + STEP_PAGES}
    for step in pages[""]["step_results"] or []:
        pages.update(
            {f"{step['step_name']}{page}": _page(f"{base}{page}?step={step['step_name']}") for page in STEP_PAGES}
        )
    listed = [file for file in pages.pop("/files") if not file["is_dir"]]
    files = {file["path"]: _page(f"{base}/files/{quote(file['path'])}") for file in listed}
    # Who its neighbours are is a matter of names.
    pages["/navigation"] = {key: pages["/navigation"][key] for key in ("total", "finished")}
    return {"pages": pages, "files": files}


def _page(url: str) -> Any:
    """The page's JSON, else its text, else the number of its error."""
    try:
        with urllib.request.urlopen(url, timeout=60) as response:
            text = response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code
    try:
        return json.loads(text)
    except ValueError:
        return text


def _comparable(document: Any, job: Path, names: Mapping[str, str]) -> Any:
    text = json.dumps(document)
    for name, label in names.items():
        text = re.sub(re.escape(name), label, text, flags=re.IGNORECASE)
    text = _RUN.sub("<job>", text.replace(str(job), "<job>").replace(str(job.parent), "<jobs>"))
    return json.loads(_DURATION.sub(r'\1"<seconds>"', _TIME.sub("<time>", _ID.sub("<id>", text))))


def _sorted(document: Any) -> Any:
    """Lists in an order of their own: the viewer's is that of the trials' names."""
    if isinstance(document, dict):
        return {key: _sorted(value) for key, value in document.items()}
    return sorted(map(_sorted, document), key=repr) if isinstance(document, list) else document
