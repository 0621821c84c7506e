"""Steps in order, each shown with its result and time.

A step first looks whether it has anything to do, at the machine itself: that is how a second run goes on where the
first stopped, whatever ended the first.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum

from aeo.core.errors import AeoError, InputError, Unavailable

#: How lines of a trace begin, beside those that are indented.
_TRACE = ("Traceback (most recent", "During handling of the above", "The above exception was", "  File ")


class StepState(str, Enum):
    """How a step stands."""

    RUNNING = "running"
    DONE = "done"
    #: There was nothing to do.
    KEPT = "kept"
    #: A dry run: it would be done.
    WOULD = "would"
    #: Before the one that was asked for.
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that became known of a step."""

    step: str
    state: StepState
    #: For people: what was found, done or would be done.
    text: str = ""
    seconds: float = 0.0
    #: Of a failure: the last lines of the command, and what to do.
    lines: tuple[str, ...] = ()
    fix: str = ""
    #: What a person should know although the step went well.
    notes: tuple[str, ...] = ()


class StepFailed(Unavailable):
    """A step could not be done."""

    def __init__(self, why: str, *, lines: Sequence[str] = (), fix: str = ""):
        self.why, self.lines, self.fix = why.rstrip(".") + ".", tuple(lines), fix
        #: Put in by `run`.
        self.step = self.host = ""
        super().__init__(why)

    def __str__(self) -> str:
        head = f"{self.step} on {self.host}: {self.why}" if self.step else self.why
        return "\n".join((head, *(f"  | {line}" for line in self.lines), *([self.fix] if self.fix else [])))


@dataclass(frozen=True, kw_only=True)
class Done:
    """What a step says at its end."""

    text: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Step:
    """One thing to do."""

    name: str
    #: What it does, for people.
    title: str
    #: What there is already; "" when something is to be done.
    look: Callable[[], str]
    do: Callable[[], Done]
    #: It changes nothing, so that a dry run does it too, and nothing can go without it.
    reads: bool = False


def run(
    steps: Sequence[Step],
    say: Callable[[Event], None],
    *,
    host: str,
    dry_run: bool = False,
    first: str = "",
) -> None:
    """Do these steps; ``first`` is the one to begin with, those before it that change something are left out.

    Raises:
        InputError: there is no step ``first``, or the input cannot be worked with.
        StepFailed: one failed; it names step and host.
    """
    names = [step.name for step in steps]
    if first:
        check_name(first, names)
    begun, away = not first, False
    for step in steps:
        begun = begun or step.name == first
        if not begun and not step.reads:
            say(Event(step=step.name, state=StepState.SKIPPED))
            continue
        away = _one(step, say, host=host, dry_run=dry_run, away=away)


def reasons(lines: Sequence[str]) -> list[str]:
    """Lines without the traces of Python, which say where and not why; as they are where nothing else is there."""
    found = [line for line in lines if line.strip() and not line.startswith((" ", "\t", *_TRACE))]
    return found or list(lines)


def check_name(first: str, names: Sequence[str]) -> None:
    """See that a step has this name.

    Raises:
        InputError: none has.
    """
    if first not in names:
        raise InputError(f"{first!r} is no step.", field="--from", fix=f"Steps: {', '.join(names)}.")


def _one(step: Step, say: Callable[[Event], None], *, host: str, dry_run: bool, away: bool) -> bool:
    """Do one; ``away``: a step before it would have to be done first. Returns whether one had."""
    start = time.monotonic()
    say(Event(step=step.name, state=StepState.RUNNING, text=step.title))
    try:
        found = "" if step.reads or away else step.look()
        if found:
            event = Event(step=step.name, state=StepState.KEPT, text=found)
        elif dry_run and not step.reads:
            event, away = Event(step=step.name, state=StepState.WOULD, text=step.title), True
        else:
            done = step.do()
            event = Event(step=step.name, state=StepState.DONE, text=done.text, notes=done.notes)
    except (AeoError, OSError, subprocess.SubprocessError) as error:
        failed = _failed(error, step.name, host)
        taken = time.monotonic() - start
        say(
            Event(
                step=step.name,
                state=StepState.FAILED,
                text=failed.why,
                seconds=taken,
                lines=failed.lines,
                fix=failed.fix,
            )
        )
        raise failed from error
    say(_timed(event, time.monotonic() - start))
    return away


def _timed(event: Event, seconds: float) -> Event:
    return Event(step=event.step, state=event.state, text=event.text, seconds=round(seconds, 2), notes=event.notes)


def _failed(error: Exception, step: str, host: str) -> StepFailed:
    if isinstance(error, StepFailed):
        failed = error
    elif isinstance(error, InputError):
        problem = error.problems[0]
        failed = StepFailed(
            f"{problem.field}: {problem.message}" if problem.field else problem.message, fix=problem.fix
        )
    elif isinstance(error, AeoError):
        failed = StepFailed(str(error))
    else:
        # What a person can do about it is in its words, such as a disk that is full.
        failed = StepFailed(f"{type(error).__name__}: {error}")
    failed.step, failed.host = step, host
    return failed
