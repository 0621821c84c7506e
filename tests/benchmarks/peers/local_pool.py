"""A queue before asyncio workers, and a split made before the start: the two ways people write by hand.

Runs in any Python >= 3.10. Reads ``{"folder", "runs": [{"name", "seconds", "machines", "shares"}]}`` from standard
input, where ``machines`` are slots and speeds, and ``shares`` list indices for each machine, or null for one queue
before them all. The runs go side by side, as they only sleep. Prints ``{"runs": [...]}`` with the moments of each.
"""

import asyncio
import json
import sys
import time
from pathlib import Path


async def perform(run, folder):
    moments = {"name": run["name"], "called": time.time(), "spans": []}
    place = folder / run["name"]
    place.mkdir(parents=True)
    # Taken from the end of a list, which costs the same however long it is.
    common = list(reversed(range(len(run["seconds"]))))
    left = [list(reversed(share)) for share in run["shares"]] if run["shares"] else [common] * len(run["machines"])
    slots = [
        slot(run["seconds"], mine, speed, place, moments["spans"])
        for (count, speed), mine in zip(run["machines"], left, strict=True)
        for _ in range(count)
    ]
    await asyncio.gather(*slots)
    moments["returned"] = moments["stored"] = time.time()
    return moments


async def slot(seconds, left, speed, place, spans):
    while left:
        index = left.pop()
        started = time.time()
        # Even nothing gives way once, so that slots take turns.
        await asyncio.sleep(seconds[index] / speed)
        ended = time.time()
        result = {"trial": index, "started_at": started, "finished_at": ended, "reward": 1.0}
        (place / f"{index}.json").write_text(json.dumps(result))
        spans.append([started, ended])


async def main():
    asked = json.load(sys.stdin)
    folder = Path(asked["folder"])
    return await asyncio.gather(*[perform(run, folder) for run in asked["runs"]])


if __name__ == "__main__":
    print(json.dumps({"runs": asyncio.run(main())}))
