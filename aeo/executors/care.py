"""What an executor may offer besides running trials: it knows what its trials use of a machine, and what they leave."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from aeo.core.condition import Condition
from aeo.executors import Executor


class Care(Protocol):
    """An executor's member ``care``. Nothing here may need more than a minute, or make anything."""

    def conditions(self, local_root: Path, slots: int) -> Iterable[Condition]:
        """Judge what trials need here besides AEO: programs, an engine, their versions; and what dead ones left.

        ``local_root`` is the worker's own folder, which may not be there yet. With no ``slots`` no trial runs here:
        evaluations are only planned and merged.
        """

    def folders(self) -> Sequence[Path]:
        """Folders that trials fill outside of AEO's own; those that this user cannot look at are left out."""

    def reclaim(self, local_root: Path, idle_seconds: float) -> Sequence[str]:
        """Remove what earlier trials fetched or built, nothing uses now and nobody got for so long; returns names.

        Trials of this worker may run or start meanwhile. What other programs of this machine fetched is not touched.
        """


def care_of(executor: Executor) -> Care | None:
    """What an executor knows of a machine; None when it knows nothing."""
    found: Care | None = getattr(executor, "care", None)
    return found
