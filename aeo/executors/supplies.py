"""What an executor may offer besides running trials: it fetches ahead of a run what its trials start from."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from aeo.executors import Executor


@dataclass(frozen=True, kw_only=True)
class Image:
    """An image that trials start from."""

    #: What the engine knows it by.
    name: str
    #: It is built from files of a task; else it is pulled.
    built: bool = False
    #: The executor's own; may hold secrets, so it stays in this process.
    payload: Mapping[str, Any] = field(default_factory=dict, repr=False)


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The images of some content folders."""

    #: Each once.
    images: tuple[Image, ...] = ()
    #: Content folder's name to why it is not known which it needs.
    problems: Mapping[str, str] = field(default_factory=dict)


class Supplies(Protocol):
    """An executor's member ``supplies``."""

    def needed(self, folders: Sequence[Path]) -> Needed:
        """Say which images the trials of these content folders start from.

        Raises:
            Unavailable: this machine has no engine, or not the executor.
        """

    def places(self) -> Sequence[Path]:
        """Folders that images fill, as far as they are on this machine."""

    def is_here(self, image: Image) -> bool:
        """Whether an image is here; one that is counts as got now, as far as the engine can note that."""

    def bring(self, image: Image, stop: threading.Event) -> None:
        """Pull or build an image. Whatever it has begun is ended, and harmless, when ``stop`` is set.

        Raises:
            ExecutorFailed: it could not be had; says why.
        """


def supplies_of(executor: Executor) -> Supplies | None:
    """What an executor can fetch ahead; None when its trials start from nothing that can be."""
    found: Supplies | None = getattr(executor, "supplies", None)
    return found
