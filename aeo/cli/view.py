"""``aeo view``: the executor's own viewer on the merged jobs."""

from __future__ import annotations

import os
from pathlib import Path

import click

from aeo import executors
from aeo.config import from_environment
from aeo.core.errors import InputError
from aeo.executors import PLAIN

#: Where people expect Harbor's viewer beside us.
PORT = 7369


@click.command(
    epilog=f"""\b
Examples:
  aeo view
  aeo view /srv/aeo/jobs --port 8080

The pages link to it where the controller was started with --viewer-url http://127.0.0.1:{PORT}/jobs/{{job}}"""
)
@click.argument("jobs", metavar="[JOBS]", required=False, type=click.Path(path_type=Path, file_okay=False))
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="Port to listen on.")
@click.option("--executor", "name", default=PLAIN, show_default=True, help="Whose viewer.")
def view(jobs: Path | None, host: str, port: int, name: str) -> None:
    """Show the merged jobs, until Ctrl-C; also while they run.

    JOBS is the folder of jobs (default: that of the controller in this folder, see AEO_SHARED_ROOT and AEO_JOBS_DIR).
    """
    config = from_environment()
    folder = jobs or config.jobs_dir or config.shared_root / "jobs"
    if not folder.is_dir():
        fix = "Name the folder of jobs, or set AEO_SHARED_ROOT to the controller's."
        raise InputError(f"there is no folder {folder}.", field="JOBS", fix=fix)
    command = executors.viewer_of(executors.load(name), folder.resolve(), host, port)
    if command is None:
        raise InputError(f"The executor {name!r} has no viewer.", field="--executor")
    click.echo(f"Viewer: http://{host}:{port}", err=True)
    # The same process: a signal ends the viewer itself.
    os.execvpe(command.argv[0], list(command.argv), dict(command.env))  # noqa: S606
