"""What somebody should look at now. Pure: facts in, alerts out, the worst first.

A text names its values (``%(worker)s``), so that it can be said in another language; see `text`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum

from aeo.core.model import EvaluationState, WorkerState

#: A disk is low with less free than this, or than this share of it where that is less.
LOW_DISK_BYTES, LOW_DISK_SHARE = 5 * 1024**3, 0.10
#: A trial is slow when it runs this many times as long as expected, and this many seconds longer.
SLOW_FACTOR, SLOW_SECONDS = 4.0, 600.0
#: Seconds that an unwritten event may be old while the control process works.
SILENT_SECONDS = 15.0
#: Seconds a worker's clock may be off.
CLOCK_SECONDS = 30.0
#: How a reason or note begins that a person gave, see the API's pause; whatever else pauses is a breaker.
_BY_A_PERSON = "paused by "

_RATE_LIMIT = re.compile(
    r"rate[ _-]?limit|too[ _]many[ _]requests|overloaded_?error|quota[ _]exceeded"
    r"|(?:http|status|code|error)[^0-9\n]{0,4}\b429\b",
    re.IGNORECASE,
)


class Level(str, Enum):
    """How bad it is."""

    #: Work is lost or stands still until somebody acts.
    CRITICAL = "critical"
    #: Work goes on, slower or not for long.
    WARNING = "warning"


class Kind(str, Enum):
    """What it is about; each with its level in `LEVELS` and its words in `TEXTS`."""

    STORE_WIPED = "store_wiped"
    CONTROL_SILENT = "control_silent"
    CONTROLLER_DISK_LOW = "controller_disk_low"
    NO_WORKER = "no_worker"
    WORKER_LOST = "worker_lost"
    WORKER_DISK_FULL = "worker_disk_full"
    WORKER_DISK_LOW = "worker_disk_low"
    WORKER_PAUSED = "worker_paused"
    EVALUATION_PAUSED = "evaluation_paused"
    TRIAL_OVERDUE = "trial_overdue"
    TRIAL_SLOW = "trial_slow"
    RATE_LIMITED = "rate_limited"
    CLOCK_OFF = "clock_off"


LEVELS: Mapping[Kind, Level] = {
    Kind.STORE_WIPED: Level.CRITICAL,
    Kind.CONTROL_SILENT: Level.CRITICAL,
    Kind.CONTROLLER_DISK_LOW: Level.CRITICAL,
    Kind.NO_WORKER: Level.CRITICAL,
    Kind.WORKER_LOST: Level.CRITICAL,
    Kind.WORKER_DISK_FULL: Level.CRITICAL,
    Kind.WORKER_DISK_LOW: Level.WARNING,
    Kind.WORKER_PAUSED: Level.CRITICAL,
    Kind.EVALUATION_PAUSED: Level.CRITICAL,
    Kind.TRIAL_OVERDUE: Level.CRITICAL,
    Kind.TRIAL_SLOW: Level.WARNING,
    Kind.RATE_LIMITED: Level.WARNING,
    Kind.CLOCK_OFF: Level.WARNING,
}

#: The words, in the order shown. ``seconds``, ``limit`` and ``bytes`` are written with their units by `text`.
TEXTS: Mapping[Kind, str] = {
    Kind.STORE_WIPED: "The store was wiped or started anew; it is being rebuilt from disk.",
    Kind.CONTROL_SILENT: "The control process has written nothing for %(seconds)s: results are not taken in.",
    Kind.CONTROLLER_DISK_LOW: "The controller's disk under %(path)s is nearly full: %(bytes)s free.",
    Kind.NO_WORKER: "No worker takes work, and evaluations wait (%(count)s): %(reason)s",
    Kind.WORKER_LOST: "Worker %(worker)s is lost: no heartbeat within the grace time.",
    Kind.WORKER_DISK_FULL: "Worker %(worker)s claims nothing: its disk is nearly full, %(bytes)s free.",
    Kind.WORKER_DISK_LOW: "The disk of worker %(worker)s gets full: %(bytes)s free.",
    Kind.WORKER_PAUSED: "Worker %(worker)s was paused, as its runs fail: %(reason)s",
    Kind.EVALUATION_PAUSED: "%(name)s was paused, as its runs fail: %(reason)s",
    Kind.TRIAL_OVERDUE: "%(trial)s runs for %(seconds)s on %(worker)s, past its hard deadline of %(limit)s.",
    Kind.TRIAL_SLOW: "%(trial)s runs for %(seconds)s on %(worker)s; about %(limit)s were expected.",
    Kind.RATE_LIMITED: "%(name)s: the model provider's rate limit ended %(count)s of the last %(runs)s runs.",
    Kind.CLOCK_OFF: "The clock of worker %(worker)s is off by %(seconds)s.",
}


@dataclass(frozen=True, kw_only=True)
class Alert:
    """One thing to look at."""

    kind: Kind
    level: Level
    #: What its text names; durations in seconds, sizes in bytes.
    values: Mapping[str, str | float] = field(default_factory=dict)
    #: What it is about; empty where it is about none.
    worker: str = ""
    evaluation: str = ""
    trial: str = ""
    #: Since when, where that is known.
    since: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFacts:
    """A worker, as far as alerts care."""

    id: str
    state: WorkerState
    note: str = ""
    #: Its last sample, whether it lives or not.
    last_seen: datetime | None = None
    #: Bytes; None without a heartbeat. 0 for the whole means not told.
    disk_free: int | None = None
    disk_total: int = 0
    #: It says itself that it claims nothing because of its disk.
    disk_full: bool = False
    clock_skew: float | None = None


@dataclass(frozen=True, kw_only=True)
class RunFacts:
    """A run that holds a lease."""

    evaluation: str
    trial: str
    worker: str
    #: How long it has run.
    seconds: float
    #: How long it was expected to, put right by what others took; None when nobody can say.
    expected: float | None = None
    #: Its hard deadline; None is not known.
    deadline: float | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluationFacts:
    """An evaluation that is not closed."""

    id: str
    name: str
    state: EvaluationState
    reason: str = ""
    #: What its last runs ended with: the error as text, "" for none; the order does not matter.
    errors: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class ControllerFacts:
    """The controller's own machine and store."""

    #: The store is in line with the disk.
    settled: bool = True
    #: Age of the oldest event nobody has written down, seconds; 0 when there is none.
    unwritten_seconds: float = 0.0
    #: Evaluations that wait while no worker takes work, and why none does.
    waiting: int = 0
    nobody: str = ""
    #: Folder to free and total bytes of the disk it lies on.
    disks: Mapping[str, tuple[int, int]] = field(default_factory=dict)


def judge(
    controller: ControllerFacts,
    workers: Iterable[WorkerFacts],
    evaluations: Iterable[EvaluationFacts],
    runs: Iterable[RunFacts],
) -> tuple[Alert, ...]:
    """Everything somebody should look at, the worst first, then by kind, worker, evaluation and trial."""
    found = list(_of_controller(controller))
    for worker in workers:
        found += _of_worker(worker)
    for evaluation in evaluations:
        found += _of_evaluation(evaluation)
    for run in runs:
        found += _of_run(run)
    levels, kinds = list(Level), list(Kind)
    return tuple(
        sorted(found, key=lambda a: (levels.index(a.level), kinds.index(a.kind), a.worker, a.evaluation, a.trial))
    )


def is_low(free: int, total: int) -> bool:
    """Whether a disk gets full; ``total`` 0 is not known."""
    return free < (min(LOW_DISK_BYTES, total * LOW_DISK_SHARE) if total > 0 else LOW_DISK_BYTES)


def is_rate_limit(error: str) -> bool:
    """Whether an error says that a model provider turned requests away for being too many."""
    return bool(_RATE_LIMIT.search(error))


def is_breakers(state: EvaluationState | WorkerState, reason: str) -> bool:
    """Whether something is paused, and not by a person."""
    paused = state in (EvaluationState.PAUSED, WorkerState.PAUSED)
    return paused and not reason.startswith(_BY_A_PERSON)


def text(
    alert: Alert,
    *,
    words: Mapping[Kind, object] = TEXTS,
    span: Callable[[float], str] | None = None,
    size: Callable[[float], str] | None = None,
) -> str:
    """An alert in words; other ones, and other ways to write durations and sizes, may be given."""
    ways = {"seconds": span or _span, "limit": span or _span, "bytes": size or _size}
    values = {
        name: ways[name](value) if name in ways and isinstance(value, (int, float)) else value
        for name, value in alert.values.items()
    }
    return str(words[alert.kind]) % values


def _alert(
    kind: Kind, *, about: Mapping[str, str] | None = None, since: datetime | None = None, **values: str | float
) -> Alert:
    known = dict(about or {})
    places = {name: known[name] for name in ("worker", "evaluation", "trial") if name in known}
    return Alert(kind=kind, level=LEVELS[kind], values={**known, **values}, since=since, **places)


def _of_controller(facts: ControllerFacts) -> Iterator[Alert]:
    if not facts.settled:
        yield _alert(Kind.STORE_WIPED)
    if facts.unwritten_seconds > SILENT_SECONDS:
        yield _alert(Kind.CONTROL_SILENT, seconds=facts.unwritten_seconds)
    if facts.waiting:
        yield _alert(Kind.NO_WORKER, count=facts.waiting, reason=facts.nobody)
    for path, (free, total) in facts.disks.items():
        if is_low(free, total):
            yield _alert(Kind.CONTROLLER_DISK_LOW, path=path, bytes=free)


def _of_worker(facts: WorkerFacts) -> Iterator[Alert]:
    about = {"worker": facts.id}
    if facts.state is WorkerState.LOST:
        yield _alert(Kind.WORKER_LOST, about=about, since=facts.last_seen)
        return
    if is_breakers(facts.state, facts.note):
        yield _alert(Kind.WORKER_PAUSED, about=about, reason=facts.note)
    if facts.disk_free is not None and facts.disk_full:
        yield _alert(Kind.WORKER_DISK_FULL, about=about, bytes=facts.disk_free)
    elif facts.disk_free is not None and is_low(facts.disk_free, facts.disk_total):
        yield _alert(Kind.WORKER_DISK_LOW, about=about, bytes=facts.disk_free)
    if facts.clock_skew is not None and abs(facts.clock_skew) > CLOCK_SECONDS:
        yield _alert(Kind.CLOCK_OFF, about=about, seconds=abs(facts.clock_skew))


def _of_evaluation(facts: EvaluationFacts) -> Iterator[Alert]:
    about = {"evaluation": facts.id, "name": facts.name}
    if is_breakers(facts.state, facts.reason):
        yield _alert(Kind.EVALUATION_PAUSED, about=about, reason=facts.reason)
    if limited := sum(is_rate_limit(error) for error in facts.errors):
        yield _alert(Kind.RATE_LIMITED, about=about, count=limited, runs=len(facts.errors))


def _of_run(facts: RunFacts) -> Iterator[Alert]:
    about = {"evaluation": facts.evaluation, "trial": facts.trial, "worker": facts.worker}
    if facts.deadline is not None and facts.seconds > facts.deadline:
        yield _alert(Kind.TRIAL_OVERDUE, about=about, seconds=facts.seconds, limit=facts.deadline)
    elif facts.expected is not None and is_slow(facts.seconds, facts.expected):
        yield _alert(Kind.TRIAL_SLOW, about=about, seconds=facts.seconds, limit=facts.expected)


def is_slow(seconds: float, expected: float) -> bool:
    """Whether a run takes much longer than expected."""
    return seconds > max(expected * SLOW_FACTOR, expected + SLOW_SECONDS)


def _span(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def _size(count: float) -> str:
    return f"{count / 1024**3:.1f} GiB" if count >= 1024**3 else f"{count / 1024**2:.0f} MiB"
