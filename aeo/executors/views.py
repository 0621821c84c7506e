"""What a trial's page shows of its files, and where: an executor says which of them are what.

By names only: nothing of a trial is opened here. An executor may have two members for it beside the protocol's:

- ``views(names) -> TrialFiles`` of the executor, which is given the paths of all files of one trial's folder;
- ``growing(trial)`` of a session: the folders whose files lie in the trial's folder once it has ended.

Without them the layout of `aeo.executors.result` is meant, and the folder the session was given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aeo.core.model import PlannedTrial
from aeo.executors import Executor, Session, TrialContext

#: Ends of the names of files that are logs.
LOGS = (".log", ".txt", ".out", ".err", ".jsonl", ".pane")
#: Those that say little.
_DULL = ("/command.txt", "/return-code.txt", "/stderr.txt")
_REPORT = "ctrf"


@dataclass(frozen=True, kw_only=True)
class Part:
    """The files of one part of a trial: of all of it, or of one of its steps."""

    #: The step; empty for the whole trial.
    name: str = ""
    #: What the agent did, in the Agent Trajectory Interchange Format; the main one first.
    trajectories: tuple[str, ...] = ()
    #: Results of tests, in the Common Test Report Format.
    reports: tuple[str, ...] = ()
    #: What else the verifier left; what it said first.
    verifier: tuple[str, ...] = ()
    #: What was collected of the agent's work.
    artifacts: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrialFiles:
    """Which of a trial's files are what; paths are relative, with ``/``."""

    parts: tuple[Part, ...] = ()
    #: What people want to read while it runs and after, the most telling first.
    logs: tuple[str, ...] = ()
    #: The error with all it says; empty if there is none.
    error: str = ""


def of(executor: Executor, names: Collection[str]) -> TrialFiles:
    """Say what each of a trial's files is."""
    own = getattr(executor, "views", None)
    found: TrialFiles = own(names) if own else plain(names)
    return found


def growing(session: Session, trial: PlannedTrial, context: TrialContext) -> Sequence[Path]:
    """Where the files of a trial lie while it runs; a folder may not be there yet, or not any more."""
    own = getattr(session, "growing", None)
    return tuple(own(trial)) if own else (context.trial_dir,)


def plain(names: Collection[str]) -> TrialFiles:
    """A folder in the layout of `aeo.executors.result`."""
    return TrialFiles(
        parts=(part(names),), logs=logs(names, "agent/"), error="exception.txt" * ("exception.txt" in names)
    )


def part(names: Iterable[str], *, name: str = "", prefix: str = "") -> Part:
    """The part whose ``agent``, ``verifier`` and ``artifacts`` lie below ``prefix``."""
    below = sorted(path for path in names if path.startswith(prefix))
    verifier = [path for path in below if path.startswith(f"{prefix}verifier/")]
    reports = [path for path in verifier if _REPORT in path.rpartition("/")[2] and path.endswith(".json")]
    return Part(
        name=name,
        trajectories=_first(
            [f"{prefix}agent/trajectory.json"],
            [path for path in below if path.startswith(f"{prefix}agent/") and _is_trajectory(path)],
        ),
        reports=tuple(reports),
        verifier=_first(
            [f"{prefix}verifier/test-stdout.txt", f"{prefix}verifier/test-stderr.txt"],
            [path for path in verifier if path not in reports],
        ),
        artifacts=tuple(path for path in below if path.startswith(f"{prefix}artifacts/")),
    )


def logs(names: Iterable[str], *first: str) -> tuple[str, ...]:
    """The files that are logs, those below the folders ``first`` before the others."""

    def order(path: str) -> tuple[int, int, bool, str]:
        place = next((index for index, folder in enumerate(first) if path.startswith(folder)), len(first))
        return place, path.count("/"), path.endswith(_DULL), path

    return tuple(sorted((path for path in names if path.endswith(LOGS)), key=order))


def _is_trajectory(path: str) -> bool:
    name = path.rpartition("/")[2]
    return "trajectory" in name and name.endswith(".json")


def _first(wanted: Sequence[str], found: Sequence[str]) -> tuple[str, ...]:
    """What was found, what was wanted first."""
    head = [path for path in wanted if path in found]
    return (*head, *(path for path in found if path not in head))
