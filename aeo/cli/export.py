"""``aeo export``: an evaluation's trials as a file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import click

from aeo.cli.client import connect
from aeo.core.errors import InputError, Unavailable
from aeo.exports import FORMATS


@click.command(
    epilog="""\b
Examples:
  aeo export my-evaluation > trials.csv
  aeo export my-evaluation --format jsonl | jq -r .error_type | sort | uniq -c
  aeo export my-evaluation --format parquet --output trials.parquet"""
)
@click.argument("id", metavar="ID|NAME")
@click.option("--format", "kind", type=click.Choice(list(FORMATS)), default="csv", show_default=True)
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, dir_okay=False), help="Write here instead of standard output."
)
def export(id: str, kind: str, output: Path | None) -> None:
    """Write one row for each planned trial of an evaluation, with what came out of it so far."""
    client = connect()
    if output is None:
        if kind == "parquet" and sys.stdout.isatty():
            raise InputError("Parquet is not for a terminal.", field="--output", fix="Name a file, or use a pipe.")
        try:
            client.export(id, kind, sys.stdout.buffer, media=FORMATS[kind])
            sys.stdout.flush()
        except BrokenPipeError:
            # Whoever reads has enough; nothing is to be said, and not at the end either.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    # Beside it first: what was there stays until all of the new has come.
    draft = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with draft.open("xb") as file:
            client.export(id, kind, file, media=FORMATS[kind])
        draft.replace(output)
    except OSError as error:
        raise Unavailable(f"{output} cannot be written: {error.strerror or error}") from None
    finally:
        draft.unlink(missing_ok=True)
    click.echo(str(output), err=True)
