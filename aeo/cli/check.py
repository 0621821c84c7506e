"""What a check says, for a terminal."""

from __future__ import annotations

from dataclasses import dataclass

import click

from aeo.cli import show
from aeo.cli.answers import Body, clean
from aeo.core.errors import Problem
from aeo.core.words import count, listed


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one worker would get; seconds None is unknown."""

    worker: str
    trials: int
    slots: int
    busy: int
    seconds: float | None


@dataclass(frozen=True, kw_only=True)
class CheckView:
    """A check, of which every answer can be shown."""

    name: str
    executor: str
    trials: int
    #: Those of them whose result is taken over.
    carried: int
    tasks: int
    seconds: float | None
    known: int
    #: Agent, model, trials.
    agents: tuple[tuple[str, str, int], ...]
    shares: tuple[Row, ...]
    #: Worker and why.
    unfit: tuple[tuple[str, str], ...]
    #: Keys of the limits of model providers that hold for it.
    limits: tuple[str, ...]
    problems: tuple[Problem, ...]
    warnings: tuple[str, ...]


def read(body: Body) -> CheckView:
    """Read an answer of the controller, of whatever version."""
    return CheckView(
        name=_text(body, "name"),
        executor=f"{_text(body, 'executor')} {_text(body, 'version')}".strip(),
        trials=_count(body, "trials"),
        carried=_count(body, "carried"),
        tasks=_count(body, "tasks"),
        seconds=_number(body, "estimated_seconds"),
        known=_count(body, "known"),
        agents=tuple(
            (_text(item, "agent"), _text(item, "model"), _count(item, "trials")) for item in _items(body, "agents")
        ),
        shares=tuple(
            Row(
                worker=_text(item, "worker"),
                trials=_count(item, "trials"),
                slots=_count(item, "slots"),
                busy=_count(item, "busy"),
                seconds=_number(item, "estimated_seconds"),
            )
            for item in _items(body, "shares")
        ),
        unfit=tuple((_text(item, "worker"), _text(item, "reason")) for item in _items(body, "unfit")),
        limits=tuple(map(clean, body.get("limits") or ())),
        problems=tuple(
            Problem(message=_text(item, "message"), field=_text(item, "field"), fix=_text(item, "fix"))
            for item in _items(body, "problems")
        ),
        warnings=tuple(clean(item) for item in body.get("warnings") or ()),
    )


def show_plan(view: CheckView) -> None:
    """Print what would be run where; problems are told as errors are."""
    if view.trials:
        name = f"{view.name}: " if view.name else ""
        kept = f", {view.carried} with the earlier result" if view.carried else ""
        click.echo(f"{name}{count(view.trials, 'trial')} of {count(view.tasks, 'task')}{kept}, {view.executor}")
        click.echo(f"Estimated time: {_span(view.seconds)}{_basis(view)}")
    if len(view.agents) > 1:
        click.echo()
        rows = [(agent, model or "-", str(trials)) for agent, model, trials in view.agents]
        show.table(("agent", "model", "trials"), rows, right=("trials",))
    if view.shares:
        click.echo()
        show.table(
            ("worker", "trials", "slots", "busy now", "estimated time"),
            [(row.worker, str(row.trials), str(row.slots), str(row.busy), _span(row.seconds)) for row in view.shares],
            right=("trials", "slots", "busy now"),
        )
    if view.unfit:
        click.echo()
        show.table(("worker that does not fit", "reason"), view.unfit)
    if not view.problems:
        click.echo("\nIt can be run. Nothing was started.")


def _basis(view: CheckView) -> str:
    if view.seconds is None:
        return " (too few of its tasks ran before)"
    limits = "limit" if len(view.limits) == 1 else "limits"
    held = f", under the {limits} of {listed(view.limits)}" if view.limits else ""
    past = f"from past runs of {view.known} of {count(view.trials - view.carried, 'trial')}"
    return f" when all its slots are free{held}, {past}"


def _span(seconds: float | None) -> str:
    return "unknown" if seconds is None else show.span(seconds)


def _items(body: Body, key: str) -> list[Body]:
    value = body.get(key)
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def _text(body: Body, key: str) -> str:
    value = body.get(key)
    return "" if value is None else clean(value)


def _number(body: Body, key: str) -> float | None:
    value = body.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _count(body: Body, key: str) -> int:
    return int(_number(body, key) or 0)
