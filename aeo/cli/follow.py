"""``aeo status``, ``aeo watch``, ``aeo pause``, ``aeo resume``, ``aeo cancel``: how evaluations go, stop and end."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

import click

from aeo.cli import show, views
from aeo.cli.answers import Body, clean
from aeo.cli.client import Client, connect
from aeo.cli.views import EvaluationView
from aeo.core.alerts import Kind
from aeo.core.errors import AeoError, Unavailable
from aeo.core.model import EvaluationState

#: Seconds between two looks.
POLL_SECONDS = 1.0
#: How long a controller that went away is waited for, seconds since it last answered.
PATIENCE_SECONDS = 300.0
#: Longest pause between two tries, seconds.
_LONGEST_PAUSE = 15.0
#: How many trials the result table shows.
RESULT_TRIALS = 100

#: Exit codes of a command that waits.
EXIT_CODES = {"succeeded": 0, "failed": 1, "cancelled": 3}
INTERRUPTED = 130

as_json = click.option("--json", "as_json", is_flag=True, help="Print the API's JSON and nothing else.")


@click.command(
    epilog="""\b
Examples:
  aeo status
  aeo status --state running --limit 5
  aeo status my-evaluation
  aeo status my-evaluation --json | jq .scores"""
)
@click.argument("id", required=False, metavar="[ID|NAME]")
@click.option("--state", type=click.Choice([s.value for s in EvaluationState]), help="List only those in this state.")
@click.option("--limit", type=click.IntRange(1, 1000), default=20, show_default=True, help="List at most so many.")
@click.option("--offset", type=click.IntRange(0), default=0, show_default=True, help="Leave out so many newest.")
@as_json
def status(id: str | None, state: str | None, limit: int, offset: int, as_json: bool) -> None:
    """List evaluations, newest first, or show one in detail."""
    client = connect()
    if id is not None:
        body = client.evaluation(id)
        if as_json:
            show.as_json(body)
        else:
            view = views.evaluation(body)
            show.evaluation(view)
            show.warnings(view.warnings)
            _say_who_is_missing(client, [view])
        return
    body = client.evaluations(offset=offset, limit=limit, state=state)
    if as_json:
        show.as_json(body)
        return
    page = views.evaluations(body)
    if not page:
        click.echo("No evaluations. Submit one: aeo submit FILE", err=True)
        return
    show.evaluations(page)
    left = views.total(body) - offset - len(page)
    if left > 0:
        click.echo(f"{left} older ones: aeo status --offset {offset + len(page)}", err=True)
    _say_who_is_missing(client, page)


def _say_who_is_missing(client: Client, seen: Sequence[EvaluationView]) -> None:
    """Why what waits is not begun, where that is no affair of its own."""
    if not any(view.state == EvaluationState.RUNNING.value for view in seen):
        return
    with suppress(AeoError):
        for item in client.alerts().get("alerts") or ():
            if item.get("kind") == Kind.NO_WORKER.value:
                click.echo(clean(item.get("text", "")), err=True)


@click.command(
    epilog="""\b
Exit codes: 0 succeeded, 1 failed, 3 cancelled, 130 interrupted (it runs on).

\b
Examples:
  aeo watch my-evaluation
  aeo watch 3f2a90c1d4e5 --json > result.json"""
)
@click.argument("id", metavar="ID|NAME")
@as_json
def watch(id: str, as_json: bool) -> None:
    """Follow an evaluation to its end and print its result."""
    client = connect()
    wait(client, views.evaluation(client.evaluation(id)), as_json=as_json)


@click.command(
    epilog="""\b
Examples:
  aeo cancel my-evaluation
  aeo cancel 3f2a90c1d4e5 --json"""
)
@click.argument("id", metavar="ID|NAME")
@as_json
def cancel(id: str, as_json: bool) -> None:
    """Stop an evaluation: what runs is stopped, what is finished is kept and merged."""
    body = connect().cancel(id)
    if as_json:
        show.as_json(body)
        return
    view = views.accepted(body)
    click.echo(f"{view.name} ({view.id}) is {view.state}: {show.done(view)}.")
    if not view.final:
        click.echo(f"Running trials are being stopped. Follow it: aeo watch {view.id}")


@click.command(
    epilog="""\b
Examples:
  aeo pause my-evaluation
  aeo pause my-evaluation --reason "the model's quota is used up"
  aeo pause 3f2a90c1d4e5 --json"""
)
@click.argument("id", metavar="ID|NAME")
@click.option("--reason", default="", help="Why; shown wherever the evaluation is.")
@as_json
def pause(id: str, reason: str, as_json: bool) -> None:
    """Let no further trial start until the evaluation is resumed; what runs goes on."""
    body = connect().pause(id, reason)
    if as_json:
        show.as_json(body)
        return
    view = views.accepted(body)
    click.echo(f"{show.standing(view)}: {show.done(view)}, {view.running} running to their end.")
    click.echo(f"Resume it: aeo resume {view.id}")


@click.command(
    epilog="""\b
Examples:
  aeo resume my-evaluation
  aeo resume 3f2a90c1d4e5 --json"""
)
@click.argument("id", metavar="ID|NAME")
@as_json
def resume(id: str, as_json: bool) -> None:
    """Let a paused evaluation go on, whoever paused it."""
    body = connect().resume(id)
    if as_json:
        show.as_json(body)
        return
    view = views.accepted(body)
    click.echo(f"{view.name} ({view.id}) is {view.state}: {show.done(view)}, {view.pending} waiting.")


def wait(client: Client, view: EvaluationView, *, as_json: bool) -> None:
    """Follow an evaluation to its end, print its result and exit with its code.

    Interrupted, it leaves the evaluation running.
    """
    try:
        body = follow(client, view.id)
    except KeyboardInterrupt:
        click.echo(f"Interrupted; {view.name} ({view.id}) runs on.", err=True)
        click.echo(f"Follow it: aeo watch {view.id}. Stop it: aeo cancel {view.id}.", err=True)
        click.get_current_context().exit(INTERRUPTED)
    end = views.evaluation(body)
    if as_json:
        show.as_json(body)
    else:
        trials = client.trials(view.id, limit=RESULT_TRIALS)
        show.result(end, views.trials(trials), views.total(trials))
    click.get_current_context().exit(EXIT_CODES.get(end.state, 1))


def follow(client: Client, id: str) -> Body:
    """Look at an evaluation until it has ended, showing how it goes; returns the last answer.

    Raises:
        Unavailable: the controller stayed away too long; the evaluation is not harmed by that.
    """
    said = ""
    with show.bar() as bar:
        while True:
            body = _patiently(lambda: client.evaluation(id), bar.say, id)
            view = views.evaluation(body)
            bar.update(view)
            if view.final:
                return body
            remark = _standstill(view)
            if remark != said:
                bar.say(remark or f"{view.name} goes on.")
                said = remark
            time.sleep(POLL_SECONDS)


def _standstill(view: EvaluationView) -> str:
    """Why nothing new starts, and what to do; "" while it goes on."""
    if view.state == EvaluationState.PAUSED.value:
        return f"{show.standing(view)}. Waiting until somebody resumes it: aeo resume {view.id}"
    return show.standing(view) + "." if show.reason(view) else ""


def _patiently(look: Callable[[], Body], say: Callable[[str], None], id: str) -> Body:
    """Call ``look`` until the controller answers, with growing pauses."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    pause, away = POLL_SECONDS, False
    while True:
        try:
            body = look()
        except Unavailable as error:
            if time.monotonic() + pause > deadline:
                raise Unavailable(f"{error} The evaluation is not touched by that; later: aeo watch {id}.") from None
            if not away:
                say(f"{error} Trying again for {show.span(PATIENCE_SECONDS)}; the evaluation is not touched by that.")
            away = True
            time.sleep(pause)
            pause = min(pause * 2, _LONGEST_PAUSE)
        else:
            if away:
                say("The controller answers again.")
            return body
