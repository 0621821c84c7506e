"""``aeo prune`` and ``aeo keep``: what the controller's machine keeps of what is finished."""

from __future__ import annotations

import re
import sys
from datetime import timedelta

import click

from aeo import retention
from aeo.cli import place, show
from aeo.cli.answers import clean
from aeo.cli.processes import hide_secrets, read, settings
from aeo.codec import encode
from aeo.core.errors import InputError
from aeo.core.words import count
from aeo.retention import Found

_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_BROKER = {"broker_url": "The broker's address (default: the embedded server's)."}


def _span(text: str) -> timedelta:
    found = re.fullmatch(r"([0-9]{1,5})([mhdw])", text)
    if not found:
        raise InputError(f"{text!r} is no length of time.", field="--older-than", fix="Write 30d, 12h or 2w.")
    return timedelta(**{_UNITS[found[2]]: int(found[1])})


@click.command(
    epilog="""\b
Removes evaluations that ended longer ago, with their job folders, late second results and rows, and tasks that no
evaluation needs any more. Never one that runs, and never one that is kept: `aeo keep ID`. Runs on the controller's
machine, while the controller runs or not; stopped half-way, the next call goes on.

\b
Exit codes: 0 done; 1 a part is away, or nobody said yes; 2 wrong input.

\b
Examples:
  aeo prune --older-than 30d --dry-run
  aeo prune --older-than 12w --yes
  aeo prune --older-than 30d --leave-jobs --shared-root /srv/aeo"""
)
@click.option("--older-than", "older_than", required=True, metavar="SPAN", help="As 30d, 12h or 2w.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@click.option("--leave-jobs", is_flag=True, help="Leave job folders where they are.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@settings((*place.WHERE, "jobs_dir"), _BROKER)
@place.as_json
@click.pass_context
def prune(
    ctx: click.Context,
    /,
    older_than: str,
    dry_run: bool,
    leave_jobs: bool,
    yes: bool,
    as_json: bool,
    **flags: str | None,
) -> None:
    """Remove old evaluations; runs on the controller's machine."""
    span, config = _span(older_than), read(flags)
    hide_secrets()
    with place.existing(config) as site:
        found = retention.find(site, span)
        if not as_json:
            _print(found, jobs=not leave_jobs)
        if not dry_run:
            if not yes and (found.evaluations or found.tasks) and not _agreed():
                ctx.exit(1)
            found = retention.remove(site, found, jobs=not leave_jobs)
    if as_json:
        show.as_json({"dry_run": dry_run, "pruned": encode(found)})
    elif not dry_run:
        click.echo(f"Removed {count(len(found.evaluations), 'evaluation')}, {count(len(found.tasks), 'task folder')}.")


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise InputError("nobody is here to ask.", field="--yes", fix="Add --yes, or --dry-run to see what would go.")
    return click.confirm("Remove them?", err=True)


def _print(found: Found, *, jobs: bool) -> None:
    rows = [
        (
            *(one.id, clean(one.name), show.local(one.finished_at), _mib(one.bytes)),
            str(one.job_dir) if one.job_dir and jobs else "-",
        )
        for one in found.evaluations
    ]
    if rows:
        show.table(("id", "name", "ended", "MiB", "job folder"), rows, right=("MiB",))
    total = sum(one.bytes for one in found.evaluations) + found.task_bytes
    click.echo(
        f"{count(len(rows), 'old evaluation')}, {count(len(found.tasks), 'task folder')} nobody needs: "
        f"{_mib(total)} MiB; {count(len(found.kept), 'old evaluation')} kept."
    )
    for note in found.notes:
        click.echo(f"Warning: {clean(note)}", err=True)


def _mib(size: int) -> str:
    return f"{size / 1024 / 1024:,.1f}"


@click.command(
    epilog="""\b
Examples:
  aeo keep my-evaluation
  aeo keep 3f2a90c1d4e5 --no-keep"""
)
@click.argument("id", metavar="ID|NAME")
@click.option("--keep/--no-keep", "wanted", default=True, help="Keep it, or no longer (default: keep).")
@settings(place.WHERE, _BROKER)
def keep(id: str, wanted: bool, **flags: str | None) -> None:
    """Keep an evaluation from `aeo prune`; runs on the controller's machine."""
    config = read(flags)
    hide_secrets()
    with place.existing(config) as site:
        status = retention.keep(site, id, wanted)
    click.echo(f"{clean(status.name)} ({status.id}) is {'kept' if wanted else 'kept no longer'}.")
