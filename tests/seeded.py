"""An evaluation in the store and on disk as if it had run, or still runs: with outcomes, durations, errors, labels."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone

from aeo import records, summaries
from aeo.core.model import (
    Batch,
    Evaluation,
    EvaluationState,
    Outcome,
    Plan,
    PlannedTrial,
    Spec,
    TrialRow,
    TrialSummary,
)
from aeo.site import Site
from aeo.store import evaluations, trials

#: When the first trial began.
BEGIN = datetime.now(timezone.utc).replace(microsecond=0) - timedelta(hours=2)

_ERRORS = ("EnvironmentStartTimeoutError", "AgentSetupError", "ApiRateLimitError")
_CATEGORIES = ("coding", "debugging", "security", "data")
_DIFFICULTIES = ("easy", "medium", "hard")


def evaluation(
    site: Site,
    *,
    id: str = "e1",
    name: str = "nightly",
    tasks: int = 12,
    attempts: int = 3,
    models: tuple[str, ...] = ("model-a",),
    workers: tuple[str, ...] = ("alpha", "beta"),
    slots: int = 2,
    done: int | None = None,
    running: int = 0,
    owner: str = "",
    parent: str = "",
    warnings: tuple[str, ...] = (),
    close: bool = False,
    seed: int = 1,
) -> Evaluation:
    """Make one; ``done`` trials (None: all) have a result, ``running`` more are claimed, ``close`` ends it."""
    chance = random.Random(seed)
    planned = tuple(
        PlannedTrial(
            name=f"task-{task:04d}__{model[-1]}{attempt}{chance.randrange(16**5):05x}",
            task=f"task-{task:04d}",
            labels={
                "agent": "terminus",
                "model": model,
                "dataset": "bench",
                "category": _CATEGORIES[task % 4],
                "difficulty": _DIFFICULTIES[task % 3],
            },
            estimated_seconds=60.0,
        )
        for task in range(tasks)
        for model in models
        for attempt in range(1, attempts + 1)
    )
    made = Evaluation(
        id=id,
        spec=Spec(executor="sleep", name=name, config={"tasks": tasks, "note": "as asked"}),
        plan=Plan(trials=planned, warnings=warnings),
        submitted_at=BEGIN,
        job_dir=str(site.shared.job(name)),
        owner=owner,
        parent=parent,
    )
    folder = site.shared.evaluation(id)
    folder.mkdir()
    records.write(folder, made)
    batches = [Batch(id=f"{id}-{w}-{s}", evaluation=id, worker=w) for w in workers for s in range(slots)]
    names = [trial.name for trial in planned]
    by_name = {trial.name: trial for trial in planned}
    shares = {batch: names[at :: len(batches)] for at, batch in enumerate(batches)}
    evaluations.save(site.db, made, shares, {})
    summaries.enter(site.book, made)
    count = len(planned) if done is None else done
    for at in range(min(len(planned), count + running)):
        claim = trials.claim(site.db, batches[at % len(batches)], token=f"token-{at}", lease_seconds=3600)
        assert claim is not None
        if at >= count:
            trials.set_phase(site.db, claim, "agent")
            continue
        start = BEGIN + timedelta(seconds=80 * (at // len(batches)))
        trial = by_name[claim.trial]
        row = TrialRow(
            summary=_summary(trial, at, start, chance),
            worker=claim.worker,
            attempt=claim.attempt,
            committed_at=start + timedelta(seconds=90),
        )
        assert trials.commit(site.db, id, row, claim.token)
        summaries.put(site.book, id, row)
    if close:
        assert evaluations.move(site.db, id, EvaluationState.MERGING)
        assert evaluations.move(site.db, id, EvaluationState.SUCCEEDED)
    return made


def seconds(count: float) -> timedelta:
    """So many seconds."""
    return timedelta(seconds=count)


def _summary(trial: PlannedTrial, at: int, start: datetime, chance: random.Random) -> TrialSummary:
    failed, odd = at % 9 == 4, at % 17 == 8
    return TrialSummary(
        trial=trial.name,
        task=trial.task,
        outcome=Outcome.INFRA_ERROR if failed else Outcome.INVALID if odd else Outcome.SCORED,
        rewards={} if failed or odd else {"reward": float(chance.random() < 0.6)},
        started_at=start,
        finished_at=start + timedelta(seconds=chance.uniform(15, 75)),
        input_tokens=chance.randrange(1000, 500_000),
        output_tokens=chance.randrange(100, 20_000),
        cost_usd=round(chance.uniform(0.01, 2), 4),
        error_type=_ERRORS[at % 3] if failed else "RewardFileNotFoundError" if odd else "",
        error_message="It did not start in 600 s." if failed else "",
        labels=trial.labels,
    )
