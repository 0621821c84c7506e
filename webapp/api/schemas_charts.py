"""What the charts of pages are drawn from; the shapes are told at the head of the charts' script."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from aeo.core.model import Outcome

Number = float | None
#: Row, column, outcome or state, reward, seconds, trial.
HeatCell = tuple[int, int, str, Number, Number, str]
#: Lane, start and end in milliseconds since 1970 (null: it runs), outcome or state, words, link.
GanttBar = tuple[int, float, Number, str, str, str]


class ChartOut(BaseModel):
    final: bool = Field(description="Nothing will change any more.")
    base: str = Field("", description="Put before each link.")


class HeatQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    offset: int = Field(0, ge=0, le=10**9, description="Tasks to leave out at the start.")
    limit: int | None = Field(None, ge=1, le=5000, description="Tasks; left out: as many as can be seen at once.")


class HeatmapOut(ChartOut):
    rows: list[str] = Field(description="Tasks.")
    columns: list[str] = Field(description="Attempts, with their agent and model where there are several.")
    cells: list[HeatCell]
    total: int = Field(description="Tasks in all.")


class TimelineOut(ChartOut):
    lanes: list[str] = Field(description="Slots of workers.")
    bars: list[GanttBar]
    now: float = Field(description="Milliseconds since 1970 on the server's clock.")
    x: str = "time"


class HistogramQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    bins: int = Field(30, ge=1, le=200)


class HistogramOut(ChartOut):
    edges: list[float] = Field(description="Bounds of the bins, one more than there are bins.")
    counts: list[int]
    unit: str = "seconds"


class ErrorItem(BaseModel):
    type: str
    outcome: Outcome
    count: int


class ErrorsOut(ChartOut):
    errors: list[ErrorItem] = Field(description="The most frequent first.")


class GroupsQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    by: Annotated[str, Field(pattern="^(category|difficulty|agent|model|dataset|task|worker)$")] = "category"


class SeriesOut(BaseModel):
    kind: str
    name: str
    values: list[Number]
    low: list[Number]
    high: list[Number]


class GroupItem(BaseModel):
    name: str = Field(description="Empty for trials that do not say it.")
    planned: int
    scored: int
    outcomes: dict[Outcome, int]
    mean: Number = Field(description="Of the main reward over the scored trials.")
    low: Number = Field(description="Of the 95 % interval of the mean.")
    high: Number
    seconds: Number = Field(description="Mean wall time.")
    cost_usd: Number


class GroupsOut(ChartOut):
    groups: list[GroupItem]
    labels: list[str]
    series: list[SeriesOut]
    links: list[str]
    max: Number = None
