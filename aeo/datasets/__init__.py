"""Datasets: which are configured, what is in them, where they are, and fetching them.

Read in this order: `configured` (the file of them), `reading` (their tasks), `downloads`, `checking` (is one still what
it was), `prefetch` (its tasks to workers ahead of a run), `views` (what pages show).
"""

from aeo.datasets import checking, prefetch
from aeo.datasets.checking import Report, Verdict
from aeo.datasets.configured import Dataset, add, get, read, remove
from aeo.datasets.downloads import Download, DownloadState
from aeo.datasets.prefetch import Prefetch, WorkerPrefetch
from aeo.datasets.views import SORTS, DatasetDetail, DatasetView, TaskRow, cancel, list_all, select, show, start, status

__all__ = [
    "SORTS",
    "Dataset",
    "DatasetDetail",
    "DatasetView",
    "Download",
    "DownloadState",
    "Prefetch",
    "Report",
    "TaskRow",
    "Verdict",
    "WorkerPrefetch",
    "add",
    "cancel",
    "checking",
    "get",
    "list_all",
    "prefetch",
    "read",
    "remove",
    "select",
    "show",
    "start",
    "status",
]
