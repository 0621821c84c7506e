"""Runs Harbor evaluations. Harbor lives in a Python of its own and is never imported here.

Read in this order: `executor` (what the platform calls), `planning`, `session` (a worker's batch), `job` (the merged
job folder), `summary`, `failure`, `leftovers`, `datasets`; `python` finds Harbor, `program` starts our driver there;
``inside/`` is what runs in Harbor's Python.
"""

from aeo.executors.harbor.executor import HarborExecutor

executor = HarborExecutor()
