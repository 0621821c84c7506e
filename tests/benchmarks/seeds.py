"""Fills a controller's root with evaluations as they are after months of use, through the functions that make them."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone

from aeo import event_log, records, summaries
from aeo.core.model import (
    Batch,
    Capacity,
    Evaluation,
    EvaluationState,
    Heartbeat,
    Outcome,
    Plan,
    PlannedTrial,
    Spec,
    TrialRow,
    TrialSummary,
    WorkerInfo,
)
from aeo.site import Site
from aeo.store import connection, evaluations, trials, workers

WORKERS = 16
SLOTS = 4
MODELS = ("anthropic/claude-opus-4-5", "openai/gpt-5", "google/gemini-3-pro", "moonshot/kimi-k2")
CATEGORIES = ("software", "security", "science", "games", "data", "system", "network", "math", "video")
DIFFICULTIES = ("easy", "medium", "hard")
ERRORS = {
    Outcome.INFRA_ERROR: ("DockerComposeError", "RateLimitError", "EnvironmentStartTimeoutError", "APIConnectionError"),
    Outcome.INVALID: ("AgentTimeoutError", "RewardFileNotFoundError", "VerifierTimeoutError"),
}


@dataclass(kw_only=True)
class Seeded:
    """What was made, and how long the parts of it took."""

    #: Ids: the largest, which runs, and the others.
    large: str = ""
    others: list[str] = field(default_factory=list)
    #: Seconds of entering each evaluation into the summaries, the largest first.
    entered: list[float] = field(default_factory=list)
    #: Seconds of each commit in the store, and of putting each row into the summaries.
    committed: list[float] = field(default_factory=list)
    put: list[float] = field(default_factory=list)
    #: Rows of the largest evaluation that are still to come.
    waiting: list[TrialRow] = field(default_factory=list)


def fill(site: Site, *, evaluations_: int, largest: int) -> Seeded:
    """Make ``evaluations_`` evaluations, one of them of ``largest`` trials of which nine in ten have ended."""
    chance = random.Random(2026)
    seeded = Seeded()
    _register(site)
    now = datetime.now(timezone.utc)
    for number in range(evaluations_ - 1):
        at = now - timedelta(hours=6 * (evaluations_ - number))
        evaluation = _planned(chance, f"nightly-{number:03}", tasks=12, models=1 + number % 3, attempts=2, at=at)
        last = number >= evaluations_ - 6
        _run(site, chance, evaluation, seeded, share=0.5 if last else 1.0, at=at)
        seeded.others.append(evaluation.id)
        if not last:
            for state in (EvaluationState.MERGING, EvaluationState.SUCCEEDED):
                evaluations.move(site.db, evaluation.id, state)
    at = now - timedelta(hours=5)
    large = _planned(chance, "all-models", tasks=max(1, largest // 20), models=4, attempts=5, at=at)
    _run(site, chance, large, seeded, share=0.9, at=at)
    seeded.large = large.id
    seeded.waiting = list(_rows(chance, large.plan.trials[-100:], now))
    seeded.entered.reverse()
    while event_log.write(site):
        pass
    return seeded


def commit_one(site: Site, seeded: Seeded) -> None:
    """Let one more result of the largest evaluation come in."""
    row = seeded.waiting.pop()
    trials.commit(site.db, seeded.large, row, "t")
    summaries.put(site.book, seeded.large, row)


def _register(site: Site) -> None:
    for number in range(WORKERS):
        info = WorkerInfo(
            id=f"worker-{number:02}",
            display_name=f"Worker {number}",
            host=f"host-{number}",
            capacity=Capacity(slots=SLOTS, cpus=32.0, memory_mb=128_000),
            boot="boot",
            instance=f"instance-{number}",
            executors={"harbor": "0.26.0", "sleep": ""},
            version="0.1.0",
        )
        workers.register(site.db, info, ttl_seconds=24 * 3600)
        beat = Heartbeat(boot="boot", at=connection.now(site.db), busy=SLOTS, cpu_percent=40.0, memory_percent=60.0)
        workers.beat(site.db, info.id, beat, ttl_seconds=24 * 3600)


def _planned(chance: random.Random, name: str, *, tasks: int, models: int, attempts: int, at: datetime) -> Evaluation:
    planned = tuple(
        PlannedTrial(
            name=f"task-{task:04}__{model}{attempt}{chance.randrange(16**5):05x}",
            task=f"task-{task:04}",
            labels={
                "agent": "terminus-2",
                "model": MODELS[model],
                "dataset": "terminal-bench-2",
                "category": CATEGORIES[task % len(CATEGORIES)],
                "difficulty": DIFFICULTIES[task % len(DIFFICULTIES)],
            },
            estimated_seconds=300.0,
        )
        for task in range(tasks)
        for model in range(models)
        for attempt in range(attempts)
    )
    return Evaluation(
        id=secrets.token_hex(6), spec=Spec(executor="harbor", name=name), plan=Plan(trials=planned), submitted_at=at
    )


def _run(
    site: Site, chance: random.Random, evaluation: Evaluation, seeded: Seeded, *, share: float, at: datetime
) -> None:
    """Submit, and commit the first ``share`` of the trials; of the others as many run as there are slots."""
    folder = site.shared.evaluation(evaluation.id)
    folder.mkdir()
    records.write(folder, evaluation)
    site.shared.job(evaluation.spec.name).mkdir()
    names = [trial.name for trial in evaluation.plan.trials]
    batches = {
        Batch(id=f"{evaluation.id}-{slot:03}", evaluation=evaluation.id, worker=f"worker-{slot % WORKERS:02}"): part
        for slot, part in enumerate(_dealt(names, WORKERS * SLOTS))
    }
    evaluations.save(site.db, evaluation, batches, {})
    seeded.entered.append(_timed(lambda: summaries.enter(site.book, evaluation)))
    ended = evaluation.plan.trials[: int(len(names) * share)]
    for row in _rows(chance, ended, at):
        seeded.committed.append(_timed(lambda row=row: trials.commit(site.db, evaluation.id, row, "t")))  # type: ignore[misc]
        seeded.put.append(_timed(lambda row=row: summaries.put(site.book, evaluation.id, row)))  # type: ignore[misc]
    if share < 1:
        for batch in batches:
            trials.claim(site.db, batch, token=secrets.token_hex(4), lease_seconds=24 * 3600)


def _dealt(names: Sequence[str], hands: int) -> list[list[str]]:
    return [hand for start in range(hands) if (hand := list(names[start::hands]))]


def _rows(chance: random.Random, planned: Sequence[PlannedTrial], at: datetime) -> Iterator[TrialRow]:
    for number, trial in enumerate(planned):
        slot, turn = number % (WORKERS * SLOTS), number // (WORKERS * SLOTS)
        start = at + timedelta(seconds=turn * 50 + chance.uniform(0, 5))
        (outcome,) = chance.choices((Outcome.SCORED, Outcome.INFRA_ERROR, Outcome.INVALID), (90, 6, 4))
        seconds = chance.uniform(10, 45)
        passed = chance.random() < 0.2 + 0.6 * (hash(trial.task) % 100) / 100
        error = "" if outcome is Outcome.SCORED else chance.choice(ERRORS[outcome])
        yield TrialRow(
            summary=TrialSummary(
                trial=trial.name,
                task=trial.task,
                outcome=outcome,
                rewards={"reward": float(passed)} if outcome is Outcome.SCORED else {},
                started_at=start,
                finished_at=start + timedelta(seconds=seconds),
                phases={"environment": seconds * 0.2, "agent": seconds * 0.7, "verifier": seconds * 0.1},
                input_tokens=chance.randrange(10_000, 2_000_000),
                cache_tokens=chance.randrange(10_000),
                output_tokens=chance.randrange(1000, 50_000),
                cost_usd=chance.uniform(0.01, 3.0),
                error_type=error,
                error_message=f"{error}: " + "something went wrong " * 12 if error else "",
                error_types=(error,) if error else (),
                labels=trial.labels,
            ),
            worker=f"worker-{slot % WORKERS:02}",
            attempt=1,
            committed_at=start + timedelta(seconds=seconds + 2),
        )


def _timed(call: object) -> float:
    begun = time.perf_counter()
    call()  # type: ignore[operator]
    return time.perf_counter() - begun
