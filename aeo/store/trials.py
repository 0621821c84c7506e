"""Trials: claimed by lease, pushed, requeued, committed. Each function is one transition, one script, one event.

A trial is in a batch's share while pending, has a claim while running or pushed, and a row once done. A call repeated
because its answer was lost gets the first answer again (`claim`, `pushed` and `commit` by their token).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from hmac import compare_digest

from aeo.codec import dumps, loads
from aeo.core.choose import PATIENCE_SECONDS, Answer
from aeo.core.errors import NotFound, Unavailable
from aeo.core.model import Batch, Claim, Outcome, TrialRow, TrialState, TrialSummary
from aeo.store.connection import Db, Denied, moment
from aeo.store.connection import now as now
from aeo.store.keys import key

_CHUNK = 1000
_CARRIED_AT_ONCE = 200
_NAME = "<trial>"


class Standing(str, Enum):
    """What a renewal found."""

    #: The lease is renewed.
    HELD = "held"
    #: Another run of the trial is the current one, or the trial is done: stop.
    LOST = "lost"
    #: The evaluation is being cancelled: stop the trial; the lease is renewed meanwhile.
    CANCEL = "cancel"


class Requeued(str, Enum):
    """What became of a run that gave no result."""

    #: The trial is pending again.
    AGAIN = "again"
    #: It had its repeats; nothing changed and the holder keeps it: it is to get a failed result.
    EXHAUSTED = "exhausted"
    #: The run was not the current one; nothing changed.
    STALE = "stale"


@dataclass(frozen=True, kw_only=True)
class Running:
    """A run that holds a lease."""

    claim: Claim
    started_at: datetime
    #: What it does now (``environment``, ``agent``...); empty until it said so.
    phase: str


def ask(
    db: Db, batch: Batch, *, token: str, lease_seconds: float, patience_seconds: float = PATIENCE_SECONDS
) -> Claim | Answer:
    """Take the next trial, see `aeo.core.choose`, or learn what the batch is to do instead.

    The end is also when the evaluation does not run, or the worker is paused, drains or has weight 0. A batch that is
    told to give its turn counts as sent again: its message has to be. Asked again with the same token it gets the same
    answer, but for a wait of either kind.
    """
    limits = (round(lease_seconds * 1000), round(patience_seconds * 1000))
    text = db.run("claim", batch.evaluation, batch.id, batch.worker, token, *limits)
    if not text:
        return Answer.END
    return Answer(text) if text in (Answer.WAIT, Answer.LEAVE, Answer.TURN) else _claim(text)


def claim(db: Db, batch: Batch, *, token: str, lease_seconds: float) -> Claim | None:
    """Take the next trial; None when there is none now, whatever the reason."""
    answer = ask(db, batch, token=token, lease_seconds=lease_seconds)
    return None if isinstance(answer, Answer) else answer


def renew(db: Db, claim: Claim, *, lease_seconds: float) -> Standing:
    """Renew a lease from now on, and learn whether to go on."""
    return Standing(db.run("renew", claim.evaluation, claim.trial, claim.token, round(lease_seconds * 1000)))


@dataclass(frozen=True, kw_only=True)
class Renewal:
    """A lease to renew."""

    claim: Claim
    lease_seconds: float
    #: What the run does now, if that is to be told.
    phase: str = ""


def renew_all(db: Db, renewals: Sequence[Renewal]) -> list[Standing | Denied]:
    """`renew` many leases, and `set_phase` where there is one, on one way there and back.

    One that is refused has the refusal in its place: the others are renewed.
    """
    asked = [(one.claim.evaluation, one.claim.trial, one.claim.token) for one in renewals]
    leases = [(*who, round(one.lease_seconds * 1000)) for who, one in zip(asked, renewals, strict=True)]
    found = [_standing(answer) for answer in db.try_all("renew", leases)]
    phases = [
        (*who, one.phase)
        for who, one, standing in zip(asked, renewals, found, strict=True)
        if one.phase and isinstance(standing, Standing)
    ]
    if phases:
        db.run_all("set_phase", phases)
    return found


def _standing(answer: str | Unavailable) -> Standing | Denied:
    if isinstance(answer, Unavailable) and not isinstance(answer, Denied):
        raise answer
    return answer if isinstance(answer, Denied) else Standing(answer)


def reclaim(db: Db, claim: Claim, *, lease_seconds: float) -> bool:
    """Take a lost lease back while nobody else has the trial; True when the run may go on.

    So a trial goes on whose worker was cut off, unless it was given away meanwhile. It may also go on while the store
    does not know its evaluation: the store was wiped then, and is being rebuilt.
    """
    who = (claim.evaluation, claim.trial, claim.batch, claim.worker, claim.token, claim.attempt)
    return bool(db.run("reclaim", *who, round(lease_seconds * 1000)))


def set_phase(db: Db, claim: Claim, phase: str) -> bool:
    """Say what a running trial does now; False when the claim is not the current one."""
    return bool(db.run("set_phase", claim.evaluation, claim.trial, claim.token, phase))


def pushed(db: Db, claim: Claim) -> bool:
    """Say that a run's result lies in the inbox; False when the claim is not the current one. Control looks at both."""
    arrival = dumps([claim.evaluation, claim.trial, claim.token])
    return bool(db.run("pushed", claim.evaluation, claim.trial, claim.token, arrival))


def pushed_all(db: Db, claims: Sequence[Claim]) -> None:
    """`pushed` of several runs; when this fails it may be called again."""
    arrivals = [dumps([claim.evaluation, claim.trial, claim.token]) for claim in claims]
    calls = [(c.evaluation, c.trial, c.token, arrival) for c, arrival in zip(claims, arrivals, strict=True)]
    db.run_all("pushed", calls)


def requeue(
    db: Db, evaluation: str, trial: str, token: str, *, reason: str, max_requeues: int, counted: bool = True
) -> Requeued:
    """Give a run's trial back, to the head of a live batch's share, another worker's where there is one.

    Not ``counted``: nobody's fault, so it is never exhausted, and does not bring the trial nearer to its limit.
    """
    return Requeued(db.run("requeue", evaluation, trial, token, reason, max_requeues, int(counted)))


def note_run(db: Db, evaluation: str, worker: str, *, failed: bool, keep: int) -> tuple[list[bool], list[bool]]:
    """Note whether infrastructure failed a run; returns the last ``keep`` of the evaluation and of the worker."""
    return note_runs(db, [(evaluation, worker, failed)], keep=keep)[0]


def note_runs(db: Db, runs: Sequence[tuple[str, str, bool]], *, keep: int) -> list[tuple[list[bool], list[bool]]]:
    """`note_run` of several: of an evaluation, on a worker, whether it failed; each answer is as after that run."""
    with db.client.pipeline(transaction=True) as pipe:
        for evaluation, worker, failed in runs:
            for name in (key("recent", evaluation), key("worker_recent", worker)):
                pipe.lpush(name, int(failed))
                pipe.ltrim(name, 0, keep - 1)
                pipe.lrange(name, 0, -1)
        answers = pipe.execute()
    lists = [[value == "1" for value in answer] for answer in answers[2::3]]
    return list(zip(lists[0::2], lists[1::2], strict=True))


def commit(db: Db, evaluation: str, row: TrialRow, token: str) -> bool:
    """Make a result the trial's result, whatever its state; False when it is done already, by another run.

    Raises:
        NotFound: the evaluation has no such trial.
    """
    return commit_all(db, [(evaluation, row, token)])[0]


def commit_all(db: Db, rows: Sequence[tuple[str, TrialRow, str]]) -> list[bool]:
    """`commit` several rows, each with its evaluation and token, each a step of its own.

    Raises:
        NotFound: an evaluation has no such trial; the others are committed.
    """
    calls = [
        (id, r.summary.trial, token, r.worker, r.attempt, r.summary.outcome.value, dumps(r)) for id, r, token in rows
    ]
    answers = db.run_all("commit", calls)
    for (id, row, _), answer in zip(rows, answers, strict=True):
        if answer < 0:
            raise NotFound(f"No trial {row.summary.trial!r} in evaluation {id!r}.")
    return [bool(answer) for answer in answers]


def carry(db: Db, evaluation: str, rows: Sequence[TrialRow]) -> int:
    """Make results that were taken over those of their trials, where these are pending; returns of how many."""
    done = 0
    for start in range(0, len(rows), _CARRIED_AT_ONCE):
        fields: list[str | int] = []
        for row in rows[start : start + _CARRIED_AT_ONCE]:
            summary = row.summary
            fields += [summary.trial, row.worker, row.attempt, summary.outcome.value, row.origin, dumps(row)]
        done += int(db.run("carry", evaluation, *fields))
    return done


def cancel_pending(db: Db, evaluation: str) -> int:
    """End every pending trial as cancelled; returns how many. Their rows name neither task nor worker, attempt 0."""
    summary = TrialSummary(trial=_NAME, task="", outcome=Outcome.CANCELLED)
    row = TrialRow(summary=summary, worker="", attempt=0, committed_at=now(db))
    before, after = dumps(row).split(_NAME)
    total, done = 0, _CHUNK
    while done == _CHUNK:
        done = db.run("cancel_pending", evaluation, Outcome.CANCELLED.value, before, after, _CHUNK)
        total += done
    return total


def expired(db: Db, evaluation: str, *, ago_seconds: float = 0.0) -> list[Claim]:
    """Claims whose lease ended at least so long ago, oldest first."""
    until = round((now(db).timestamp() - ago_seconds) * 1000)
    return [run.claim for run in _runs(db, evaluation, db.client.zrangebyscore(key("leases", evaluation), 0, until))]


def running(db: Db, evaluation: str) -> list[Running]:
    """The runs that hold a lease, ended or not."""
    return _runs(db, evaluation, db.client.zrange(key("leases", evaluation), 0, -1))


def workers_claims(db: Db, worker: str) -> list[Claim]:
    """The claims that one worker runs, in every evaluation."""
    members = sorted(db.client.smembers(key("worker_leases", worker)))
    # The worker writes them itself.
    runs = [member.split(" ") for member in members if member.count(" ") == 1]
    with db.client.pipeline(transaction=False) as pipe:
        for evaluation, trial in runs:
            pipe.hget(key("claims", evaluation), trial)
        claims = [_claim(text) for text in pipe.execute() if text]
    return [claim for claim in claims if claim.worker == worker]


def states(db: Db, evaluation: str) -> Mapping[str, TrialState]:
    """Every trial's state; grows with the evaluation."""
    return {name: TrialState(state) for name, state in db.client.hgetall(key("trials", evaluation)).items()}


def states_of(db: Db, evaluation: str, names: Sequence[str]) -> Mapping[str, TrialState]:
    """The states of these trials; those that are not planned are left out."""
    found = db.client.hmget(key("trials", evaluation), names) if names else []
    return {name: TrialState(state) for name, state in zip(names, found, strict=True) if state}


def claims(db: Db, evaluation: str) -> Mapping[str, Claim]:
    """The claims of the trials that run or are pushed, by trial."""
    return {name: _claim(text) for name, text in db.client.hgetall(key("claims", evaluation)).items()}


def holds(db: Db, evaluation: str, trial: str, *, worker: str, token: str) -> bool:
    """Whether this worker runs this trial now, under this token and with a lease that has not ended."""
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hget(key("claims", evaluation), trial)
        pipe.hget(key("trials", evaluation), trial)
        pipe.zscore(key("leases", evaluation), trial)
        text, found, end = pipe.execute()
    if not text or found != TrialState.RUNNING.value or end is None or now(db).timestamp() * 1000 >= float(end):
        return False
    held = _claim(text)
    return held.worker == worker and compare_digest(held.token.encode(), token.encode())


def state(db: Db, evaluation: str, trial: str) -> TrialState:
    """One trial's state.

    Raises:
        NotFound: there is no such evaluation or trial.
    """
    found = db.client.hget(key("trials", evaluation), trial)
    if found is None:
        raise NotFound(f"No trial {trial!r} in evaluation {evaluation!r}.")
    return TrialState(found)


def pending(db: Db, evaluation: str) -> list[str]:
    """Names of the trials that wait, in no order; grows with the evaluation."""
    return [name for name, found in states(db, evaluation).items() if found is TrialState.PENDING]


def requeues(db: Db, evaluation: str) -> Mapping[str, int]:
    """How often each trial was requeued; only those that were."""
    return {name: int(times) for name, times in db.client.hgetall(key("requeues", evaluation)).items()}


def row(db: Db, evaluation: str, trial: str) -> TrialRow | None:
    """Read one trial's row; None when it is not committed."""
    text = db.client.hget(key("rows", evaluation), trial)
    return loads(TrialRow, _without_token(text)) if text else None


def winner(db: Db, evaluation: str, trial: str) -> str:
    """The token of the run whose result counts; "" when there is none, or nobody ran it."""
    return (db.client.hget(key("rows", evaluation), trial) or "").partition(" ")[0]


def rows_since(db: Db, evaluation: str, index: int) -> list[TrialRow]:
    """Rows in the order of their commits, from the one at ``index`` (0 is the first)."""
    return [loads(TrialRow, text) for text in _texts(db, evaluation, index)]


def rows(
    db: Db,
    evaluation: str,
    *,
    offset: int,
    limit: int,
    outcome: Outcome | None = None,
    task: str | None = None,
    worker: str | None = None,
) -> tuple[list[TrialRow], int]:
    """Read rows in the order of their commits, and how many match in all. A filter reads every row."""
    if outcome is None and task is None and worker is None:
        total = int(db.client.llen(key("order", evaluation)))
        names = db.client.lrange(key("order", evaluation), offset, offset + limit - 1) if limit > 0 else []
        return [loads(TrialRow, text) for text in _rows_of(db, evaluation, names)], total
    found, total = [], 0
    for text in _texts(db, evaluation, 0):
        # Most rows fall through: look before building the objects.
        raw = json.loads(text)
        summary = raw["summary"]
        if (
            (outcome is None or summary["outcome"] == outcome.value)
            and (task is None or summary["task"] == task)
            and (worker is None or raw["worker"] == worker)
        ):
            if offset <= total < offset + limit:
                found.append(loads(TrialRow, text))
            total += 1
    return found, total


def committed(db: Db, evaluation: str, index: int) -> str:
    """Name of the trial that was committed at this place in the order, from 0, from -1 backwards; "" if there is none.

    After the store was wiped and rebuilt the order is another one.
    """
    return db.client.lindex(key("order", evaluation), index) or ""


def count_committed(db: Db, evaluation: str) -> int:
    """How many trials are committed."""
    return int(db.client.llen(key("order", evaluation)))


def _texts(db: Db, evaluation: str, index: int) -> Iterator[str]:
    """Rows as JSON in commit order, a chunk at a time."""
    while names := db.client.lrange(key("order", evaluation), index, index + _CHUNK - 1):
        yield from _rows_of(db, evaluation, names)
        index += len(names)


def _rows_of(db: Db, evaluation: str, names: Sequence[str]) -> list[str]:
    texts = db.client.hmget(key("rows", evaluation), names) if names else []
    return [_without_token(text) for text in texts if text]


def _without_token(text: str) -> str:
    return text.partition(" ")[2]


def _runs(db: Db, evaluation: str, names: Sequence[str]) -> list[Running]:
    if not names:
        return []
    with db.client.pipeline(transaction=True) as pipe:
        pipe.hmget(key("claims", evaluation), names)
        pipe.hmget(key("phases", evaluation), names)
        claims, phases = pipe.execute()
    return [
        Running(claim=_claim(text), started_at=moment(json.loads(text)["started_at"]), phase=phase or "")
        for text, phase in zip(claims, phases, strict=True)
        if text
    ]


def _claim(text: str) -> Claim:
    fields = json.loads(text)
    return Claim(
        evaluation=fields["evaluation"],
        trial=fields["trial"],
        batch=fields["batch"],
        worker=fields["worker"],
        token=fields["token"],
        attempt=int(fields["attempt"]),
    )
