"""When to stop going on: too many of the last runs failed by infrastructure. Pure."""

from __future__ import annotations

from collections.abc import Sequence


def tripped(recent: Sequence[bool], runs: int, share: float) -> bool:
    """Whether more than ``share`` of the last ``runs`` failed; never before there were so many. ``runs`` 0 is off.

    ``recent``: whether each failed, the latest first.
    """
    last = recent[:runs]
    return runs > 0 and len(last) == runs and sum(last) > share * runs
