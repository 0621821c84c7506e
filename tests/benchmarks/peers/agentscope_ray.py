"""AgentScope's RayEvaluator on the same work; runs in its own environment.

Reads ``{"folder", "slots", "runs": [{"name", "seconds"}]}`` from standard input; prints ``{"runs": [...]}``. Each run
is a benchmark of its own whose solutions sleep; its results are stored as files, as its documentation has it.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from agentscope.evaluate import (
    BenchmarkBase,
    FileEvaluatorStorage,
    MetricBase,
    MetricResult,
    MetricType,
    RayEvaluator,
    SolutionOutput,
    Task,
)


class Ended(MetricBase):
    def __init__(self):
        super().__init__(name="ended", metric_type=MetricType.NUMERICAL, description="", categories=None)

    async def __call__(self, solution):
        return MetricResult(name=self.name, result=1.0)


class Sleeping(BenchmarkBase):
    def __init__(self, name, seconds):
        super().__init__(name=name, description="sleeps")
        self._tasks = [
            Task(id=f"task-{index}", input={"seconds": one}, ground_truth=None, metrics=[Ended()])
            for index, one in enumerate(seconds)
        ]

    def __iter__(self):
        yield from self._tasks

    def __len__(self):
        return len(self._tasks)

    def __getitem__(self, index):
        return self._tasks[index]


async def sleeps(task, pre_hook):
    started = time.time()
    await asyncio.sleep(task.input["seconds"])
    return SolutionOutput(success=True, output=[started, time.time()], trajectory=[])


async def perform(run, slots, folder):
    place = folder / run["name"]
    called = time.time()
    evaluator = RayEvaluator(
        name=run["name"],
        benchmark=Sleeping(run["name"], run["seconds"]),
        n_repeat=1,
        storage=FileEvaluatorStorage(save_dir=str(place)),
        n_workers=slots,
    )
    await evaluator.run(sleeps)
    returned = time.time()
    spans = [json.loads(path.read_text())["output"] for path in place.glob("*/*/solution.json")]
    stored = max(path.stat().st_mtime for path in place.glob("*/*/evaluation/*.json"))
    return {"name": run["name"], "called": called, "spans": spans, "stored": stored, "returned": returned}


async def main():
    asked = json.load(sys.stdin)
    return [await perform(run, asked["slots"], Path(asked["folder"])) for run in asked["runs"]]


if __name__ == "__main__":
    print("\n" + json.dumps({"runs": asyncio.run(main())}))
