"""Limits of model providers while a pool is played through: what has room under them, and when there is room again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aeo.core.choose import covers
from aeo.core.pool import Limit

#: By so much less than its interval a start may come after one that was late, as `LATE` of ``claim.lua``.
LATE_SECONDS = 1.0


class Gates:
    """The limits, and how far they are used."""

    def __init__(self, limits: Mapping[str, Limit]) -> None:
        self.limits = limits
        #: Key to when the next trial may start under it.
        self.paced: dict[str, float] = {}
        self._running = dict.fromkeys(limits, 0)
        self._keys: dict[str, tuple[str, ...]] = {}

    def keys(self, model: str) -> tuple[str, ...]:
        """The limits that hold for a model."""
        if model not in self._keys:
            self._keys[model] = tuple(key for key in self.limits if covers(key, model))
        return self._keys[model]

    def start(self, model: str, now: float) -> None:
        """A trial starts."""
        for key in self.keys(model):
            self._running[key] += 1
            if rate := self.limits[key].per_minute:
                self.paced[key] = max(self.paced.get(key, now), now - LATE_SECONDS) + 60 / rate

    def end(self, model: str) -> None:
        """A trial has ended."""
        for key in self.keys(model):
            self._running[key] -= 1

    def shut(self, models: Iterable[str], now: float) -> bool:
        """Whether no trial of any of these models may start now."""
        return all(any(self._is_full(key, now) for key in self.keys(model)) for model in models)

    def opens(self, now: float) -> float | None:
        """When the next trial may start under a limit that spreads starts, if any holds one back."""
        return min((at for at in self.paced.values() if at > now), default=None)

    def _is_full(self, key: str, now: float) -> bool:
        limit = self.limits[key]
        return self.paced.get(key, 0.0) > now or bool(limit.trials and self._running[key] >= limit.trials)
