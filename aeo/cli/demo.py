"""``aeo demo``: everything on this machine, once, from an empty folder to a merged job."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click
import yaml

from aeo import samples
from aeo.cli import follow, show, views
from aeo.cli.answers import Body
from aeo.cli.client import Client, reach
from aeo.config import Config
from aeo.core.errors import InputError, Unavailable
from aeo.core.model import WorkerState
from aeo.embedded import local
from aeo.embedded.children import interruptible
from aeo.embedded.local import Controller
from aeo.executors.harbor.python import harbor_python

#: The two workers and their slots: unequal, so that the shares show it.
WORKERS = {"worker-1": 2, "worker-2": 1}
#: Seconds the workers get to come online.
READY_SECONDS = 60.0
#: Lines of a process's log shown when the demo fails.
LOG_LINES = 15

_ENVIRONMENTS = {
    "host": {"import_path": "aeo_harbor.host_environment:HostEnvironment"},
    "docker": {"type": "docker"},
}


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a demo works."""

    root: Path
    #: Outlives the demo.
    jobs: Path
    #: Whether the root is kept too.
    kept: bool


@click.command(
    epilog="""\b
The jobs are left in ./aeo-demo/jobs. With `--environment host`, the default, the tasks' commands run
on this machine in private folders: that is no sandbox, and the sample needs none.

\b
Examples:
  aeo demo
  aeo demo --environment docker
  aeo demo --executor command --json"""
)
@click.option("--environment", type=click.Choice(sorted(_ENVIRONMENTS)), default="host", show_default=True)
@click.option("--executor", type=click.Choice(["harbor", "command"]), help="Default: harbor where it can run.")
@click.option("--root", type=click.Path(path_type=Path), help="Work here (default: a temporary folder). It is kept.")
@click.option("--keep", is_flag=True, help="Keep the temporary folder: logs, evaluation, events.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.pass_context
def demo(
    ctx: click.Context, environment: str, executor: str | None, root: Path | None, keep: bool, as_json: bool
) -> None:
    """Run a small sample evaluation on this machine, start to end: two workers of different slots, one merged job."""
    with interruptible() as hurry, _place(root, keep) as place:
        config = _sample(executor, environment)
        with local.controller(_config(place), logs=_logs(place)) as running:
            hurry.append(running.crew.hurry)
            try:
                body, trials = _evaluate(running, config)
            except BaseException:
                # Nothing that runs is worth waiting for any more.
                running.crew.hurry()
                _explain(running)
                raise
    end = views.evaluation(body)
    if as_json:
        show.as_json({**body, "trials": trials["trials"]})
    else:
        show.result(end, views.trials(trials), views.total(trials))
    ctx.exit(follow.EXIT_CODES.get(end.state, 1))


@contextmanager
def _place(root: Path | None, keep: bool) -> Iterator[Place]:
    jobs = Path("aeo-demo/jobs").resolve()
    try:
        jobs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"{jobs} cannot be made: {error.strerror}.", fix="Run it in a folder you may write to."
        ) from None
    made = Path(tempfile.mkdtemp(prefix="aeo-demo.")) if root is None else root.resolve()
    place = Place(root=made, jobs=jobs, kept=keep or root is not None)
    try:
        yield place
    finally:
        if place.kept:
            click.echo(f"Kept: {place.root}", err=True)
        else:
            shutil.rmtree(place.root, ignore_errors=True)


def _config(place: Place) -> Config:
    # Nothing from AEO_*: the demo touches no set-up that exists.
    return Config(
        port=_free_port(),
        shared_root=place.root,
        jobs_dir=place.jobs,
        poll_interval=1.0,
        refresh_seconds=1.0,
        stop_seconds=5.0,
    )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _logs(place: Place) -> Path:
    logs = place.root / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return logs


def _sample(executor: str | None, environment: str) -> dict[str, Any]:
    """The bundled evaluation, for Harbor where it can run."""
    name = f"demo-{datetime.now(timezone.utc):%Y-%m-%d--%H-%M-%S}"
    common = {"name": name, "per_worker_concurrency": "all"}
    if executor != "command":
        try:
            found = harbor_python(progress=lambda text: click.echo(text, err=True))
        except Unavailable as error:
            if executor == "harbor" or environment == "docker":
                raise
            click.echo(f"{error} The demo runs its command sample instead.", err=True)
        else:
            # So that no child looks for it again.
            os.environ["AEO_HARBOR_PYTHON"] = str(found.path)
            return {
                **common,
                "executor": "harbor",
                "n_attempts": 2,
                "agents": [{"name": "oracle"}],
                "datasets": [{"path": str(samples.harbor_tasks())}],
                "environment": _ENVIRONMENTS[environment],
            }
    return {**yaml.safe_load(samples.command_config().read_text()), **common}


def _evaluate(running: Controller, config: dict[str, Any]) -> tuple[Body, Body]:
    """Start the workers, submit, follow to the end; returns the evaluation and its trials."""
    for id, slots in WORKERS.items():
        running.add_worker(id, slots)
    client = reach(running.url, running.config.auth_token)
    click.echo(f"Controller at {running.url}; starting {len(WORKERS)} workers.", err=True)
    with client.http:
        _await_workers(running, client)
        # Relative paths of the sample start from its own folder.
        body = client.submit({"config": config, "working_dir": str(samples.command_config().parent)})
        view = views.accepted(body)
        show.warnings(view.warnings)
        ended = follow.follow(client, view.id)
        return ended, client.trials(view.id, limit=follow.RESULT_TRIALS)


def _await_workers(running: Controller, client: Client) -> None:
    deadline = time.monotonic() + READY_SECONDS
    while True:
        online = [w for w in views.workers(client.workers()) if w.state == WorkerState.ONLINE.value]
        if len(online) == len(WORKERS):
            return
        running.crew.check()
        if time.monotonic() > deadline:
            raise Unavailable(f"Only {len(online)} of {len(WORKERS)} workers came online.")
        running.crew.failed.wait(0.2)


def _explain(running: Controller) -> None:
    """Show the end of what the processes said."""
    for path in sorted(running.logs.glob("*.log")) if running.logs else ():
        lines = path.read_text("utf-8", "replace").splitlines()[-LOG_LINES:]
        if lines:
            click.echo(f"--- {path.name}\n" + "\n".join(lines), err=True)
