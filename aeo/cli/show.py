"""Tables and progress on a terminal. Results go to standard output, progress and remarks to standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import IO, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.table import Table

from aeo.cli.answers import Body
from aeo.cli.views import EvaluationView, RunView, ScoreView, ShareView, TrialView, WorkerView
from aeo.core.model import EvaluationState
from aeo.core.words import count

#: Seconds between two lines of progress where there is no terminal.
LINE_SECONDS = 5.0
#: Columns where there is no terminal: nothing is cut or wrapped in a log or a pipe.
_WIDE = 400


def as_json(body: Body) -> None:
    """Print one JSON document; control characters are escaped, so that it is safe on a terminal too."""
    click.echo(json.dumps(body, indent=2))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Sequence[str] = ()) -> None:
    """Print a table; columns named in ``right`` are numbers."""
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        shown.add_column(column, justify="right" if column in right else "left", overflow="fold")
    for row in rows:
        shown.add_row(*row)
    _console(sys.stdout).print(shown)


def evaluations(views: Sequence[EvaluationView]) -> None:
    """Print a list of evaluations; reasons only where there are any."""
    reasons = any(map(reason, views))
    table(
        ("id", "name", "state", "done", "outcomes", "coverage", "submitted", "age", *(("reason",) if reasons else ())),
        [
            (
                *(view.id, view.name, view.state, f"{view.done}/{view.total}", outcomes(view) or "-"),
                *(coverage(view.scored, view.total), local(view.submitted_at), age(view.submitted_at)),
                *((reason(view),) if reasons else ()),
            )
            for view in views
        ],
        right=("done",),
    )


def evaluation(view: EvaluationView) -> None:
    """Print what one evaluation is and where it stands."""
    counts = (("running", view.running), ("pushed", view.pushed), ("waiting", view.pending))
    lines = {
        "id": view.id,
        "state": f"{view.state} ({view.reason})" if view.reason else view.state,
        "to go on": f"aeo resume {view.id}" if view.state == EvaluationState.PAUSED.value else "",
        "executor": view.executor,
        "rerun of": f"{view.parent_name} ({view.parent})" if view.parent_name else view.parent,
        "rerun by": ", ".join(f"{name} ({id}), {state}" for id, name, state in view.reruns),
        "stops when": view.rule,
        "submitted": f"{local(view.submitted_at)} ({age(view.submitted_at)} ago)",
        "finished": local(view.finished_at) if view.finished_at else "",
        "trials": ", ".join([done(view), *(f"{count} {name}" for name, count in counts if count)]),
        "requeues": str(view.requeues) if view.requeues else "",
        "coverage": coverage(view.scored, view.total),
        "ETA": span(view.eta_seconds) if view.eta_seconds is not None and not view.final else "",
        "job folder": view.job_dir,
    }
    click.echo(view.name)
    for name, value in lines.items():
        if value:
            click.echo(f"  {name:<12}{value}")
    scores(view.scores)
    shares(view.shares)
    runs(view.runs)


def result(view: EvaluationView, trials: Sequence[TrialView], total: int) -> None:
    """Print how an evaluation ended: its trials, its scores with coverage, its job folder."""
    trial_table(trials)
    if total > len(trials):
        click.echo(f"… {count(total - len(trials), 'more trial')}: in the job folder and on the controller's page.")
    scores(view.scores)
    click.echo()
    click.echo(f"{view.name} {view.state}" + (f" ({view.reason})" if view.reason else ""))
    click.echo(f"{done(view)}; coverage {coverage(view.scored, view.total)}")
    if view.job_dir:
        click.echo(f"Job folder: {view.job_dir}")


def trial_table(trials: Sequence[TrialView]) -> None:
    """Print trials with their results."""
    if not trials:
        return
    click.echo()
    table(
        ("task", "trial", "outcome", "reward", "worker", "seconds", "error"),
        [
            (
                *(item.task, item.trial, item.outcome or item.state, numbers(item.rewards), item.worker or "-"),
                *("-" if item.seconds is None else f"{item.seconds:.1f}", item.error),
            )
            for item in trials
        ],
        right=("seconds",),
    )


def scores(items: Sequence[ScoreView]) -> None:
    """Print mean rewards, each beside its coverage."""
    if not items:
        return
    labels = list(dict.fromkeys(name for item in items for name in item.labels))
    click.echo()
    table(
        (*labels, "mean reward", "coverage"),
        [
            (
                *(item.labels.get(name, "-") for name in labels),
                *(means(item), coverage(item.scored, item.planned)),
            )
            for item in items
        ],
    )


def shares(items: Sequence[ShareView]) -> None:
    """Print each worker's part of an evaluation."""
    if not items:
        return
    click.echo()
    rows = [(item.worker, str(item.waiting), str(item.running), str(item.done)) for item in items]
    table(("worker", "waiting", "running", "done"), rows, right=("waiting", "running", "done"))


def runs(items: Sequence[RunView]) -> None:
    """Print the trials that run now, longest first."""
    if not items:
        return
    click.echo()
    epoch = datetime.max.replace(tzinfo=timezone.utc)
    rows = [
        (item.trial, item.worker, str(item.attempt), item.phase or "-", age(item.started_at))
        for item in sorted(items, key=lambda item: item.started_at or epoch)
    ]
    table(("running trial", "worker", "attempt", "phase", "for"), rows, right=("attempt",))


def workers(items: Iterable[WorkerView]) -> None:
    """Print the workers."""
    table(
        ("id", "state", "slots busy", "queued", "weight", "cpus", "memory", "heartbeat", "executors", "note"),
        [
            (
                *(item.id, item.state, f"{item.busy}/{item.slots}", str(item.queued)),
                f"{item.weight:g} ({'set' if item.weight_set else 'auto'})",
                f"{item.cpus:g}" + _load(item.cpu_percent),
                f"{item.memory_mb / 1024:.1f} GiB" + _load(item.memory_percent),
                "-" if item.heartbeat_age is None else f"{span(item.heartbeat_age)} ago",
                ", ".join(f"{name} {version}".strip() for name, version in sorted(item.executors.items())),
                item.note,
            )
            for item in items
        ],
        right=("slots busy", "queued", "weight"),
    )


def warnings(items: Iterable[str]) -> None:
    """Print warnings to standard error."""
    for item in items:
        click.echo(f"Warning: {item}", err=True)


def reason(view: EvaluationView) -> str:
    """Why it does not go on, or did not succeed; "" where nothing needs a reason."""
    stuck = view.state in (EvaluationState.PAUSED.value, EvaluationState.FAILED.value)
    return view.reason if stuck or view.reason.startswith("waiting") else ""


def standing(view: EvaluationView) -> str:
    """``nightly (3f2a90c1d4e5) is paused (why)``."""
    why = f" ({view.reason})" if view.reason else ""
    return f"{view.name} ({view.id}) is {view.state}{why}"


def done(view: EvaluationView) -> str:
    """``7/12 done (scored 6, infra_error 1)``."""
    by_outcome = outcomes(view)
    return f"{view.done}/{view.total} done" + (f" ({by_outcome})" if by_outcome else "")


def outcomes(view: EvaluationView) -> str:
    """``scored 6, infra_error 1``."""
    return ", ".join(f"{name} {count}" for name, count in view.outcomes.items())


def coverage(scored: int, planned: int) -> str:
    """``6 of 12 scored (50 %)``."""
    percent = f" ({100 * scored // planned} %)" if planned else ""
    return f"{scored} of {planned} scored{percent}"


def numbers(values: Mapping[str, float]) -> str:
    """One reward as a number, several with their names."""
    if len(values) == 1:
        return f"{next(iter(values.values())):.3g}"
    return " ".join(f"{name}={value:.3g}" for name, value in values.items()) or "-"


def means(item: ScoreView) -> str:
    """Mean rewards; one that rests on fewer trials than were scored says on how many."""
    if len(item.means) == 1 and list(item.counts.values()) == [item.scored]:
        return numbers(item.means)
    return (
        " ".join(
            f"{name}={value:.3g}" + ("" if (n := item.counts.get(name)) in (None, item.scored) else f" (of {n:.0f})")
            for name, value in item.means.items()
        )
        or "-"
    )


def local(moment: datetime | None) -> str:
    """A time in the zone of this machine."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(moment: datetime | None) -> str:
    """How long ago a time was."""
    return "-" if moment is None else span((datetime.now(timezone.utc) - moment).total_seconds())


def span(seconds: float) -> str:
    """A duration in its two largest units: ``2h 05m``."""
    whole = max(0, round(min(seconds, 1e18)))
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m {whole % 60:02}s"
    if whole < 86400:
        return f"{whole // 3600}h {whole % 3600 // 60:02}m"
    return f"{whole // 86400}d {whole % 86400 // 3600:02}h"


@contextmanager
def busy(text: str) -> Iterator[None]:
    """Show that something takes its time, on a terminal."""
    console = _console(sys.stderr)
    if console.is_terminal and not console.is_dumb_terminal:
        with console.status(text):
            yield
    else:
        yield


class Bar(Protocol):
    """Shows where an evaluation stands while it is followed."""

    def update(self, view: EvaluationView) -> None:
        """Show a newer state."""

    def say(self, text: str) -> None:
        """Show a remark that stays."""


@contextmanager
def bar() -> Iterator[Bar]:
    """A live bar on a terminal, else lines now and then."""
    console = _console(sys.stderr)
    if not console.is_terminal or console.is_dumb_terminal:
        yield _Lines()
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
    )
    with Progress(*columns, console=console, refresh_per_second=4) as progress:
        yield _Live(progress)


class _Live:
    def __init__(self, progress: Progress):
        self._progress = progress
        self._task: TaskID | None = None

    def update(self, view: EvaluationView) -> None:
        if self._task is None:
            self._task = self._progress.add_task(view.name, total=view.total or None, note="")
        self._progress.update(self._task, completed=view.done, note=_note(view))

    def say(self, text: str) -> None:
        self._progress.console.print(text)


class _Lines:
    def __init__(self) -> None:
        self._last = ""
        self._at = float("-inf")

    def update(self, view: EvaluationView) -> None:
        # Without the ETA, which changes even when nothing happens.
        line = f"{view.name}: {done(view)}, {_standing(view)}"
        now = time.monotonic()
        if line != self._last and (view.final or now - self._at >= LINE_SECONDS):
            self._last, self._at = line, now
            click.echo(line + _eta(view), err=True)

    def say(self, text: str) -> None:
        click.echo(text, err=True)


def _note(view: EvaluationView) -> str:
    return ", ".join(part for part in (outcomes(view), _standing(view)) if part) + _eta(view)


def _standing(view: EvaluationView) -> str:
    return f"{view.running} running" if view.state == "running" else view.state


def _eta(view: EvaluationView) -> str:
    return "" if view.final or view.eta_seconds is None else f", ETA {span(view.eta_seconds)}"


def _load(percent: float | None) -> str:
    return "" if percent is None else f" ({percent:.0f} %)"


def _console(file: IO[str]) -> Console:
    width = None if file.isatty() else _WIDE
    return Console(file=file, width=width, highlight=False, markup=False, emoji=False)
