"""Things put aside for later, at most so many."""

from __future__ import annotations

import threading
from typing import Generic, TypeVar

T = TypeVar("T")


class Shelf(Generic[T]):
    """Keeps the latest under their names. Safe to share between threads."""

    def __init__(self) -> None:
        self._items: dict[str, T] = {}
        self._lock = threading.Lock()

    def put(self, name: str, item: T, *, most: int) -> list[T]:
        """Put one aside; returns those there is no room for any more, the oldest first."""
        with self._lock:
            self._items[name] = item
            return [self._items.pop(next(iter(self._items))) for _ in range(len(self._items) - most)]

    def take(self, name: str) -> T | None:
        """Take one away; None if it is not here."""
        with self._lock:
            return self._items.pop(name, None)

    def clear(self) -> list[T]:
        """Take all away."""
        with self._lock:
            items, self._items = list(self._items.values()), {}
            return items
