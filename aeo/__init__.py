"""Agent Eval Orchestrator. The modules in reading order:

========================================  =======================================================================
core                                      words, errors, allotment, estimates, simulation; pure
config, layout, codec                     settings, paths, the model as JSON
folders, lock, logs, reach                what every program does at its start
store                                     what Redis holds: who does what now
transfer                                  moving folders
executors                                 the plug-ins: harbor, command, sleep
site, records, contents, assets           what one machine works with; evaluations on disk; tasks and files by content
submission, sharing, evaluations, progress  ask for an evaluation, who takes it, cancel, look
celery, dispatch, tasks                   messages
batches, leases, outbox, predecessor      the worker's side: claim, run, push; what the process before left
prefetching, cleaning                     its tasks and images: fetched ahead of a run, removed when nobody needs them
results, rows, jobs, control              the controller's side: commit, merge
recovery, reconciliation, redispatch      the controller's repairs: from disk, in rounds, new batches
workers, registration, pulse, stay        what a worker says of itself, and for how long it goes on
credentials, grants                       what each worker may reach at the broker, and for how long
secrets, redaction                        what trials get and nobody else: kept, delivered, taken out of results
rsyncd                                    the controller's own rsync daemon, and what each worker may do there
provision                                 from a bare machine to a worker, by ssh
embedded, processes, cli                  the programs
========================================  =======================================================================
"""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("agent-eval-orchestrator")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0"
