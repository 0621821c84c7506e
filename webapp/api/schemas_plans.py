"""What comes out of a check, and of a look at what an evaluation took."""

from __future__ import annotations

from pydantic import RootModel

from aeo.checks import Check
from aeo.traces import Trace


class CheckOut(RootModel[Check]):
    pass


class TraceOut(RootModel[Trace]):
    pass
