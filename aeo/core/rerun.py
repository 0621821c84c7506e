"""Which results of an earlier evaluation are results of trials planned now. Pure.

A result is taken over when it is good, and its trial is the same as the planned one: the same task with the same
content, agent, model and dataset, the same attempt, and equal in all else that its executor says makes a trial what it
is. Attempts count among equal trials, so that of two agents with one name none gets the other's result.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aeo.core.model import Outcome, PlannedTrial, TrialRow

#: Labels that are part of what a trial is; the others describe its task.
LABELS = ("agent", "model", "provider", "dataset")
#: Differences named in a reason.
_SHOWN = 3
#: Characters of a value shown in a reason.
_LONGEST = 40

NEVER_RAN = "never ran to the end"
CONTENT = "a good result, but the task's content changed since"
NEW = "not part of it"


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Which results are not good enough to be taken over; a trial that was stopped has none in any case."""

    #: A result is chosen when one of its recorded error types is among these.
    errors: frozenset[str] = frozenset()
    outcomes: frozenset[Outcome] = frozenset()

    def why(self, row: TrialRow) -> str:
        """Why a result was chosen to be run again; "" when it was not."""
        summary = row.summary
        for error in (summary.error_type, *summary.error_types):
            if error in self.errors:
                return f"ended with {error}"
        return f"ended as {summary.outcome.value}" if summary.outcome in self.outcomes else ""


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A trial of either plan, and all else that makes it what it is, as JSON values."""

    trial: PlannedTrial
    identity: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Ran(Planned):
    """A trial of the earlier evaluation."""

    #: What came out of it; None when it never ran.
    row: TrialRow | None = None


@dataclass(frozen=True, kw_only=True)
class Match:
    """What is taken over, and what is run."""

    #: New trial to the earlier one whose result it gets, by name, in planned order.
    carried: Mapping[str, str] = field(default_factory=dict)
    #: New trial to why it is run.
    run: Mapping[str, str] = field(default_factory=dict)
    #: Earlier trials with a good result that nothing planned now is like.
    left: tuple[str, ...] = ()

    def without(self, refused: Mapping[str, str]) -> Match:
        """The same with some of the new trials run, each for its reason."""
        kept = {new: old for new, old in self.carried.items() if new not in refused}
        return replace(self, carried=kept, run={**self.run, **refused})


def match(before: Sequence[Ran], planned: Sequence[Planned], choice: Choice) -> Match:
    """Find for each planned trial the earlier one that it is."""
    equals = dict(zip(_numbered(map(_equal, before)), before, strict=True))
    partners = [equals.pop(mark, None) for mark in _numbered(map(_equal, planned))]
    # Those that found no equal are told what is different from the one in their place.
    others: dict[tuple[str, ...], list[Ran]] = defaultdict(list)
    for ran in equals.values():
        others[_place(ran.trial)].append(ran)
    carried: dict[str, str] = {}
    run: dict[str, str] = {}
    for item, partner in zip(planned, partners, strict=True):
        if partner is None:
            queue = others[_place(item.trial)]
            run[item.trial.name] = _why_not(queue.pop(0), item, choice) if queue else NEW
        elif reason := _bad(partner, choice):
            run[item.trial.name] = reason
        else:
            carried[item.trial.name] = partner.trial.name
    left = tuple(ran.trial.name for queue in others.values() for ran in queue if not _bad(ran, choice))
    return Match(carried=carried, run=run, left=left)


def _place(trial: PlannedTrial) -> tuple[str, ...]:
    return (trial.task, *(trial.labels.get(name, "") for name in LABELS))


def _equal(item: Planned) -> tuple[str, ...]:
    """The same for equal trials."""
    identity = hashlib.sha256(json.dumps(item.identity, sort_keys=True).encode()).hexdigest()
    return (*_place(item.trial), item.trial.content, identity)


def _numbered(marks: Iterable[tuple[str, ...]]) -> Iterator[tuple[tuple[str, ...], int]]:
    """Each mark with how many equal ones came before it."""
    seen: dict[tuple[str, ...], int] = {}
    for mark in marks:
        seen[mark] = seen.get(mark, 0) + 1
        yield mark, seen[mark]


def _bad(ran: Ran, choice: Choice) -> str:
    """Why there is no result that could be taken over; "" when there is one."""
    if ran.row is None or ran.row.attempt < 1 or ran.row.summary.outcome is Outcome.CANCELLED:
        return NEVER_RAN
    return choice.why(ran.row)


def _why_not(ran: Ran, item: Planned, choice: Choice) -> str:
    if reason := _bad(ran, choice):
        return reason
    if ran.trial.content != item.trial.content:
        return CONTENT
    return f"a good result, but of another trial: {differences(ran.identity, item.identity)}"


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """What is different, in words: ``agent_timeout_multiplier is 1.0, was 3.0``."""
    old, new = dict(_leaves(before)), dict(_leaves(now))
    paths = [path for path in sorted({*old, *new}) if old.get(path) != new.get(path)]
    told = [_told(path, old.get(path), new.get(path)) for path in paths[:_SHOWN]]
    more = len(paths) - len(told)
    if not paths:
        return "what is empty in one is left out in the other"
    return "; ".join(told) + (f"; and {more} more" if more else "")


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _leaves(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, (list, tuple)) and value:
        for index, item in enumerate(value):
            yield from _leaves(item, f"{path}[{index}]")
    elif not isinstance(value, (Mapping, list, tuple)):
        yield path, value


def _told(path: str, before: Any, now: Any) -> str:
    old, new = (json.dumps(value, ensure_ascii=False) for value in (before, now))
    if max(len(old), len(new)) > _LONGEST:
        return f"{path} is another one"
    words = {"null": "not set"}
    return f"{path} is {words.get(new, new)}, was {words.get(old, old)}"
