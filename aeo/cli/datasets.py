"""``aeo datasets``: which there are, what is in them, and getting them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from aeo.cli import show as tables
from aeo.cli.answers import Body, clean
from aeo.cli.client import Client, connect
from aeo.cli.dataset_check import check
from aeo.cli.dataset_prefetch import prefetch
from aeo.cli.follow import as_json
from aeo.core.errors import InputError, Unavailable
from aeo.core.words import count

#: Seconds between two looks at a download.
POLL_SECONDS = 1.0
_SORTS = ("name", "category", "difficulty", "pass_rate", "median", "runs", "cpus", "memory", "storage", "timeout")


@click.group(
    invoke_without_command=True,
    epilog="""\b
Examples:
  aeo datasets
  aeo datasets show terminal-bench-2 --sort pass_rate
  aeo datasets add mine --path ./my-tasks
  aeo datasets download swe-bench-verified
  aeo datasets check
  aeo datasets prefetch terminal-bench-2 --wait""",
)
@as_json
@click.pass_context
def datasets(ctx: click.Context, as_json: bool) -> None:
    """List datasets, or do something about one."""
    if not ctx.invoked_subcommand:
        _list(as_json)


datasets.add_command(check)
datasets.add_command(prefetch)


@datasets.command(
    "list",
    epilog="""\b
Examples:
  aeo datasets list
  aeo datasets list --json | jq '.datasets[].digest'""",
)
@as_json
def list_command(as_json: bool) -> None:
    """List the configured datasets."""
    _list(as_json)


@datasets.command(
    epilog="""\b
Examples:
  aeo datasets show terminal-bench-2
  aeo datasets show terminal-bench-2 --search git --difficulty hard
  aeo datasets show terminal-bench-2 --sort median --descending --limit 10
  aeo datasets show terminal-bench-2 --json"""
)
@click.argument("name", metavar="NAME")
@click.option("--search", help="Only tasks with these words in name, category or difficulty.")
@click.option("--category", help="Only tasks of this category.")
@click.option("--difficulty", help="Only tasks of this difficulty.")
@click.option("--sort", type=click.Choice(_SORTS), default="name", show_default=True)
@click.option("--descending", is_flag=True, help="The largest first; what is not known is last all the same.")
@click.option("--limit", type=click.IntRange(1, 1000), default=100, show_default=True, help="At most so many tasks.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Leave out so many first.")
@as_json
def show(name: str, as_json: bool, **query: Any) -> None:
    """Show a dataset and its tasks."""
    asked = {key: value for key, value in query.items() if value not in (None, False, "")}
    body = connect().dataset(name, **{key: "true" if value is True else value for key, value in asked.items()})
    if as_json:
        tables.as_json(body)
        return
    _print_dataset(body["dataset"])
    rows = body["tasks"]
    if not rows:
        return
    click.echo()
    columns = ("task", "category", "difficulty", "cpus", "memory", "time-out", "pass rate", "runs", "median", "workers")
    tables.table(columns, map(_row, rows), right=columns[3:])
    if body["total"] > len(rows):
        click.echo(f"{len(rows)} of {count(body['total'], 'task')}. See --offset and --limit.", err=True)


@datasets.command(
    epilog="""\b
Examples:
  aeo datasets add mine --path ./my-tasks
  aeo datasets add tb1 --reference terminal-bench@1.0 --registry /srv/registry.json
  aeo datasets add hello --reference org/hello-world@latest --json"""
)
@click.argument("name", metavar="NAME")
@click.option("--path", help="Folder of tasks on the controller's machine.")
@click.option("--reference", help="Name in a registry: org/name[@version], or name@version of a registry file.")
@click.option("--registry", default="", help="Which registry: path or address of a registry.json, or a git repository.")
@click.option("--executor", default="harbor", show_default=True, help="Whose tasks they are.")
@as_json
def add(name: str, path: str | None, reference: str | None, registry: str, executor: str, as_json: bool) -> None:
    """Configure a dataset under a name: a folder with tasks in it, or a reference to a registry."""
    if bool(path) == bool(reference):
        raise InputError("give either --path or --reference.", field="--path")
    asked = {
        "name": name,
        "executor": executor,
        "path": os.path.abspath(Path(path).expanduser()) if path else "",  # noqa: PTH100 - keeps links
        "reference": reference or "",
        "registry": registry,
    }
    body = connect().add_dataset(asked)
    if as_json:
        tables.as_json(body)
        return
    made = body["dataset"]
    if path:
        click.echo(f"{name} is configured with {count(made['tasks'], 'task')}.")
        if made["broken"]:
            click.echo(
                f"Warning: {count(made['broken'], 'task')} cannot be run; see: aeo datasets show {name}", err=True
            )
    else:
        click.echo(f"{name} is configured. Fetch it: aeo datasets download {name}")


@datasets.command(
    epilog="""\b
Examples:
  aeo datasets remove mine
  aeo datasets remove swe-bench-verified --files --json"""
)
@click.argument("name", metavar="NAME")
@click.option("--files", is_flag=True, help="Also drop what was downloaded; a folder added by --path stays.")
@as_json
def remove(name: str, files: bool, as_json: bool) -> None:
    """Configure a dataset no more."""
    body = connect().remove_dataset(name, files=files)
    if as_json:
        tables.as_json(body)
    else:
        click.echo(f"{name} is removed.")


@datasets.command(
    epilog="""\b
It goes on when this command is stopped, and also when the controller is. What was fetched is kept
when it fails; the same command goes on there.

\b
Examples:
  aeo datasets download terminal-bench-2
  aeo datasets download terminal-bench-2 --no-wait --json"""
)
@click.argument("name", metavar="NAME")
@click.option("--wait/--no-wait", default=True, help="Follow it to its end.  [default: wait]")
@as_json
def download(name: str, wait: bool, as_json: bool) -> None:
    """Download a dataset to the controller."""
    client = connect()
    body = client.start_download(name)
    if wait:
        body = _follow(client, name, body)
    if as_json:
        tables.as_json(body)
    elif not wait:
        click.echo(f"{name} is being downloaded. See: aeo datasets show {name}")
    if wait and body["download"]["state"] != "done":
        raise Unavailable(_why(name, body["download"]))
    if wait and not as_json:
        click.echo(f"{name} is here: {count(body['download']['done'], 'task')}.")


@datasets.command(
    epilog="""\b
Examples:
  aeo datasets cancel terminal-bench-2
  aeo datasets cancel terminal-bench-2 --json"""
)
@click.argument("name", metavar="NAME")
@as_json
def cancel(name: str, as_json: bool) -> None:
    """Stop a download; what was fetched is kept for the next."""
    body = connect().cancel_download(name)
    if as_json:
        tables.as_json(body)
    else:
        click.echo(_why(name, body["download"]))


def _list(as_json: bool) -> None:
    body = connect().datasets()
    if as_json:
        tables.as_json(body)
        return
    tables.table(
        ("name", "executor", "tasks", "difficulties", "digest", "workers", "download", "from"),
        [
            (
                *(clean(item["dataset"]["name"]), clean(item["dataset"]["executor"])),
                str(item["tasks"]) if item["folder"] else "-",
                _counts(item["difficulties"]) or "-",
                item["digest"][:12] or "-",
                str(len(item["present"])),
                _download(item["download"]) or "-",
                clean(item["dataset"]["path"] or item["dataset"]["reference"]),
            )
            for item in body["datasets"]
        ],
        right=("tasks", "workers"),
    )


def _print_dataset(view: Mapping[str, Any]) -> None:
    configured, needs = view["dataset"], view["needs"]
    lines = {
        "name": configured["name"],
        "executor": configured["executor"],
        "from": " in ".join(filter(None, (configured["path"] or configured["reference"], configured["registry"]))),
        "folder": view["folder"] or f"not here yet; fetch it: aeo datasets download {configured['name']}",
        "tasks": f"{view['tasks']}" + (f", and {view['broken']} broken" if view["broken"] else ""),
        "categories": _counts(view["categories"]),
        "difficulties": _counts(view["difficulties"]),
        "needs at most": ", ".join(
            filter(
                None,
                (
                    f"{needs['cpus']:g} cpus" if needs["cpus"] else "",
                    f"{needs['memory_mb']} MiB memory" if needs["memory_mb"] else "",
                    f"{view['storage_mb']} MiB storage" if view["storage_mb"] else "",
                ),
            )
        ),
        "time-outs up to": ", ".join(f"{phase} {seconds:g} s" for phase, seconds in view["timeouts"].items()),
        "digest": view["digest"],
        "on workers": ", ".join(f"{id} {count} of {view['tasks']}" for id, count in view["present"].items()),
        "download": _download(view["download"]),
        "problem": view["problem"],
    }
    for label, text in lines.items():
        if text:
            click.echo(f"{label + ':':<17}{clean(text)}")


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    info, past = row["info"], row["past"] or {}
    labels, needs = info["labels"], info["needs"]
    rate, median = past.get("pass_rate"), past.get("median_seconds")
    name = clean(info["name"]) + (f" (broken: {clean(info['problem'])})" if info["problem"] else "")
    return (
        name,
        clean(labels.get("category", "-")),
        clean(labels.get("difficulty", "-")),
        f"{needs['cpus']:g}" if needs["cpus"] else "-",
        f"{needs['memory_mb']} MiB" if needs["memory_mb"] else "-",
        tables.span(info["timeouts"]["agent"]) if "agent" in info["timeouts"] else "-",
        "-" if rate is None else f"{rate:.0%}",
        str(past.get("runs", 0)),
        "-" if median is None else tables.span(median),
        str(len(row["workers"])),
    )


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{clean(label)} {count}" for label, count in counts.items())


def _download(download: Mapping[str, Any] | None) -> str:
    if not download:
        return ""
    total = "?" if download["total"] is None else download["total"]
    return f"{download['state']} {download['done']}/{total}"


def _follow(client: Client, name: str, body: Body) -> Body:
    said = ""
    while True:
        download = body["download"]
        line = clean(f"{name}: {_download(download)} {download['note']}".strip())
        if line != said:
            click.echo(line, err=True)
            said = line
        if download["state"] != "running":
            return body
        time.sleep(POLL_SECONDS)
        body = client.download(name)


def _why(name: str, download: Mapping[str, Any]) -> str:
    said = " ".join(filter(None, (clean(download["message"]), clean(download["fix"]))))
    return f"The download of {name} is {download['state']}. {said}".strip()
