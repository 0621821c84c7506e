"""Statistics of a job from its rows, as Harbor's job files state them. Pure; one pass, linear in the rows.

A trial belongs to the group of its labels ``agent``, ``model`` (without its provider) and ``dataset``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aeo.core.model import Outcome, TrialRow, TrialSummary

#: Error type of a trial that was stopped by a person.
CANCELLED = "CancelledError"
#: Dataset of tasks that belong to none.
NO_DATASET = "adhoc"


def of(rows: Iterable[TrialRow], *, total: int, running: int = 0, retries: int = 0) -> dict[str, Any]:
    """Return the ``stats`` of a job of ``total`` trials of which ``rows`` have ended.

    Rows of trials that were cancelled before they ran have no folder: they count as pending, as in a job that was
    interrupted on one machine.
    """
    groups: dict[str, _Group] = {}
    sums = _Sums()
    for row in rows:
        summary = row.summary
        if summary.outcome is Outcome.CANCELLED and summary.started_at is None:
            continue
        sums.add(summary)
        groups.setdefault(group_key(summary.labels), _Group()).add(summary)
    return {
        "n_completed_trials": sums.completed,
        "n_errored_trials": sums.errored,
        "n_running_trials": running,
        "n_pending_trials": max(total - sums.completed - running, 0),
        "n_cancelled_trials": sums.cancelled,
        "n_retries": retries,
        "evals": {key: group.document() for key, group in groups.items()},
        "n_input_tokens": sums.input_tokens,
        "n_cache_tokens": sums.cache_tokens,
        "n_output_tokens": sums.output_tokens,
        "cost_usd": sums.cost_usd,
    }


def group_key(labels: Mapping[str, str]) -> str:
    """Name of the group a trial's numbers go into: ``agent[__model]__dataset``."""
    parts = (labels.get("agent") or "unknown", labels.get("model"), labels.get("dataset") or NO_DATASET)
    return "__".join(part for part in parts if part)


@dataclass(kw_only=True)
class _Sums:
    completed: int = 0
    errored: int = 0
    cancelled: int = 0
    input_tokens: int | None = None
    cache_tokens: int | None = None
    output_tokens: int | None = None
    cost_usd: float | None = None

    def add(self, summary: TrialSummary) -> None:
        self.completed += 1
        self.errored += bool(summary.error_types)
        self.cancelled += CANCELLED in summary.error_types
        for name in ("input_tokens", "cache_tokens", "output_tokens", "cost_usd"):
            value = getattr(summary, name)
            if value is not None:
                setattr(self, name, (getattr(self, name) or 0) + value)


@dataclass(kw_only=True)
class _Group:
    scored: int = 0
    errors: int = 0
    #: Reward name to the sum over the trials that have it.
    sums: dict[str, float] = field(default_factory=dict)
    #: Reward name, value, trials.
    rewards: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    exceptions: dict[str, list[str]] = field(default_factory=dict)
    #: Task to the number of its scored trials and of its passed ones.
    tasks: dict[str, tuple[int, int]] = field(default_factory=dict)
    #: Whether every trial so far had one reward, 0 or 1.
    binary: bool = True

    def add(self, summary: TrialSummary) -> None:
        if summary.outcome is Outcome.SCORED and summary.rewards:
            self._score(summary)
        for error_type in sorted(set(summary.error_types)):
            self.exceptions.setdefault(error_type, []).append(summary.trial)
        self.errors += bool(summary.error_types)

    def _score(self, summary: TrialSummary) -> None:
        self.scored += 1
        for name, value in summary.rewards.items():
            self.sums[name] = self.sums.get(name, 0) + value
            self.rewards.setdefault(name, {}).setdefault(repr(value), []).append(summary.trial)
        values = list(summary.rewards.values())
        self.binary = self.binary and len(values) == 1 and values[0] in (0, 1)
        if self.binary:
            tried, passed = self.tasks.get(summary.task, (0, 0))
            self.tasks[summary.task] = (tried + 1, passed + int(values[0]))

    def document(self) -> dict[str, Any]:
        return {
            "n_trials": self.scored,
            "n_errors": self.errors,
            "metrics": [self._mean()] if self.scored else [],
            "pass_at_k": pass_at_k(self.tasks.values()) if self.binary else {},
            "reward_stats": self.rewards,
            "exception_stats": self.exceptions,
        }

    def _mean(self) -> dict[str, float]:
        # A trial without a reward that others have counts 0 for it.
        if len(self.sums) == 1:
            return {"mean": next(iter(self.sums.values())) / self.scored}
        return {name: self.sums[name] / self.scored for name in sorted(self.sums)}


def pass_at_k(tasks: Iterable[tuple[int, int]]) -> dict[str, float]:
    """The unbiased pass@k over ``(tried, passed)`` per task, for the k that every task has enough trials for.

    k is a power of two or a multiple of five, from 2 on; empty when no such k fits.
    """
    counts = list(tasks)
    if not counts:
        return {}
    most = min(tried for tried, _ in counts)
    powers = {2**n for n in range(1, most.bit_length()) if 2**n <= most}
    chosen = sorted(powers | set(range(5, most + 1, 5)))
    return {str(k): sum(_pass(tried, passed, k) for tried, passed in counts) / len(counts) for k in chosen}


def _pass(tried: int, passed: int, k: int) -> float:
    """Chance that at least one of ``k`` trials drawn from ``tried`` passed."""
    failed = tried - passed
    if failed < k:
        return 1.0
    none = 1.0
    for i in range(k):
        none *= (failed - i) / (tried - i)
    return 1.0 - none
