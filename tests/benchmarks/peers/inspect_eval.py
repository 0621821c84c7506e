"""Inspect AI on the same work; runs in its own environment.

Reads ``{"folder", "slots", "runs": [{"name", "seconds"}]}`` from standard input; prints ``{"runs": [...]}``. A sample
is a trial, its solver sleeps, ``max_samples`` are the slots, and no model is called.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from inspect_ai import Task, eval
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.scorer import Score, mean, scorer
from inspect_ai.solver import solver


@solver
def sleeps(spans):
    async def solve(state, generate):
        started = time.time()
        await asyncio.sleep(state.metadata["seconds"])
        spans.append([started, time.time()])
        return state

    return solve


@scorer(metrics=[mean()])
def ended():
    async def score(state, target):
        return Score(value=1.0)

    return score


def perform(run, slots, folder):
    spans = []
    samples = [
        Sample(input="sleep", id=f"task-{index}", metadata={"seconds": one}) for index, one in enumerate(run["seconds"])
    ]
    called = time.time()
    task = Task(dataset=MemoryDataset(samples), solver=sleeps(spans), scorer=ended(), name=run["name"])
    (log,) = eval(
        task,
        model="none/none",
        max_samples=slots,
        display="none",
        log_dir=str(folder / run["name"]),
        fail_on_error=True,
    )
    returned = time.time()
    assert log.status == "success", log.error
    # It does not say when a sample's result is safe: the end of the last one, in its favour.
    return {
        "name": run["name"],
        "called": called,
        "spans": spans,
        "stored": max(end for _, end in spans),
        "returned": returned,
    }


def main():
    asked = json.load(sys.stdin)
    return [perform(run, asked["slots"], Path(asked["folder"])) for run in asked["runs"]]


if __name__ == "__main__":
    print("\n" + json.dumps({"runs": main()}))
