"""What goes into a rerun."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from aeo.core.model import Outcome
from webapp.api.schemas import SubmissionIn, Text


class RerunIn(SubmissionIn):
    """The configuration may be left out: then it is the earlier one's."""

    errors: list[Text] = Field([], max_length=1000, description="Error types: what ended with one is run again.")
    outcomes: list[Annotated[Outcome, Field(strict=False)]] = Field(
        [], max_length=10, description="What ended so is run again."
    )
