"""What comes out of a check."""

from __future__ import annotations

from pydantic import RootModel

from aeo.checks import Check


class CheckOut(RootModel[Check]):
    pass
