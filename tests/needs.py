"""What a test needs beyond what the package installs."""

from __future__ import annotations

import os

import pytest


def require(condition: object, reason: str) -> None:
    """Go on only where ``condition`` is true: else skip with the reason, or fail in CI, where all has to be there."""
    if condition:
        return
    if os.environ.get("CI") == "true":
        pytest.fail(f"needed in CI: {reason}")
    pytest.skip(reason)
