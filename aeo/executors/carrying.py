"""What an executor may offer beside running trials: its results can be taken over by another evaluation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from aeo.core.model import Evaluation, Plan, PlannedTrial, Spec
from aeo.executors import Executor


class Carrier(Protocol):
    """An executor's member ``carrier``."""

    def identities(self, spec: Spec, plan: Plan) -> Iterable[Mapping[str, Any]]:
        """For each planned trial all that makes it what it is beside its task, the task's content and its labels.

        Trials of two evaluations with equal identities measure the same. They are JSON values, in which nothing names
        the evaluation, its folders or the trial.
        """

    def carry(self, evaluation: Evaluation, trial: PlannedTrial, trial_dir: Path, final_dir: str) -> None:
        """Make the finished folder of an equal trial of another evaluation that of ``trial``.

        ``trial_dir`` is a copy and holds regular files only; it will lie at ``final_dir``. Wherever the results name
        the evaluation they are from, they name this one afterwards; what happened stays as it is.

        Raises:
            InputError: it is no result.
        """


def carrier_of(executor: Executor) -> Carrier | None:
    """How an executor's results are taken over; None when they cannot be."""
    found: Carrier | None = getattr(executor, "carrier", None)
    return found
