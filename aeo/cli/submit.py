"""``aeo submit`` and ``aeo run``: hand an evaluation to the controller."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import reduce
from pathlib import Path
from typing import Any, TypeVar

import click

from aeo.cli import check, follow, show, views
from aeo.cli.answers import Body
from aeo.cli.client import Client, connect
from aeo.cli.numbers import read as read_number
from aeo.cli.numbers import whole
from aeo.config import from_environment
from aeo.core.errors import InputError
from aeo.core.model import MOST_FACTOR, MOST_WHOLE
from aeo.core.words import count

_F = TypeVar("_F", bound=Callable[..., Any])


def concurrency(text: str) -> int | str:
    """Read a whole number of at least 1, or ``all``."""
    if text == "all":
        return text
    number = whole(text, 1, MOST_WHOLE)
    if number is None:
        raise click.BadParameter(f"{text!r} is neither a whole number from 1 to {MOST_WHOLE} nor 'all'.")
    return number


def multiplier(text: str) -> float:
    """Read a number above 0."""
    number = read_number(text, 0, MOST_FACTOR, above=True)
    if number is None or number == MOST_FACTOR:
        raise click.BadParameter(f"{text!r} is not a number above 0 and below {MOST_FACTOR}.")
    return number


#: The header's keys which say where and how an evaluation runs, not what is measured.
_PLACING = (
    click.option(
        "--stop-when",
        multiple=True,
        metavar="KEY=VALUE",
        help="Stop early: interval=0.05, or compare=AGENT,AGENT; also min_trials=N. Repeatable.",
    ),
    click.option("--workers", metavar="ID,ID", help="Use only these workers (default: all that fit)."),
    click.option(
        "--per-worker-concurrency",
        type=concurrency,
        metavar="N|all",
        help="Slots of each worker this evaluation may use (default 1; `aeo simulate` without an ID takes all).",
    ),
    click.option(
        "--priority", type=click.IntRange(-MOST_WHOLE, MOST_WHOLE), metavar="N", help="Higher runs first (default 0)."
    ),
    click.option(
        "--secret",
        "secrets",
        multiple=True,
        metavar="NAME",
        help="A secret that trials get, see `aeo secrets`. Repeatable.",
    ),
    click.option(
        "--max-requeues",
        type=click.IntRange(0, MOST_WHOLE),
        metavar="N",
        help="Runs repeated for each trial lost to infrastructure (default 2).",
    ),
)


def _placing(command: _F) -> _F:
    return reduce(lambda inner, option: option(inner), reversed(_PLACING), command)


@click.command(
    epilog="""\b
Exit codes: 0 submitted (with --wait: succeeded; with --check: it could be), 1 failed or no controller,
2 wrong input, 3 cancelled, 130 interrupted (it runs on).

\b
Examples:
  aeo submit job.yaml
  aeo submit job.yaml --wait --per-worker-concurrency all
  aeo submit job.yaml --check
  aeo submit job.yaml --workers gpu-1,gpu-2 --name nightly --json
  generate-config | aeo submit -"""
)
@click.argument("file", metavar="FILE")
@click.option("--executor", help="Which executor the file is for (default: its key `executor`, else harbor).")
@click.option("--name", help="Name of the evaluation and its job folder.")
@click.option("--agent-timeout-multiplier", type=multiplier, metavar="FACTOR", help="Factor on the agents' time-outs.")
@_placing
@click.option("--wait/--no-wait", default=False, help="Follow it to its end.")
@click.option("--check", "only_check", is_flag=True, help="Plan it and tell what would come of it; start nothing.")
@follow.as_json
def submit(file: str, wait: bool, only_check: bool, as_json: bool, workers: str | None, **options: Any) -> None:
    """Submit the evaluation in FILE (`-` is standard input).

    FILE is a job configuration exactly as `harbor run -c` takes it, or the same beside our own keys: executor, name,
    workers, per_worker_concurrency, priority, agent_timeout_multiplier, max_requeues, secrets, stop_when. With
    `executor: command` (any commands) or `executor: sleep` (tries a pool out) the other keys are that executor's: see
    deploy/README.md, "Any commands". Relative paths in it start from the current folder.
    """
    submission = {
        "text": read(file),
        "file_name": "<stdin>" if file == "-" else file,
        "working_dir": working_dir(),
        "options": _options(workers, options),
    }
    if only_check and wait:
        raise click.UsageError("--check starts nothing that one could --wait for.")
    if only_check:
        plan(lambda client: client.check(submission), as_json=as_json)
    else:
        send(lambda client: client.submit(submission), wait=wait, as_json=as_json)


@click.command(
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]},
    epilog="""\b
Exit codes: 0 succeeded, 1 failed or no controller, 2 wrong input, 3 cancelled,
130 interrupted (it runs on).

\b
Examples:
  aeo run -p ./tasks -a oracle
  aeo run -d terminal-bench@2.0 -a terminus-2 -m openai/gpt-5 -k 4 --per-worker-concurrency all
  aeo run -c job.yaml --no-wait --json""",
)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[FLAGS OF HARBOR RUN]...")
@_placing
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow it to its end.")
@follow.as_json
def run(args: tuple[str, ...], wait: bool, as_json: bool, workers: str | None, **options: Any) -> None:
    """Run what `harbor run` would run, over the workers.

    Takes the flags of `harbor run`; Harbor itself resolves them, so they mean exactly what they mean there.
    """
    # Here, since only this command needs it.
    from aeo.cli import drop_in

    if "-h" in args:
        ctx = click.get_current_context()
        click.echo(ctx.get_help())
        ctx.exit()
    if drop_in.answered(args):
        answer = drop_in.ask(args)
        click.echo(answer.out, nl=False)
        click.echo(answer.err, nl=False, err=True)
        click.get_current_context().exit(2 if answer.code else 0)
    config, remarks = drop_in.resolve(args)
    if remarks:
        click.echo(remarks, err=True)
    show.warnings(drop_in.notes(args))
    submission = {
        "config": config,
        "working_dir": working_dir(),
        "options": {"executor": "harbor", **_options(workers, options)},
    }
    send(lambda client: client.submit(submission), wait=wait, as_json=as_json)


def plan(ask: Callable[[Client], Body], *, as_json: bool) -> None:
    """Show what would come of a submission; exits with 2 when something is wrong with it."""
    with show.busy("Planning the evaluation…"):
        body = ask(connect())
    view = check.read(body)
    if as_json:
        show.as_json(body)
    else:
        show.warnings(view.warnings)
        check.show_plan(view)
    if view.problems:
        raise click.exceptions.Exit(2) if as_json else InputError(problems=view.problems)


def send(ask: Callable[[Client], Body], *, wait: bool, as_json: bool) -> None:
    """Submit, show what was made of it, and follow it if it is to be waited for."""
    client = connect()
    with show.busy("Planning the evaluation…"):
        try:
            body = ask(client)
        except KeyboardInterrupt:
            click.echo("Interrupted; the evaluation may have been accepted all the same: see `aeo status`.", err=True)
            click.get_current_context().exit(follow.INTERRUPTED)
    view = views.accepted(body)
    if as_json and not wait:
        show.as_json(body)
        return
    show.warnings(view.warnings)
    # With --json standard output is for the result alone, but who interrupts needs the id.
    carried = f", {view.done} of them with the earlier result" if view.parent and view.done else ""
    click.echo(f"Submitted {view.name} (id {view.id}): {count(view.total, 'trial')}{carried}.", err=as_json)
    if wait:
        follow.wait(client, view, as_json=as_json)
    click.echo(f"Watch it: aeo watch {view.id}")


def _options(workers: str | None, options: Mapping[str, Any]) -> dict[str, Any]:
    """Header keys given as options."""
    given = {key: value for key, value in options.items() if value is not None}
    if workers is not None:
        given["workers"] = [part.strip() for part in workers.split(",") if part.strip()]
    rule = dict(_pair(text) for text in given.pop("stop_when", ()))
    named = list(given.pop("secrets", ()))
    return given | ({"stop_when": rule} if rule else {}) | ({"secrets": named} if named else {})


def _pair(text: str) -> tuple[str, str]:
    name, given, value = text.partition("=")
    if not given:
        raise click.UsageError(f"--stop-when {text!r} is not like interval=0.05 or compare=AGENT,AGENT.")
    return name.strip(), value.strip()


def working_dir() -> str:
    """The folder that relative paths start from.

    Raises:
        InputError: there is none any more.
    """
    try:
        return str(Path.cwd())
    except FileNotFoundError:
        raise InputError("The current folder does not exist any more.", fix="Change to one that does.") from None


def read(file: str) -> str:
    """Read the file's text.

    Raises:
        InputError: it cannot be read, is too large or no text.
    """
    limit = from_environment().max_body
    try:
        if file == "-":
            data = sys.stdin.buffer.read(limit + 1)
        else:
            with Path(file).open("rb") as stream:
                data = stream.read(limit + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InputError(f"cannot be read: {reason}.", field=file) from None
    if len(data) > limit:
        raise InputError(f"is larger than {limit} bytes.", field=file, fix="Is it the right file?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise InputError("is no UTF-8 text.", field=f"{file}:{line}") from None
