"""What goes in and out of the routes about the files of one trial."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, RootModel, model_validator

from aeo.artifacts.place import Entry
from aeo.artifacts.report import Report
from aeo.artifacts.runs import Run
from aeo.artifacts.trajectory import Overview, Step
from aeo.artifacts.windows import MOST, USUAL, Window
from aeo.executors.views import TrialFiles

#: Steps of one answer.
STEPS = 200


class RunQuery(BaseModel):
    """A parameter given empty counts as not given."""

    model_config = ConfigDict(extra="forbid")

    run: str = Field(
        "", max_length=100, description="Token of a run that was put aside; left out: the one that counts."
    )

    @model_validator(mode="before")
    @classmethod
    def _drop_empty(cls, values: dict[str, str]) -> dict[str, str]:
        return {key: value for key, value in values.items() if value != ""}


class TextQuery(RunQuery):
    file: str = Field(max_length=4096)
    begin: int | None = Field(None, ge=0, le=2**53, description="First byte; left out: the text's end is given.")
    end: int | None = Field(None, ge=0, le=2**53, description="The byte after the last; instead of `begin`.")
    limit: int = Field(USUAL, ge=1, le=MOST, description="Bytes.")


class TrajectoryQuery(RunQuery):
    file: str = Field("", max_length=4096, description="Left out: the trial's main trajectory.")
    agent: str = Field("", max_length=200, description="Id of a trajectory inside it.")
    tool: str = Field("", max_length=200, description="Only steps that call it.")
    offset: int = Field(0, ge=0, le=10**9)
    limit: int = Field(50, ge=1, le=STEPS)
    whole: bool = Field(False, description="Long texts are not cut.")


class RunsOut(BaseModel):
    runs: list[Run] = Field(description="In the order they began.")


class FilesOut(BaseModel):
    files: list[Entry]
    more: bool = Field(description="There are more than are listed.")
    live: bool = Field(description="The trial runs: what it wrote so far, as its worker shows it.")
    views: TrialFiles = Field(description="Which files are what.")


class TextOut(RootModel[Window]):
    pass


class TrajectoryOut(BaseModel):
    file: str
    overview: Overview
    steps: list[Step]
    total: int = Field(description="Steps that match.")


class TestsOut(BaseModel):
    reports: dict[str, Report] = Field(description="By file; those that can be read.")
