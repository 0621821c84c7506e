"""Several evaluations at once, over real worker processes: who gets a slot when a trial ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from itertools import pairwise
from typing import Any

import pytest
from platforms import Platform
from waiting import eventually


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platform]:
    made = Platform(tmp_path_factory.mktemp("platform"))
    try:
        made.ready()
        made.worker("one", "--slots", "1", "--poll-interval", "0.5")
        made.api.await_worker("one", timeout=60)
        yield made
        made.stop()
    finally:
        made.destroy()


def submit(platform: Platform, name: str, trials: int, seconds: float, **fields: Any) -> str:
    config = {"executor": "sleep", "name": name, "trials": trials, "seconds": seconds, **fields}
    return platform.api.submit({"per_worker_concurrency": "all", **config})


def done(platform: Platform, id: str, timeout: float = 60) -> None:
    eventually(lambda: platform.api.status(id)["state"] == "succeeded", timeout, pause=0.1)


def _has_run(platform: Platform, id: str, worker: str) -> bool:
    share = platform.api.get(f"/api/evaluations/{id}")["shares"].get(worker)
    return bool(share and share["running"] + share["done"])


def times(platform: Platform, id: str, kind: str) -> list[float]:
    """Seconds, in order, of one kind of event."""
    found = [event["at"] for event in platform.events(id) if event["kind"] == kind]
    return sorted(datetime.fromisoformat(at).timestamp() for at in found)


def test_a_small_one_behind_a_big_one_starts_within_a_trials_time(platform: Platform) -> None:
    big = submit(platform, "big", 8, 0.8)
    eventually(lambda: platform.api.status(big)["done"] >= 1, pause=0.05)
    small = submit(platform, "small", 2, 0.2)
    for id in (small, big):
        done(platform, id)
    (submitted,) = times(platform, small, "submitted")
    begun, order = times(platform, small, "claimed")[0], times(platform, big, "claimed")
    # The trial that ran has its time; one more may begin while a busy machine brings the message.
    assert len([at for at in order if submitted < at < begun]) <= 2
    assert order[-1] > begun
    for id in (big, small):
        platform.check_once_each(id)
        assert len(times(platform, id, "closed")) == 1
    assert times(platform, big, "batch_turned")


def test_a_higher_priority_goes_first_and_a_lower_one_last(platform: Platform) -> None:
    usual = submit(platform, "usual", 8, 0.5)
    eventually(lambda: platform.api.status(usual)["done"] >= 1, pause=0.05)
    low, high = submit(platform, "low", 2, 0.1, priority=-1), submit(platform, "high", 4, 0.3, priority=5)
    for id in (usual, low, high):
        done(platform, id)
    first, last = times(platform, high, "claimed")[0], times(platform, high, "claimed")[-1]
    assert not [at for at in times(platform, usual, "claimed") if first < at < last]
    assert times(platform, low, "claimed")[0] > times(platform, usual, "claimed")[-1]


def test_equals_take_turns(platform: Platform) -> None:
    go = platform.folder / "go"
    task = {"name": "first", "command": f"until test -e {go}; do sleep 0.05; done"}
    first = platform.api.submit({"executor": "command", "name": "first", "tasks": [task]})
    eventually(lambda: platform.api.status(first)["running"])
    ids = [submit(platform, name, 3, 1.1) for name in ("left", "right")]
    go.touch()
    for id in ids:
        done(platform, id)
    order = sorted((at, id) for id in ids for at in times(platform, id, "claimed"))
    changes = sum(before[1] != after[1] for before, after in pairwise(order))
    assert changes >= 4, order


def test_a_worker_that_joins_late_helps_within_seconds(platform: Platform) -> None:
    id = submit(platform, "long", 400, 0.8)
    eventually(lambda: platform.api.status(id)["done"] >= 1, pause=0.05)
    platform.worker("late", "--slots", "2", "--poll-interval", "0.5")
    platform.api.await_worker("late", timeout=60)
    # By the message that is sent to it: what repairs would find came after minutes.
    eventually(lambda: _has_run(platform, id, "late"), pause=0.05)
    platform.api.cancel(id)
    eventually(lambda: platform.api.status(id)["state"] == "cancelled", pause=0.1)
    claims = [event for event in platform.events(id) if event["kind"] == "claimed"]
    assert {event["worker"] for event in claims} == {"one", "late"}
    assert len({event["trial"] for event in claims}) == len(claims)
    assert times(platform, id, "batch_added")
