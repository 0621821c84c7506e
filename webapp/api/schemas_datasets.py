"""What goes in and out of the API of datasets."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from aeo.datasets import Dataset, DatasetView, Download, Prefetch, Report, TaskRow
from aeo.executors import PLAIN
from webapp.api.schemas import In, Name, Page, Text

Sort = Literal["name", "category", "difficulty", "pass_rate", "median", "runs", "cpus", "memory", "storage", "timeout"]

Pattern = Annotated[str, Field(min_length=1, max_length=200)]


class DatasetIn(In):
    name: Name
    executor: Name = PLAIN
    path: Text = Field("", description="Absolute folder of the controller with tasks in it; this or `reference`.")
    reference: Text = Field("", description="Name, and version if wanted, in a registry.")
    registry: Text = Field("", description="Which registry, if not the executor's usual one.")


class TasksQuery(Page):
    search: str = Field("", max_length=200, description="Words of the name or the labels.")
    category: str = Field("", max_length=200)
    difficulty: str = Field("", max_length=200)
    sort: Sort = "name"
    descending: bool = False


class RemoveDatasetQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")

    files: bool = Field(False, description="Also drop what was downloaded; a registered path is never touched.")


class DatasetsOut(BaseModel):
    datasets: list[DatasetView]


class DatasetOut(BaseModel):
    dataset: DatasetView


class DatasetTasksOut(BaseModel):
    dataset: DatasetView
    tasks: list[TaskRow]
    total: int = Field(description="Tasks that the search leaves.")


class RemovedDatasetOut(BaseModel):
    removed: Dataset


class DownloadOut(BaseModel):
    download: Download | None


class CheckIn(In):
    accept: Literal[True] = Field(description="Record what is there now as right.")


class CheckOut(BaseModel):
    report: Report


class ChecksOut(BaseModel):
    reports: list[Report]


class PrefetchIn(In):
    tasks: list[Pattern] = Field([], max_length=1000, description="Patterns of names (`git-*`); empty means all.")
    workers: list[Name] = Field([], max_length=1000, description="Ids; empty means all that would take trials now.")
    images: bool = Field(True, description="Also the images that the tasks start from.")


class PrefetchOut(BaseModel):
    prefetch: Prefetch
