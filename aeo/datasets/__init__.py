"""Datasets: which are configured, what is in them, where they are, and fetching them.

Read in this order: `configured` (the file of them), `reading` (their tasks), `downloads`, `views` (what pages show).
"""

from aeo.datasets.configured import Dataset, add, get, read, remove
from aeo.datasets.downloads import Download, DownloadState
from aeo.datasets.views import SORTS, DatasetDetail, DatasetView, TaskRow, cancel, list_all, select, show, start, status

__all__ = [
    "SORTS",
    "Dataset",
    "DatasetDetail",
    "DatasetView",
    "Download",
    "DownloadState",
    "TaskRow",
    "add",
    "cancel",
    "get",
    "list_all",
    "read",
    "remove",
    "select",
    "show",
    "start",
    "status",
]
