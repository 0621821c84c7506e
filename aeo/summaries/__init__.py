"""The summaries: one line for each planned trial, with its result from the moment it is committed.

Every table, chart and score is read from here, never from trial folders. It is derived from the records on disk and the
rows in the store: deleted, it is entered again. Layers: schema and book (the file), entries (what goes in), then lines,
scores, pictures, counts and past (what comes out).
"""

from aeo.summaries.book import Book
from aeo.summaries.counts import ErrorCount, WorkerCount, errors, worker_counts
from aeo.summaries.entries import drop, enter, main_reward, put
from aeo.summaries.lines import SORTS, Line, each, neighbours, one, page, row
from aeo.summaries.past import Past, past_tasks, search
from aeo.summaries.pictures import Bar, Bin, Cell, Column, Heat, heatmap, histogram, timeline
from aeo.summaries.scores import GROUPS, Group, Score, groups, scores

__all__ = [
    "GROUPS",
    "SORTS",
    "Bar",
    "Bin",
    "Book",
    "Cell",
    "Column",
    "ErrorCount",
    "Group",
    "Heat",
    "Line",
    "Past",
    "Score",
    "WorkerCount",
    "drop",
    "each",
    "enter",
    "errors",
    "groups",
    "heatmap",
    "histogram",
    "main_reward",
    "neighbours",
    "one",
    "page",
    "past_tasks",
    "put",
    "row",
    "scores",
    "search",
    "timeline",
    "worker_counts",
]
