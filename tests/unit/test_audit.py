"""The invariant checker: nothing is wrong with what is right, and each single corruption is named."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aeo.core.audit import Result, Snapshot, faults
from aeo.core.model import Claim, Outcome

STATES = ("pending", "running", "pushed", "done")
#: Every example has one of each, so that each corruption has something to corrupt.
TRIALS = st.lists(st.sampled_from(STATES), max_size=12).map(lambda more: [*STATES, *more])


def valid(states: list[str], estimates: list[int], outcomes: list[Outcome]) -> Snapshot:
    """A snapshot in which all is right; trial tN is in state N."""
    by_trial = {f"t{n}": state for n, state in enumerate(states)}
    of = {s: [t for t, state in by_trial.items() if state == s] for s in STATES}
    where = {t: ("", "b1", "b2")[n % 3] for n, t in enumerate(of["pending"])}
    shares = {b: tuple(t for t in of["pending"] if where[t] == b) for b in dict.fromkeys(where.values())}
    milliseconds = {t: estimates[n % len(estimates)] for n, t in enumerate(by_trial)}
    claims = {
        t: Claim(evaluation="e1", trial=t, batch="b1", worker=f"w{n % 2}", token=f"k-{t}", attempt=1)
        for n, t in enumerate(of["running"] + of["pushed"])
    }
    rows = {}
    for n, t in enumerate(of["done"]):
        outcome = outcomes[n % len(outcomes)]
        unrun = outcome is Outcome.CANCELLED
        rows[t] = Result(token="" if unrun else f"k-{t}", outcome=outcome.value, attempt=0 if unrun else 2)
    counts = Counter(row.outcome for row in rows.values())
    return Snapshot(
        evaluation="e1",
        planned=tuple(by_trial),
        state="running",
        listed=frozenset({"running"}),
        states=by_trial,
        estimates=milliseconds,
        where=where,
        shares=shares,
        left={b: float(sum(milliseconds[t] for t in names)) for b, names in shares.items()},
        batches={"b1": "started", "b2": "sent"},
        claims=claims,
        leases=frozenset(of["running"]),
        tokens={claim.token: t for t, claim in claims.items()},
        phases=frozenset(of["running"][:1]),
        worker_leases=frozenset((claims[t].worker, t) for t in of["running"]),
        rows=rows,
        order=tuple(reversed(of["done"])),
        counters={
            "total": len(by_trial),
            "requeues": 3,
            **{s: len(of[s]) for s in STATES},
            **{f"outcome:{o.value}": counts[o.value] for o in Outcome},
        },
        requeues={"t0": 2, "t3": 1},
        folders=frozenset(t for t, row in rows.items() if row.attempt),
    )


SNAPSHOTS = st.builds(
    valid, TRIALS, st.lists(st.integers(0, 10**7), min_size=1), st.lists(st.sampled_from(Outcome), min_size=1)
)


@given(SNAPSHOTS)
def test_what_is_right_has_no_fault(snapshot: Snapshot) -> None:
    assert faults(snapshot) == []
    assert faults(replace(snapshot, folders=None)) == []


def without(mapping: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in mapping.items() if name not in names}


def counter(snapshot: Snapshot, name: str) -> Snapshot:
    return replace(snapshot, counters={**snapshot.counters, name: snapshot.counters[name] + 1})


def claim(snapshot: Snapshot, **fields: str) -> Snapshot:
    return replace(snapshot, claims={**snapshot.claims, "t1": replace(snapshot.claims["t1"], **fields)})


#: What is broken (t0 is pending, t1 running, t2 pushed, t3 done) and a text that must name it.
BROKEN: dict[str, tuple[Callable[[Snapshot], Snapshot], str]] = {
    "a trial lost": (lambda s: replace(s, states=without(s.states, "t1")), "trial t1 is planned but in no state"),
    "a trial nobody planned": (lambda s: replace(s, states={**s.states, "x": "pending"}), "trial x is pending but not"),
    "another plan on disk": (lambda s: replace(s, planned=(*s.planned, "y")), "trial y is planned"),
    "an odd state": (lambda s: replace(s, states={**s.states, "t0": "odd"}), "trial t0 is in a state"),
    "a pending one in no share": (
        lambda s: replace(s, shares={b: tuple(t for t in names if t != "t0") for b, names in s.shares.items()}),
        "trial t0 is pending but in no share",
    ),
    "a pending one in two shares": (
        lambda s: replace(s, shares={**s.shares, "b2": (*s.shares.get("b2", ()), "t0")}),
        "trial t0 is in 2 shares",
    ),
    "a running one still in a share": (
        lambda s: replace(s, shares={**s.shares, "b1": (*s.shares.get("b1", ()), "t1")}),
        "trial t1 is running but in a share",
    ),
    "a share nobody can find": (lambda s: replace(s, where=without(s.where, "t0")), "trial t0 is pending but said"),
    "a wrong share named": (lambda s: replace(s, where={**s.where, "t0": "b2"}), "trial t0 is in the share of"),
    "a share of no batch": (
        lambda s: replace(s, shares={**s.shares, "gone": ("t0",)}),
        "a share is that of batch gone",
    ),
    "a running one without a claim": (
        lambda s: replace(s, claims=without(s.claims, "t1")),
        "trial t1 is running but nobody's claim",
    ),
    "a done one claimed": (
        lambda s: replace(s, claims={**s.claims, "t3": replace(s.claims["t1"], trial="t3", token="k-t3")}),
        "trial t3 is done but claimed",
    ),
    "a running one without a lease": (
        lambda s: replace(s, leases=s.leases - {"t1"}),
        "trial t1 is running but without a lease",
    ),
    "a pushed one with a lease": (lambda s: replace(s, leases=s.leases | {"t2"}), "trial t2 is pushed but leased"),
    "a lease of nothing": (lambda s: replace(s, leases=s.leases | {"z"}), "trial z is in no state but leased"),
    "a phase of a done one": (lambda s: replace(s, phases=s.phases | {"t3"}), "trial t3 is done but in a phase"),
    "a token lost": (lambda s: replace(s, tokens=without(s.tokens, "k-t1")), "the token of trial t1"),
    "a token too many": (lambda s: replace(s, tokens={**s.tokens, "old": "t1"}), "trial t1 has a token"),
    "a claim of another trial": (lambda s: claim(s, trial="t9"), "the claim of trial t1 names e1/t9"),
    "a claim of another evaluation": (lambda s: claim(s, evaluation="e2"), "the claim of trial t1 names e2/t1"),
    "a worker that does not know": (
        lambda s: replace(s, worker_leases=frozenset(p for p in s.worker_leases if p[1] != "t1")),
        "trial t1 runs on worker",
    ),
    "a worker said to run it": (
        lambda s: replace(s, worker_leases=s.worker_leases | {("w7", "t3")}),
        "worker w7 is said to run trial t3",
    ),
    "a done one without a row": (
        lambda s: replace(s, rows=without(s.rows, "t3")),
        "trial t3 is done but without a row",
    ),
    "a row of a pending one": (
        lambda s: replace(s, rows={**s.rows, "t0": Result(token="k", outcome="scored", attempt=1)}),
        "trial t0 is pending but has a row",
    ),
    "an odd outcome": (
        lambda s: replace(s, rows={**s.rows, "t3": Result(token="k", outcome="odd", attempt=1)}),
        "trial t3 has an outcome",
    ),
    "a commit not in the order": (
        lambda s: replace(s, order=tuple(t for t in s.order if t != "t3")),
        "trial t3 is done but not in the order",
    ),
    "a commit twice in the order": (lambda s: replace(s, order=(*s.order, "t3")), "trial t3 is 2 times in the order"),
    "the order of a running one": (
        lambda s: replace(s, order=(*s.order, "t1")),
        "trial t1 is running but in the order",
    ),
    **{
        f"counter {name}": ((lambda s, name=name: counter(s, name)), f"the counter {name} says")
        for name in ("total", "requeues", *STATES, *(f"outcome:{o.value}" for o in Outcome))
    },
    "a requeue forgotten": (lambda s: replace(s, requeues=without(s.requeues, "t3")), "the counter requeues says 3"),
    "time left is off": (
        lambda s: replace(s, left={**s.left, s.where["t0"]: s.left[s.where["t0"]] + 1}),
        "batch '' says",
    ),
    "time left of nothing": (lambda s: replace(s, left={**s.left, "b9": 0.0}), "batch 'b9' says 0.0 ms"),
    "time left unknown": (lambda s: replace(s, left=without(s.left, s.where["t0"])), "batch '' says None ms"),
    "listed twice": (lambda s: replace(s, listed=s.listed | {"failed"}), "listed as failed, running"),
    "listed nowhere": (lambda s: replace(s, listed=frozenset()), "listed as nothing"),
    "a folder nobody planned": (
        lambda s: replace(s, folders=(s.folders or frozenset()) | {"copy"}),
        "no trial is named copy, but a folder",
    ),
    "a folder of a running one": (
        lambda s: replace(s, folders=(s.folders or frozenset()) | {"t1"}),
        "trial t1 is not committed, but a folder",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
@given(SNAPSHOTS)
def test_one_thing_broken_is_named(what: str, snapshot: Snapshot) -> None:
    corrupt, words = BROKEN[what]
    found = faults(corrupt(snapshot))
    assert any(words in fault for fault in found), found


@given(SNAPSHOTS)
def test_a_committed_trial_whose_folder_is_gone(snapshot: Snapshot) -> None:
    for trial in snapshot.folders or ():
        found = faults(replace(snapshot, folders=(snapshot.folders or frozenset()) - {trial}))
        assert found == [f"trial {trial} is committed, but its folder is not in the job folder"]


def committed(trial: str, token: str = "") -> dict[str, Any]:
    return {"kind": "committed", "trial": trial, **({"token": token} if token else {})}


def test_a_trial_committed_twice_is_found_in_the_log() -> None:
    snapshot = valid(list(STATES), [1000], [Outcome.SCORED])
    log = [
        {"kind": "claimed", "trial": "t3", "token": "k1"},
        {"kind": "requeued", "trial": "t3", "token": "k1", "reason": "infra_error"},
        committed("t3", "k2"),
        {"kind": "superseded", "trial": "t3", "token": "k1"},
        # The store was wiped.
        committed("t3", "recovered"),
        committed("t2", "recovered"),
        committed("t2", "recovered"),
        committed("t1"),
        committed("t1"),
    ]
    assert faults(snapshot, log) == []
    assert faults(snapshot, [*log, committed("t3", "k1")]) == ["trial t3 was committed 2 times, by k2, k1"]
    assert faults(snapshot, [committed("t0", "failed"), *log, committed("t0", "failed")]) == [
        "trial t0 was committed 2 times, by failed, failed"
    ]
