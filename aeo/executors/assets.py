"""What an executor may offer beside running trials: it finds the files and folders that a configuration names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aeo.executors import Executor


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A file or folder that a configuration names."""

    #: Absolute; or as it stands, where it is relative and nobody knows to what.
    path: str
    #: Where it stands in the configuration.
    place: tuple[str | int, ...]
    #: Trials may write to it.
    writable: bool = False
    #: It holds secrets.
    private: bool = False
    #: The plan itself carries its content: whether it may be read is asked, and nothing is sent.
    packed: bool = False


class AssetFinder(Protocol):
    """An executor's member ``assets``. Both are pure functions: no disk is looked at, no argument is changed."""

    def find(self, config: Mapping[str, Any], folder: str) -> tuple[Reference, ...]:
        """Every file and folder beside tasks that ``config`` names and trials need, in its order.

        What lies below another one that is found is not named again. Relative paths start from ``folder``; "" is not
        known. Paths that each worker has for itself are not named.
        """

    def placed(self, config: Mapping[str, Any], places: Mapping[str, str]) -> dict[str, Any]:
        """The configuration of a job or of a trial with the found paths replaced, by path; nothing else is changed."""


def finder_of(executor: Executor) -> AssetFinder | None:
    """How an executor's configurations are looked through; None where they name no files."""
    found: AssetFinder | None = getattr(executor, "assets", None)
    return found
