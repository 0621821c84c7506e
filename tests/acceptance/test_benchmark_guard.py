"""What we cost and how we schedule, as ratios to what plain Python does beside us at the same moment."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

import pytest
from benchmarks import others, ours, workloads
from benchmarks.figures import Moments
from benchmarks.workloads import EVEN

#: To the makespan of a plain queue. A machine that others use too slows ours, a system of several processes, more than
#: a pool in one; these allow far more than an idle machine shows, and far less than a broken schedule or a wait gives.
UNIFORM, LONGEST_LAST = 1.3, 0.9
#: In starts of a Python: from submit to the first trial, and for each trial of no time.
FIRST_START, COST = 5.0, 0.25
#: The best counts: what disturbs makes it only worse, and what is broken is so each time.
TIMES = 3


@pytest.fixture(scope="module")
def pool() -> Iterator[ours.Pool]:
    with ours.pool(EVEN) as made:
        yield made


def beside(pool: ours.Pool, seconds: Sequence[float]) -> float:
    """Our makespan by that of a queue before asyncio workers, at once: what slows one slows the other."""
    with ThreadPoolExecutor() as threads:
        plain = threads.submit(others.pooled, {"plain": (seconds, EVEN, "queue")})
        return pool.sleep(seconds).makespan / plain.result()["plain"].makespan


def in_starts(run: Callable[[], float]) -> float:
    """Seconds that ``run`` tells, in starts of a Python beside it."""
    spent: list[float] = []

    def start() -> None:
        while not over:
            begun = time.perf_counter()
            subprocess.run([sys.executable, "-c", "import asyncio"], check=True)
            spent.append(time.perf_counter() - begun)

    over: list[bool] = []
    with ThreadPoolExecutor() as threads:
        starting = threads.submit(start)
        try:
            seconds = run()
        finally:
            over.append(True)
        starting.result()
    return seconds / median(spent)


def cost(moments: Moments) -> float:
    """Seconds for each trial."""
    return moments.makespan / len(moments.spans)


def test_equal_trials_take_no_longer_than_in_a_plain_pool(pool: ours.Pool) -> None:
    assert min(beside(pool, [0.25] * 20) for _ in range(TIMES)) < UNIFORM


def test_the_longest_does_not_start_last(pool: ours.Pool) -> None:
    seconds = [0.15] * 20 + [1.6]
    # A queue starts the longest when all others have started, and ends 1.4 times as late as possible.
    assert workloads.foresighted(seconds, EVEN) < 1.7
    assert min(beside(pool, seconds) for _ in range(TIMES)) < LONGEST_LAST


def test_the_first_trial_starts_soon(pool: ours.Pool) -> None:
    assert min(in_starts(lambda: pool.sleep([0.2] * 4).wait) for _ in range(TIMES)) < FIRST_START


def test_a_trial_costs_little(pool: ours.Pool) -> None:
    assert in_starts(lambda: cost(pool.sleep(0.0, trials=300))) < COST
