"""What must be true of an evaluation whenever one looks; `faults` names each thing that is not.

A trial is in exactly one state, and the state says where else it is::

    state     share   claim   lease   row
    pending   one
    running           yes     yes
    pushed            yes
    done                              yes, and once in the order of commits
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aeo.core.model import Claim, Outcome, TrialState

#: Token of a commit that enters again what was committed before the store was wiped.
RECOVERED = "recovered"
#: Event that enters a result taken over from another evaluation, which counts as its trial's commit.
CARRIED = "carried"
#: Milliseconds a sum of estimates may be off: they are whole numbers, kept as floats.
_ROUNDING = 0.5
_STATES = {state.value for state in TrialState}


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a trial's row says."""

    #: Of the run that won; empty for a trial that was cancelled before it ran.
    token: str
    outcome: str
    #: 0 for a trial that was cancelled before it ran: it has no folder.
    attempt: int


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """All that is known of one evaluation at one moment. States are text, as a wrong one is a fault and no error."""

    evaluation: str
    planned: tuple[str, ...]
    state: str
    #: The states it is listed under.
    listed: frozenset[str]
    #: Trial to state.
    states: Mapping[str, str]
    #: Trial to milliseconds.
    estimates: Mapping[str, int]
    #: Trial to the batch whose share it is said to be in; "" is in no batch's share.
    where: Mapping[str, str]
    #: Batch to its share; only shares that hold something.
    shares: Mapping[str, tuple[str, ...]]
    #: Batch to the milliseconds left in its share.
    left: Mapping[str, float]
    #: Batch to its state.
    batches: Mapping[str, str]
    claims: Mapping[str, Claim]
    #: Trials with a lease, ended or not.
    leases: frozenset[str]
    #: Token to trial.
    tokens: Mapping[str, str]
    #: Trials with a phase.
    phases: frozenset[str]
    #: Which worker is said to run which trial.
    worker_leases: frozenset[tuple[str, str]]
    rows: Mapping[str, Result]
    #: Trials in the order of their commits.
    order: tuple[str, ...]
    #: ``total``, ``requeues``, each trial state, each ``outcome:...``.
    counters: Mapping[str, int]
    #: Trial to how often it was requeued.
    requeues: Mapping[str, int]
    #: Names of the folders in the job folder; None: nobody looked.
    folders: frozenset[str] | None = None


def faults(snapshot: Snapshot, log: Iterable[Mapping[str, Any]] = ()) -> list[str]:
    """Everything that is wrong, one sentence each; ``log`` is the evaluation's events, in order."""
    return [
        *_planned(snapshot),
        *_waiting(snapshot),
        *_running(snapshot),
        *_done(snapshot),
        *_counted(snapshot),
        *_left(snapshot),
        *_listed(snapshot),
        *folder_faults(snapshot),
        *_committed_twice(log),
    ]


def _planned(seen: Snapshot) -> Iterator[str]:
    planned = set(seen.planned)
    for trial in sorted(planned - set(seen.states)):
        yield f"trial {trial} is planned but in no state"
    for trial in sorted(set(seen.states) - planned):
        yield f"trial {trial} is {seen.states[trial]} but not planned"
    for trial in sorted(planned ^ set(seen.estimates)):
        yield f"trial {trial} is " + (
            "planned but has no estimate" if trial in planned else "estimated but not planned"
        )
    for trial, state in sorted(seen.states.items()):
        if state not in _STATES:
            yield f"trial {trial} is in a state that does not exist: {state!r}"


def _is(seen: Snapshot, *states: TrialState) -> set[str]:
    wanted = {state.value for state in states}
    return {trial for trial, state in seen.states.items() if state in wanted}


def _differ(
    wanted: set[str], found: Iterable[str], missing: str, extra: str, states: Mapping[str, str]
) -> Iterator[str]:
    found = set(found)
    for trial in sorted(wanted - found):
        yield f"trial {trial} is {states[trial]} but {missing}"
    for trial in sorted(found - wanted):
        yield f"trial {trial} is {states.get(trial, 'in no state')} but {extra}"


def _waiting(seen: Snapshot) -> Iterator[str]:
    pending = _is(seen, TrialState.PENDING)
    shares = Counter(trial for names in seen.shares.values() for trial in names)
    yield from _differ(pending, shares, "in no share", "in a share", seen.states)
    yield from _differ(pending, seen.where, "said to be in no share", "said to be in a share", seen.states)
    for trial, times in sorted(shares.items()):
        if times > 1:
            yield f"trial {trial} is in {times} shares"
    for batch, names in sorted(seen.shares.items()):
        if batch and batch not in seen.batches:
            yield f"a share is that of batch {batch}, which does not exist"
        for trial in names:
            if seen.where.get(trial, batch) != batch:
                yield f"trial {trial} is in the share of batch {batch!r}, said to be in that of {seen.where[trial]!r}"


def _running(seen: Snapshot) -> Iterator[str]:
    running = _is(seen, TrialState.RUNNING)
    held = _is(seen, TrialState.RUNNING, TrialState.PUSHED)
    yield from _differ(held, seen.claims, "nobody's claim", "claimed", seen.states)
    yield from _differ(running, seen.leases, "without a lease", "leased", seen.states)
    for trial in sorted(seen.phases - running):
        yield f"trial {trial} is {seen.states.get(trial, 'in no state')} but in a phase"
    for trial, claim in sorted(seen.claims.items()):
        if (claim.evaluation, claim.trial) != (seen.evaluation, trial):
            yield f"the claim of trial {trial} names {claim.evaluation}/{claim.trial}"
        if seen.tokens.get(claim.token) != trial:
            yield f"the token of trial {trial}'s claim is not its own"
    for token, trial in sorted(seen.tokens.items()):
        if trial not in seen.claims or seen.claims[trial].token != token:
            yield f"trial {trial} has a token that is in no claim"
    wanted = {(seen.claims[trial].worker, trial) for trial in running if trial in seen.claims}
    for worker, trial in sorted(wanted - seen.worker_leases):
        yield f"trial {trial} runs on worker {worker}, which is not said to run it"
    for worker, trial in sorted(seen.worker_leases - wanted):
        yield f"worker {worker} is said to run trial {trial}, which it does not"


def _done(seen: Snapshot) -> Iterator[str]:
    done = _is(seen, TrialState.DONE)
    order = Counter(seen.order)
    yield from _differ(done, seen.rows, "without a row", "has a row", seen.states)
    yield from _differ(done, order, "not in the order of commits", "in the order of commits", seen.states)
    for trial, times in sorted(order.items()):
        if times > 1:
            yield f"trial {trial} is {times} times in the order of commits"


def _counted(seen: Snapshot) -> Iterator[str]:
    states = Counter(seen.states.values())
    outcomes = Counter(row.outcome for row in seen.rows.values())
    recount = {
        "total": len(seen.planned),
        "requeues": sum(seen.requeues.values()),
        **{state.value: states[state.value] for state in TrialState},
        **{f"outcome:{outcome.value}": outcomes[outcome.value] for outcome in Outcome},
    }
    for name, count in recount.items():
        if seen.counters.get(name) != count:
            yield f"the counter {name} says {seen.counters.get(name)}, a recount {count}"
    for trial, row in sorted(seen.rows.items()):
        if f"outcome:{row.outcome}" not in recount:
            yield f"trial {trial} has an outcome that does not exist: {row.outcome!r}"


def _left(seen: Snapshot) -> Iterator[str]:
    for batch in sorted({*seen.shares, *seen.left}):
        wanted = sum(seen.estimates.get(trial, 0) for trial in seen.shares.get(batch, ()))
        if (batch in seen.left) != (batch in seen.shares) or abs(seen.left.get(batch, 0.0) - wanted) > _ROUNDING:
            yield f"batch {batch!r} says {seen.left.get(batch)} ms are left, a recount {wanted}"


def _listed(seen: Snapshot) -> Iterator[str]:
    if seen.listed != {seen.state}:
        yield f"it is {seen.state}, but listed as {', '.join(sorted(seen.listed)) or 'nothing'}"


def folder_faults(seen: Snapshot) -> Iterator[str]:
    """What is wrong with the job folder alone; part of `faults`."""
    if seen.folders is None:
        return
    committed = {trial for trial, row in seen.rows.items() if row.attempt > 0}
    for trial in sorted(committed - seen.folders):
        yield f"trial {trial} is committed, but its folder is not in the job folder"
    planned = set(seen.planned)
    for name in sorted(seen.folders - committed):
        what = f"trial {name} is not committed" if name in planned else f"no trial is named {name}"
        yield f"{what}, but a folder of it is in the job folder"


def _committed_twice(log: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    tokens: dict[str, list[str]] = {}
    for event in log:
        token = CARRIED if event.get("kind") == CARRIED else str(event.get("token") or "")
        # Without a token: cancelled before it ran, which may be said anew after a wipe.
        if event.get("kind") in ("committed", CARRIED) and token not in ("", RECOVERED):
            tokens.setdefault(str(event.get("trial")), []).append(token)
    for trial, of in sorted(tokens.items()):
        if len(of) > 1:
            yield f"trial {trial} was committed {len(of)} times, by {', '.join(of)}"
