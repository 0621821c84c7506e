"""``aeo datasets prefetch``: a dataset's tasks, and the images they start from, to workers ahead of a run."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from aeo.cli import show as tables
from aeo.cli.answers import Body, clean
from aeo.cli.client import Client, connect
from aeo.cli.follow import INTERRUPTED, as_json
from aeo.core.errors import InputError, Unavailable

#: Seconds between two looks; how long a controller that went away is waited for.
POLL_SECONDS, PATIENCE_SECONDS = 1.0, 300.0


@click.command(
    epilog="""\b
Examples:
  aeo datasets prefetch terminal-bench-2 --wait
  aeo datasets prefetch terminal-bench-2 --task 'git-*' --worker gpu-1 --worker gpu-2
  aeo datasets prefetch swe-bench-verified --no-images
  aeo datasets prefetch terminal-bench-2 --show
  aeo datasets prefetch terminal-bench-2 --cancel
\b
Exit codes with --wait or --show: 0 all is there; 1 something could not be fetched, or a worker is lost;
130 after Ctrl-C, which stops it: what came stays, and the same command goes on with the rest."""
)
@click.argument("name", metavar="NAME")
@click.option("--task", "tasks", multiple=True, metavar="PATTERN", help="Only tasks like this ('git-*'); repeatable.")
@click.option("--worker", "workers", multiple=True, metavar="ID", help="Only this worker; repeatable.")
@click.option("--images/--no-images", default=True, help="Also pull or build their images.  [default: images]")
@click.option("--wait", is_flag=True, help="Follow it to its end.")
@click.option("--show", is_flag=True, help="Ask for nothing; show how far the last one is.")
@click.option("--cancel", is_flag=True, help="Stop it; what came stays.")
@as_json
@click.pass_context
def prefetch(
    ctx: click.Context,
    name: str,
    tasks: tuple[str, ...],
    workers: tuple[str, ...],
    images: bool,
    wait: bool,
    show: bool,
    cancel: bool,
    as_json: bool,
) -> None:
    """Send tasks and images to workers ahead of a run; they fetch beside what they run, and skip what they have."""
    if show + cancel > 1 or ((show or cancel) and (tasks or workers)):
        raise InputError("goes with nothing but --json and --wait.", field="--show" if show else "--cancel")
    client = connect()
    if cancel:
        body = client.cancel_prefetch(name)
    elif show:
        body = client.prefetch(name)
    else:
        body = client.start_prefetch(name, {"tasks": list(tasks), "workers": list(workers), "images": images})
    if wait:
        body = _follow(client, name, body, ctx)
    if as_json:
        tables.as_json(body)
    elif not body["prefetch"]["workers"]:
        click.echo(f"Nothing of {name} was fetched ahead within the last week.")
    else:
        _print(body["prefetch"]["workers"])
        if not (wait or show or cancel):
            click.echo(f"See: aeo datasets prefetch {name} --show", err=True)
    if wait or show:
        bad = [row for row in body["prefetch"]["workers"] if row["state"] != "done"]
        ctx.exit(int(any(row["state"] in ("failed", "cancelled") or not row["alive"] for row in bad)))


def _follow(client: Client, name: str, body: Body, ctx: click.Context) -> Body:
    said: dict[str, str] = {}
    reached = time.monotonic()
    try:
        while True:
            for row in body["prefetch"]["workers"]:
                line = _line(row)
                if said.get(row["worker"]) != line:
                    click.echo(f"{clean(row['worker'])}: {line}", err=True)
                    said[row["worker"]] = line
            if not body["prefetch"]["running"]:
                return body
            time.sleep(POLL_SECONDS)
            try:
                body, reached = client.prefetch(name), time.monotonic()
            except Unavailable:
                if time.monotonic() - reached > PATIENCE_SECONDS:
                    raise
    except KeyboardInterrupt:
        client.cancel_prefetch(name)
        click.echo(f"\nStopped. What came stays; go on with: aeo datasets prefetch {name}", err=True)
        ctx.exit(INTERRUPTED)


def _line(row: Mapping[str, Any]) -> str:
    parts = [
        row["state"] if row["alive"] else f"{row['state']} (lost)",
        f"tasks {row['tasks_done']} of {row['tasks_total']}",
    ]
    if row["images_total"] is not None:
        parts.append(f"images {row['images_done']} of {row['images_total']}")
    if row["failed"]:
        parts.append(f"{row['failed']} failed")
    if row["note"]:
        parts.append(clean(row["note"]))
    return ", ".join(parts)


def _print(rows: list[Mapping[str, Any]]) -> None:
    columns = ("worker", "state", "tasks", "images", "failed")
    tables.table(columns, [_row(row) for row in rows], right=columns[2:])
    for line in _failures(rows):
        click.echo(line)


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    images = "-" if row["images_total"] is None else f"{row['images_done']}/{row['images_total']}"
    state = row["state"] if row["alive"] else f"{row['state']} (lost)"
    return (clean(row["worker"]), state, f"{row['tasks_done']}/{row['tasks_total']}", images, str(row["failed"] or "-"))


def _failures(rows: list[Mapping[str, Any]]) -> Iterator[str]:
    for row in rows:
        for failure in row["failures"]:
            yield f"{clean(row['worker'])}: {clean(failure['what'])}: {clean(failure['why'])}"
        if row["failed"] > len(row["failures"]):
            yield f"{clean(row['worker'])}: and {row['failed'] - len(row['failures'])} more"
